"""Rules on the Nix files that need no Nix."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from nix_runner import REPOSITORY
from test_eval_flake import nix_files


@pytest.mark.parametrize("name", nix_files())
def test_file_is_tidy(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    assert "\t" not in text
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    assert "with lib;" not in text, "names must say where they come from"


def blocks(text: str, opening: str) -> list[str]:
    """Each `opening` with all up to the brace that closes it."""
    found = []
    for match in re.finditer(re.escape(opening), text):
        depth = 1
        end = match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        found.append(text[match.start() : end])
    return found


@pytest.mark.parametrize("name", [name for name in nix_files() if name.startswith("modules/")])
def test_every_option_has_a_type_and_a_description(name: str) -> None:
    for block in blocks((REPOSITORY / name).read_text(), "mkOption {"):
        assert re.search(r"\btype = ", block), block
        assert re.search(r"\bdescription = ", block), block


def test_lock_pins_what_the_flake_asks_for() -> None:
    lock = json.loads((REPOSITORY / "flake.lock").read_text())
    nixpkgs = lock["nodes"]["nixpkgs"]
    text = (REPOSITORY / "flake.nix").read_text()
    owner, repo, ref = re.search(r'nixpkgs\.url = "github:(\w+)/(\w+)/([\w.-]+)"', text).groups()
    assert nixpkgs["original"] == {"type": "github", "owner": owner, "repo": repo, "ref": ref}
    assert set(lock["nodes"]) == {"root", "nixpkgs", "nixos-dgx-spark"}
    assert lock["nodes"]["nixos-dgx-spark"]["flake"] is False
    for name in ("nixpkgs", "nixos-dgx-spark"):
        locked = lock["nodes"][name]["locked"]
        assert re.fullmatch(r"[0-9a-f]{40}", locked["rev"])
        assert re.fullmatch(r"sha256-[A-Za-z0-9+/]{43}=", locked["narHash"])


@pytest.mark.parametrize("name", ["supervisor", "adapters", "rowstore"])
def test_derivation_says_what_pyproject_says(name: str) -> None:
    project = tomllib.loads((REPOSITORY / name / "pyproject.toml").read_text())
    text = (REPOSITORY / f"nix/{name}.nix").read_text()

    def names(requirements: list[str]) -> set[str]:
        return {re.match(r"[A-Za-z0-9_-]+", r)[0].lower().removeprefix("dsv41-") for r in requirements}

    def listed(attribute: str) -> set[str]:
        match = re.search(rf"\b{attribute} = \[([^\]]*)\]", text)
        return set(match[1].split()) if match else set()

    assert f'pname = "{project["project"]["name"]}"' in text
    assert f'version = "{project["project"]["version"]}"' in text
    assert listed("build-system") == names(project["build-system"]["requires"])
    # On a node systemd is there, so its extra is no extra.
    extras = names(project["project"].get("optional-dependencies", {}).get("systemd", []))
    assert listed("dependencies") == names(project["project"]["dependencies"]) | extras
