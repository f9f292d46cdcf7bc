"""A fleet whose ranks are real containers of a real podman, with the scripted engine inside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dsv41_supervisor.rank.plan import report_dir
from dsv41_supervisor.rank.process import ENGINE_NAMES
from dsv41_supervisor.units.procfs import inner_pids, named_descendants, read

from tests.harness.fleet import FleetUnderTest, gone, kill, running_fleet
from tests.harness.podman import Podman


def scheduler(fleet: FleetUnderTest, rank: int) -> int:
    (pid,) = [p for p, name in named_descendants(fleet.rank_process(rank), ENGINE_NAMES) if "schedul" in name]
    return pid


def first_process(fleet: FleetUnderTest, rank: int) -> int:
    return inner_pids(fleet.rank_process(rank))[1]


async def test_containers_serve_are_lost_come_back_and_go(
    tmp_path: Path, demo_checkpoint: Path, podman: Podman
) -> None:
    def change(raw: dict[str, Any]) -> None:
        podman.use(raw, tmp_path)
        raw["recovery"] |= {"max_recoveries": 20, "backoff_s": 0}

    async with running_fleet(tmp_path, demo_checkpoint, change=change) as fleet:
        status = await fleet.up(120)
        assert status["state"] == "serving", status["refusals"]
        names = podman.containers()
        assert len(names) == 3
        assert (await fleet.chat()).completion_tokens == 8

        for rank in range(3):
            main, engine = fleet.rank_process(rank), scheduler(fleet, rank)
            # The unit's limits, scores and kills are the engine's: it is in its cgroup, and below its main process.
            assert Path(f"/proc/{engine}/cgroup").read_text() == Path(f"/proc/{main}/cgroup").read_text()
            assert Path(f"/proc/{engine}/oom_score_adj").read_text() == Path(f"/proc/{main}/oom_score_adj").read_text()
            facts = dict(line.split(":\t", 1) for line in Path(f"/proc/{engine}/status").read_text().splitlines())
            assert int(facts["CapBnd"], 16) == 0 and facts["NoNewPrivs"] == "1" and facts["Seccomp"] == "2"
            node = fleet.settings.fleet.by_rank(rank)
            environment = report_dir(fleet.settings, node) / "environment"
            assert environment.stat().st_mode & 0o777 == 0o600

        for which in (scheduler, first_process, FleetUnderTest.rank_process):
            before = fleet.rank_process(1)
            victim = which(fleet, 1)
            kill(victim)
            await fleet.until(lambda s: s["state"] == "recovering", f"the loss of {which.__name__} was noticed", 60)
            status = await fleet.until(lambda s: s["state"] in ("serving", "failed"), "that it came back", 120)
            assert status["state"] == "serving", status["refusals"]
            assert fleet.rank_process(1) != before
            assert len(podman.containers()) == 3 and not set(podman.containers()) & set(names), which.__name__
            names = podman.containers()

        engines = [scheduler(fleet, rank) for rank in range(3)]
        code, text = await fleet.dsv41("down")
        assert code == 0, text
        for pid in engines:
            await gone(pid, 1)
        assert podman.containers() == []
        assert not [n for n in fleet.settings.fleet.nodes if (report_dir(fleet.settings, n) / "environment").exists()]


def leave(podman: Podman, fleet: FleetUnderTest, rank: int, name: str) -> int:
    """As after a kill that nobody of ours saw: a container runs on, and its rank is no more. Gives its process."""
    node = fleet.settings.fleet.by_rank(rank)
    podman(
        "run", "--detach", "--network=host", "--cgroups=disabled", "--name", name, "--ulimit", "nofile=1024:1024",
        "--label", f"dsv41.node={fleet.settings.fleet.name}/{node}", "--label", f"dsv41.holder={os.getpid()}-1",
        "--volume", "/usr:/usr:ro", podman.image, "/usr/bin/sleep", "600",
    )  # fmt: skip
    pid = int(podman("inspect", "--format", "{{.State.Pid}}", name))
    assert read(pid) is not None
    return pid


async def test_a_container_whose_rank_is_gone_is_removed_and_named_when_that_fails(
    tmp_path: Path, demo_checkpoint: Path, podman: Podman
) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, change=lambda raw: podman.use(raw, tmp_path)) as fleet:
        pid = leave(podman, fleet, 2, "dsv41-stale")
        status = await fleet.up(120)
        assert status["state"] == "serving", status["refusals"]
        await gone(pid, 10)
        assert "dsv41-stale" not in podman.containers() and len(podman.containers()) == 3

        pid = leave(podman, fleet, 1, "dsv41-stubborn")
        podman.fail_to_remove(True)
        try:
            code, text = await fleet.dsv41("down")
        finally:
            podman.fail_to_remove(False)
        assert code != 0
        assert "the container dsv41-stubborn (" in text and "podman rm --force dsv41-stubborn" in text
        await gone(pid, 10)
        code, text = await fleet.dsv41("down")
        assert code == 0, text
        assert podman.containers() == []


async def test_what_a_rank_lacks_is_refused_before_the_boot_and_said_by_the_doctor(
    tmp_path: Path, demo_checkpoint: Path, podman: Podman
) -> None:
    absent = f"{podman.image[:-64]}{'0' * 64}"

    def change(raw: dict[str, Any]) -> None:
        podman.use(raw, tmp_path)
        raw["engine"]["container"]["image"] = absent
        raw["engine"]["container"]["mounts"].append(str(tmp_path / "tables"))

    async with running_fleet(tmp_path, demo_checkpoint, change=change) as fleet:
        status = await fleet.up(120)
        assert status["state"] == "failed"
        said = "\n".join(r["what"] + " " + r["hint"] for r in status["refusals"])
        for node in fleet.settings.fleet.nodes:
            assert f"Run podman pull {absent} on {node}" in said
            assert f"Put it on {node}" in said
        code, text = await fleet.dsv41("doctor", "--json", "--timeout", "20")
        assert code == 69
        assert "container-image" in text and "container-mounts" in text
        assert podman.containers() == []
        code, text = await fleet.dsv41("container", "--node", "spark1")
        assert code == 69 and f"refusal: spark1: the engine's image {absent} is not there." in text
