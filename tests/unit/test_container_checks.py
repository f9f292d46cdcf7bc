"""What a rank in a container needs on its node: a fault is one sentence with its next step, and all come together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dsv41_supervisor.checks import CONTAINER, all_checks
from dsv41_supervisor.doctor.facts import ContainerFacts
from dsv41_supervisor.rank.cdi import cdi_devices
from dsv41_supervisor.rank.container_look import UnitLook, look
from dsv41_supervisor.rank.container_report import check_container
from dsv41_supervisor.units import UnitState, UnitStatus
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_container_plan import tp3
from tests.unit.test_container_settings import IMAGE

GOOD = ContainerFacts(version="4.9.3", image=True, devices=("nvidia.com/gpu=0", "nvidia.com/gpu=all"))
FAULTS = {
    "container-podman": [
        ({"problem": "podman: No such file or directory", "version": None, "image": None},
         "podman cannot be asked: podman: No such file or directory. Install podman, crun and catatonit on spark1"),
        ({"version": "3.4.4"}, "podman is 3.4.4, expected 4.1 or newer"),
        ({"version": "one"}, "podman is one, expected 4.1 or newer"),
    ],
    "container-image": [
        ({"image": False}, f"the engine's image {IMAGE} is not there. Run podman pull {IMAGE} on spark1"),
    ],
    "container-device": [
        ({"devices": ()}, "no CDI spec in /etc/cdi or /var/run/cdi has nvidia.com/gpu=all; no spec lists a device. Run "
         "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml on spark1"),
        ({"devices": ("amd.com/gpu=0",)}, "has nvidia.com/gpu=all; listed are amd.com/gpu=0."),
        ({"devices": (), "unread_specs": ("/etc/cdi/a.yaml: Permission denied",)},
         "(/etc/cdi/a.yaml: Permission denied)"),
    ],
    "container-mounts": [
        ({"missing": ("/srv/tables",)},
         "/srv/tables is to be given to the container, and is not there. Put it on spark1"),
        ({"missing": ("/dev/infiniband",)}, "Load the RDMA modules on spark1"),
    ],
    "container-left": [({"left": ("dsv41-x (running)",)}, "Run podman rm --force dsv41-x on spark1")],
}  # fmt: skip


def said(facts: ContainerFacts) -> list[tuple[str, str]]:
    return [(f.check, str(f)) for f in check_container(tp3(), "spark1", facts).findings]


def test_a_node_that_has_everything_has_no_finding() -> None:
    assert said(GOOD) == []
    assert said(GOOD.model_copy(update={"version": "4.1.0"})) == []
    assert said(GOOD.model_copy(update={"version": "5.8.2-rc1"})) == []


@pytest.mark.parametrize(("check", "changes", "sentence"), [(c, *fault) for c, fs in FAULTS.items() for fault in fs])
def test_one_fault_is_one_finding_with_its_next_step(check: str, changes: dict, sentence: str) -> None:  # type: ignore[type-arg]
    ((found, text),) = said(GOOD.model_copy(update=changes))
    assert found == check and sentence in text


def test_every_check_has_a_fault_here() -> None:
    assert {c.id for c in all_checks() if c.kind == CONTAINER} == set(FAULTS)


def test_all_that_is_wrong_is_refused_together_and_can_be_overridden_by_name() -> None:
    facts = ContainerFacts(version="4.9.3", image=False, devices=(), missing=("/srv/tables",))
    refusals = check_container(tp3(), "spark1", facts).refusals
    assert [r.check for r in refusals] == ["container-image", "container-device", "container-mounts"]
    assert all(r.hint and r.node == "spark1" and r.rank == 0 for r in refusals)
    passed = check_container(tp3(), "spark1", facts, ["container-device"]).refusals
    assert [r.check for r in passed] == ["container-image", "container-mounts"]


async def test_a_podman_that_is_not_there_is_said(tmp_path: Path) -> None:
    facts = await look(tp3(podman=str(tmp_path / "podman"), mounts=[str(tmp_path), str(tmp_path / "gone")]), "spark1")
    assert facts.problem == f"{tmp_path}/podman: No such file or directory"
    assert str(tmp_path / "gone") in facts.missing and str(tmp_path) not in facts.missing


# -- CDI ------------------------------------------------------------------------------------------------------------

# As `nvidia-ctk cdi generate` writes it, cut short; indentation of older and newer versions.
YAML = """---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
{i}- name: "0"
{i}  containerEdits:
{i}    deviceNodes:
{i}    - path: /dev/nvidia0
{i}      name: not-a-device
{i}- containerEdits:
{i}    deviceNodes:
{i}    - path: /dev/nvidia0
{i}  name: GPU-4c3a:1
{i}- containerEdits: {{}}
{i}  name: all
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - hookName: createContainer
    name: also-none
"""
NAMES = ("nvidia.com/gpu=0", "nvidia.com/gpu=GPU-4c3a:1", "nvidia.com/gpu=all")


@pytest.mark.parametrize("indent", ["", "  ", "    "])
def test_devices_of_a_spec_of_nvidia_ctk_are_found(tmp_path: Path, indent: str) -> None:
    (tmp_path / "nvidia.yaml").write_text(YAML.format(i=indent))
    assert cdi_devices([tmp_path, tmp_path / "gone"]) == (NAMES, ())


def test_devices_of_a_json_spec_are_found(tmp_path: Path) -> None:
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": n.split("=")[1]} for n in NAMES]}
    (tmp_path / "nvidia-container-toolkit.json").write_text(json.dumps(spec, indent=2))
    (tmp_path / "notes.txt").write_text("no spec")
    assert cdi_devices([tmp_path]) == (NAMES, ())


@pytest.mark.parametrize(
    "text", ["devices: []\n", "kind: *anchor\n", "kind: a/b\ndevices: {name: x}\n", "{", "\xff", "[]"]
)
def test_a_spec_of_another_shape_is_said_and_not_guessed_at(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.yaml").write_text(text, encoding="latin-1")
    (tmp_path / "nvidia.yaml").write_text(YAML.format(i=""))
    devices, unread = cdi_devices([tmp_path])
    assert devices == NAMES
    assert unread == (f"{tmp_path}/odd.yaml has another shape than nvidia-ctk writes",)


@given(
    st.text(st.characters(codec="utf-8"), max_size=80)
    | st.lists(
        st.sampled_from(
            ["kind: a/b", "devices:", "- name: x", "  name: y", "- ", "  - name: z", "devices: []", "---", "#"]
        )
    ).map("\n".join)
)
def test_no_text_makes_the_reader_raise(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    directory = tmp_path_factory.mktemp("cdi")
    (directory / "any.yaml").write_text(text, encoding="utf-8")
    devices, unread = cdi_devices([directory])
    assert not (devices and unread)


# -- under systemd --------------------------------------------------------------------------------------------------


class _Unit:
    """The unit dsv41-container: writes its answer when it is started."""

    def __init__(self, answer: Path, text: str | None) -> None:
        self.answer, self.text = answer, text

    async def start(self, unit: str) -> None:
        assert unit == "dsv41-container"
        if self.text is not None:
            temporary = self.answer.with_suffix(".new")
            temporary.write_text(self.text)
            temporary.replace(self.answer)

    async def status(self, unit: str) -> UnitStatus:
        return UnitStatus(unit, UnitState.INACTIVE)


async def test_the_unit_is_asked_and_an_old_answer_is_none(tmp_path: Path) -> None:
    answer = tmp_path / "look.json"
    asked = UnitLook(_Unit(answer, GOOD.model_dump_json()), answer)  # type: ignore[arg-type]
    assert await asked() == GOOD
    assert await asked() == GOOD
    silent = UnitLook(_Unit(answer, None), answer)  # type: ignore[arg-type]
    assert (await silent()).problem == "the unit dsv41-container left no answer: journalctl -u dsv41-container"
    for text in ('{"version": 4}', "{"):
        assert (await UnitLook(_Unit(answer, text), answer)()).problem is not None  # type: ignore[arg-type]
