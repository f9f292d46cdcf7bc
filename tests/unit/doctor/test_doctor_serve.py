"""Both ends of an RDMA write with a stand-in for perftest, which needs devices: the order of things, not a speed.

Fake: ib_write_bw, which prints what the real one prints, and the RDMA devices in a made-up /sys. `not run on GB10`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from dsv41_supervisor.doctor.deep import serve
from dsv41_supervisor.doctor.deep.serve import DeepServer
from dsv41_supervisor.fabric.facts import NodeFacts
from dsv41_supervisor.fabric.roots import Roots
from dsv41_supervisor.settings import Settings, parse
from dsv41_supervisor.units import UnitState, UnitStatus

from tests.unit.doctor.test_doctor_rdma import output
from tests.unit.fleets import good

ADDRESSES = {"spark1": "127.0.12.1", "spark2": "127.0.12.2"}


def rails_on_loopback() -> Settings:
    document = good()
    document["engine"]["device"] = "cuda"
    document["adapters"] = {"tp_pad": {}}
    for name, node in document["fleet"]["nodes"].items():
        for number, (rail, end) in enumerate(node["rails"].items()):
            end["rdma_device"] = f"rocep1s0f{number}"
            if rail == "ab":
                end["address"] = f"{ADDRESSES[name]}/30"
    return parse(json.dumps(document))


def gid_table(sys: Path, device: str, address: str, index: int, kind: str = "RoCE v2") -> None:
    port = sys / "class/infiniband" / device / "ports/1"
    a, b, c, d = map(int, address.split("."))
    for path, text in {
        "state": "4: ACTIVE", "link_layer": "Ethernet",
        f"gids/{index}": f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}",
        f"gid_attrs/types/{index}": kind, f"gid_attrs/ndevs/{index}": "rail0",
    }.items():  # fmt: skip
        (port / path).parent.mkdir(parents=True, exist_ok=True)
        (port / path).write_text(text + "\n")


class NoUnits:
    """A node on which no unit can be started."""

    async def start(self, unit: str) -> None:
        raise OSError(2, "there is no such unit")

    async def stop(self, unit: str, timeout_s: float) -> UnitStatus:
        return UnitStatus(unit, UnitState.INACTIVE)


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, DeepServer]:
    settings = rails_on_loopback()
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (tmp_path / "said").write_text(output(97.1))
    program = bin_dir / "ib_write_bw"
    # The writing end is the one that is given an address.
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
        f'for last; do :; done\ncase "$last" in 127.*) cat {tmp_path}/said;; *) sleep 1;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_dir}:/usr/bin:/bin")
    found = {}
    for node, index in (("spark1", 3), ("spark2", 5)):
        sys = tmp_path / node / "sys"
        gid_table(sys, "rocep1s0f0", ADDRESSES[node], index)

        async def facts(node: str = node) -> NodeFacts:
            return NodeFacts(node=node)

        found[node] = DeepServer(settings, node, NoUnits(), lambda: "absent", facts, Roots(sys=sys))  # type: ignore[arg-type]
    return found


async def test_each_end_of_a_write_uses_its_own_gid_index(ends: dict[str, DeepServer], tmp_path: Path) -> None:
    door = await ends["spark2"].listen("rdma-write", "ab", 30)
    result = await ends["spark1"].send("rdma-write", "ab", "spark2", door["port"], "", 30)
    async with asyncio.timeout(30):
        while ends["spark2"]._servers:
            await asyncio.sleep(0.05)
    assert (result.figure, result.verdict, result.problem) == (97.1, "good", None)
    calls = (tmp_path / "calls").read_text().splitlines()
    listening = next(call for call in calls if not call.endswith(ADDRESSES["spark2"]))
    writing = next(call for call in calls if call.endswith(ADDRESSES["spark2"]))
    assert f"-x 5 -p {door['port']}" in listening
    assert f"-x 3 -p {door['port']}" in writing


async def test_a_writing_end_that_is_too_early_tries_again(ends: dict[str, DeepServer], tmp_path: Path) -> None:
    (tmp_path / "said").write_text("Couldn't connect to 127.0.12.2:18515\n")

    async def later() -> None:
        async with asyncio.timeout(30):
            while not (tmp_path / "calls").exists():
                await asyncio.sleep(0.02)
        # At once: the stand-in may be reading it.
        (tmp_path / "next").write_text(output(13.0))
        (tmp_path / "next").replace(tmp_path / "said")

    result, _ = await asyncio.gather(ends["spark1"].send("rdma-write", "ab", "spark2", 18515, "", 60), later())
    assert (result.figure, result.verdict) == (13.0, "power-state")


async def test_a_gid_of_the_wrong_kind_is_refused_before_anything_runs(
    ends: dict[str, DeepServer], tmp_path: Path
) -> None:
    gid_table(tmp_path / "spark1/sys", "rocep1s0f0", ADDRESSES["spark1"], 3, kind="IB/RoCE v1")
    result = await ends["spark1"].send("rdma-write", "ab", "spark2", 18515, "", 30)
    assert result.problem == "rocep1s0f0 has no RoCE v2 GID for 127.0.12.1"
    assert result.verdict == "failed"
    assert not (tmp_path / "calls").exists()


class Runs(NoUnits):
    """A node whose probe runs until it is stopped."""

    def __init__(self) -> None:
        self.running = False

    async def start(self, unit: str) -> None:
        self.running = True

    async def status(self, unit: str) -> UnitStatus:
        return UnitStatus(unit, UnitState.ACTIVE if self.running else UnitState.INACTIVE)

    async def stop(self, unit: str, timeout_s: float) -> UnitStatus:
        self.running = False
        return await super().stop(unit, timeout_s)


async def test_a_program_ends_when_who_asked_for_it_is_gone(tmp_path: Path) -> None:
    document = good()
    document["supervisor"] = {**document.get("supervisor", {}), "run_dir": str(tmp_path / "{node}")}
    settings, units = parse(json.dumps(document)), Runs()

    async def facts() -> NodeFacts:
        return NodeFacts(node="spark1")

    end = DeepServer(settings, "spark1", units, lambda: "absent", facts)
    async with asyncio.timeout(30):
        ran = await end.run_program("collective", 29500, 100, lambda: units.running)
    assert (ran.skipped, ran.problem, units.running) == ("who asked for it has left", None, False)
    assert list((tmp_path / "spark1/probe").iterdir()) == []


async def test_a_rank_that_runs_is_not_disturbed(ends: dict[str, DeepServer], monkeypatch: pytest.MonkeyPatch) -> None:
    busy = ends["spark1"]
    monkeypatch.setattr(busy, "_rank_state", lambda: "ready")
    assert "run dsv41 down first" in (await busy.listen("rdma-write", "ab", 30))["skipped"]
    assert "run dsv41 down first" in ((await busy.run_program("collective", 20001, 5)).skipped or "")
    # Small things are allowed beside it.
    assert "port" in await busy.listen("tcp-echo", "ab", 1)
    busy.close()


async def test_a_node_without_perftest_says_so(ends: dict[str, DeepServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert (await ends["spark1"].listen("rdma-write", "ab", 30))["skipped"] == (
        "there is no ib_write_bw on spark1 (package perftest)"
    )


async def test_doors_are_bounded_in_number_and_close_when_the_supervisor_ends(
    ends: dict[str, DeepServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "MAX_LISTENERS", 2)
    end = ends["spark1"]
    for _ in range(2):
        assert "token" in await end.listen("tcp-echo", "ab", 60)
    with pytest.raises(ValueError, match="2 listeners are open"):
        await end.listen("tcp-echo", "ab", 60)
    end.close()
    assert "token" in await end.listen("tcp-echo", "ab", 60)
    end.close()


async def test_an_unknown_test_or_rail_is_refused(ends: dict[str, DeepServer]) -> None:
    with pytest.raises(ValueError, match="nothing to listen for"):
        await ends["spark1"].listen("warm-up", "ab", 5)
    with pytest.raises(KeyError):
        await ends["spark1"].listen("tcp-echo", "nowhere", 5)
