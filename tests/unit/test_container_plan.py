"""The argv of `podman run`: a golden file that a person can read, and what must hold whatever the settings are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.rank.container import ENVIRONMENT, SECCOMP, environment_file, read_only
from dsv41_supervisor.rank.plan import Boot, LaunchPlan, launch_plan, report_dir
from dsv41_supervisor.settings import Settings, parse
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.launch_golden import DIRECTORY, write_plan
from tests.unit.test_container_settings import IMAGE, in_container
from tests.unit.test_launch_golden import BOOT, facts_of

GOLDEN = DIRECTORY / "container-tp3-rank1.plan"


def tp3(**container: Any) -> Settings:
    document = json.loads((DIRECTORY / "tp3.settings.json").read_text())
    del document["engine"]["python"]
    document["engine"]["container"] = {"image": IMAGE, **container}
    return parse(json.dumps(document))


def plan_of(settings: Settings, rank: int = 1) -> LaunchPlan:
    node = settings.fleet.by_rank(rank)
    return launch_plan(settings, node, BOOT, facts_of(settings, node))


def options(plan: LaunchPlan) -> tuple[list[str], list[str]]:
    """What podman is told before the image, and what the engine is after it."""
    at = plan.argv.index(IMAGE)
    return list(plan.argv[:at]), list(plan.argv[at + 1 :])


def test_podman_is_told_what_is_in_the_golden_file() -> None:
    """What the engine is told after the image is in the golden files of test_launch_golden.py, as without one."""
    podman, _ = options(plan_of(tp3()))
    text = write_plan(LaunchPlan(1, (*podman, IMAGE), {}, Path("/"), {}))
    if os.environ.get("DSV41_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_the_engine_is_told_the_same_as_without_a_container() -> None:
    document = json.loads((DIRECTORY / "tp3.settings.json").read_text())
    bare, inside = plan_of(parse(json.dumps(document))), plan_of(tp3())
    assert options(inside)[1] == list(bare.argv[1:])
    assert inside.environment == bare.environment
    assert (bare.container, bare.argv[0]) == (None, document["engine"]["python"])


def test_the_plan_survives_the_wire() -> None:
    for plan in (plan_of(tp3()), launch_plan(parse(json.dumps(in_container())), "spark1", BOOT)):
        assert LaunchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_every_boot_has_another_name_and_every_node_its_label() -> None:
    settings = parse(json.dumps(in_container()))
    first, second = (launch_plan(settings, "spark2", Boot("x", n, 20000)) for n in (6, 7))
    assert first.container is not None and second.container is not None
    assert (first.container.name, second.container.name) == ("dsv41-lab-spark2-rank1-g6", "dsv41-lab-spark2-rank1-g7")
    assert first.container.node == second.container.node == "lab/spark2"


def test_devices_are_given_only_where_there_are_any() -> None:
    assert "--device" not in options(launch_plan(parse(json.dumps(in_container())), "spark1", BOOT))[0]
    argv, _ = options(plan_of(tp3(gpu="nvidia.com/gpu=0")))
    assert [argv[i + 1] for i, a in enumerate(argv) if a == "--device"] == ["nvidia.com/gpu=0", "/dev/infiniband"]


def test_only_reports_and_the_cache_can_be_written_to() -> None:
    settings = tp3(mounts=["/srv/tables"])
    mounts = [a for a in plan_of(settings).argv if a.startswith("type=bind")]
    directory = report_dir(settings, settings.fleet.by_rank(1))
    writable = [m.split("destination=")[1] for m in mounts if not m.endswith(",readonly")]
    assert writable == [str(directory), "/var/cache/dsv41/engine"]
    assert f"type=bind,source={directory}/plan.json,destination={directory}/plan.json,readonly" in mounts
    assert "/srv/tables" in read_only(settings, settings.fleet.by_rank(1))


def test_an_engine_gets_no_way_to_more_rights() -> None:
    podman, _ = options(plan_of(tp3()))
    for flag in ("--cap-drop=all", "--security-opt=no-new-privileges", "--pull=never"):
        assert flag in podman
    assert not [a for a in podman if a.startswith(("--privileged", "--cap-add", "--pid", "--cgroupns", "--replace"))]
    denied = {name for rule in json.loads(SECCOMP.read_text())["syscalls"] for name in rule["names"]}
    assert {"mount", "bpf", "setns", "unshare", "kexec_load", "init_module"} <= denied
    assert not denied & {"io_uring_setup", "io_uring_enter", "mbind", "prctl", "clone", "clone3", "ioctl", "mlock"}


# Letters that the argv has nowhere else, so that a value cannot be found in it by chance.
SECRETS = st.text(st.characters(min_codepoint=0x400, max_codepoint=0x4FF), min_size=4, max_size=12)


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{0,8}_TOKEN", fullmatch=True), SECRETS, min_size=1, max_size=4))
def test_no_value_of_a_variable_is_in_the_argv(variables: dict[str, str]) -> None:
    document = in_container()
    document["engine"]["environment"] = variables
    plan = launch_plan(parse(json.dumps(document)), "spark1", BOOT)
    assert variables.items() <= plan.environment.items()
    assert not [v for v in variables.values() if any(v in a for a in plan.argv)]
    directory = plan.document_path.parent
    assert plan.argv[plan.argv.index("--env-file") + 1] == str(directory / ENVIRONMENT)


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{0,12}", fullmatch=True), st.text(max_size=40), max_size=5))
def test_the_environment_file_holds_each_value_as_it_is_or_refuses_it(variables: dict[str, str]) -> None:
    try:
        text = environment_file(variables)
    except ValueError as error:
        names = [n for n, v in variables.items() if {"\n", "\r", "\0"} & set(v)]
        assert str(error).split()[3] in names
        return
    # As podman reads it (pkg/env/env.go): line by line, the name up to the first "=", the rest as it is.
    assert dict(line.split("=", 1) for line in text.split("\n")[:-1]) == variables


def test_the_profile_of_system_calls_is_shipped(repo_root: Path) -> None:
    assert SECCOMP.exists()
    assert "rank/*.json" in (repo_root / "supervisor/pyproject.toml").read_text()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_ranks_differ_only_in_what_is_theirs(rank: int) -> None:
    settings = tp3()
    node, first = settings.fleet.by_rank(rank), settings.fleet.by_rank(0)
    mine = [a.replace(node, "NODE").replace(f"rank{rank}", "RANK").replace(f"rank-{rank}", "RANK")
            for a in options(plan_of(settings, rank))[0]]  # fmt: skip
    its = [a.replace(first, "NODE").replace("rank0", "RANK").replace("rank-0", "RANK")
           for a in options(plan_of(settings, 0))[0]]  # fmt: skip
    assert mine == its
