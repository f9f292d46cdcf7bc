"""`engine.container`: only an image that a digest pins, and never beside the Python that it replaces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dsv41_supervisor.errors import Refused
from dsv41_supervisor.settings import Container, parse
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.fleets import good

DIGEST = "sha256:" + "0123456789abcdef" * 4
IMAGE = f"registry.example.org/dsv41/engine@{DIGEST}"


def in_container(**container: Any) -> dict[str, Any]:
    document = good()
    del document["engine"]["python"]
    document["engine"]["container"] = {"image": IMAGE, **container}
    return document


def why(document: dict[str, Any]) -> str:
    with pytest.raises(Refused) as refused:
        parse(json.dumps(document), "fleet.json")
    (refusal,) = refused.value.refusals
    return refusal.what


def test_without_it_nothing_changes() -> None:
    assert parse(json.dumps(good())).engine.container is None


def test_an_image_by_digest_is_accepted() -> None:
    container = parse(json.dumps(in_container())).engine.container
    assert container is not None
    assert (container.gpu, container.podman, container.mounts) == ("nvidia.com/gpu=all", "podman", ())


def test_a_tag_is_refused_and_the_way_to_its_digest_is_shown() -> None:
    said = why(in_container(image="registry.example.org/dsv41/engine:0.5.23"))
    assert said.startswith("fleet.json: engine.container.image: engine.container.image names no digest: a tag moves")
    assert "Run podman pull registry.example.org/dsv41/engine:0.5.23, then podman image inspect --format" in said


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (f"registry.example.org/dsv41/engine:0.5.23@{DIGEST}", "has a tag and a digest; take :0.5.23 out"),
        (f"lmsysorg/sglang@{DIGEST}", "names no registry"),
        (f"engine@{DIGEST}", "write docker.io/library/engine@…"),
        (IMAGE[:-1], "has no sha256 digest after @"),
        (IMAGE + "0", "has no sha256 digest after @"),
        (IMAGE.replace("sha256", "sha512"), "has no sha256 digest after @"),
        (IMAGE.upper(), "is no image reference"),
        (f"--privileged@{DIGEST}", "is no image reference"),
        (f"docker.io/a b@{DIGEST}", "is no image reference"),
        (f"docker.io/a@{DIGEST}\n", "has no sha256 digest after @"),
        ("", "is no image reference"),
    ],
)
def test_anything_else_is_refused_by_name(image: str, sentence: str) -> None:
    assert sentence in why(in_container(image=image))


@given(st.text(max_size=90) | st.from_regex(r"[a-z./:@-]{0,40}(sha256:)?[0-9a-f]{60,66}", fullmatch=True))
def test_what_is_accepted_has_one_digest_and_cannot_be_an_option(image: str) -> None:
    try:
        Container(image=image)
    except ValidationError:
        return
    name, digest = image.split("@")
    assert len(digest) == 71 and digest.startswith("sha256:") and set(digest[7:]) <= set("0123456789abcdef")
    assert name[0] != "-" and "/" in name and not any(c.isspace() for c in name)


def test_python_and_container_exclude_each_other() -> None:
    document = in_container()
    document["engine"]["python"] = "/opt/engine/bin/python"
    assert "engine.python and engine.container are both set, and a rank runs one of them; take one out" in why(document)
    del document["engine"]["python"], document["engine"]["container"]
    assert "engine.python is missing; name the Python of the engine's environment, or an image" in why(document)


def test_a_path_that_podman_cannot_mount_is_refused_with_its_name() -> None:
    document = in_container()
    document["checkpoint"]["path"] = "/models/a,b"
    assert "checkpoint.path has a comma or a quote" in why(document)
    assert "'/tables/a,b' cannot be mounted" in why(in_container(mounts=["/tables/a,b"]))
    document = good()
    document["checkpoint"]["path"] = "/models/a,b"
    parse(json.dumps(document))


@pytest.mark.parametrize("gpu", ["all", "nvidia.com/gpu", "nvidia.com/gpu=", "--privileged", "/dev/nvidia0", "a/b=c d"])
def test_the_gpu_is_a_cdi_device(gpu: str) -> None:
    assert "engine.container.gpu" in why(in_container(gpu=gpu))
