"""Fault: a state file of a supervisor is cut short, garbage, of another format or another node's, or no file at all.

What the user sees: the supervisor starts, the fleet is down with nothing of the damage trusted, and `dsv41 up` serves.
What the operator sees: `… set aside as ….unreadable` (MESSAGE_ID STATE_SET_ASIDE) naming the file and what is wrong.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.journal import Event

from tests.harness.faults import Fault
from tests.harness.fleet import running_fleet

BOOT = {"id": "20990101T000000-00000000", "generation": 7, "rendezvous_port": 20007}
NODE = {"format": 1, "fleet": "demo", "node": "spark1", "highest_generation": 7, "boot": BOOT, "rank_state": "ready"}
FLEET = {"format": 1, "wanted": "up", "generation": 7, "boot": BOOT, "recoveries": [], "last_boot_s": 1.0}
UNIT = {"pid": 1, "started": 0}
GOOD: dict[str, dict[str, Any]] = {"node.json": NODE, "fleet.json": FLEET, "unit-dsv41-rank@0.json": UNIT}


def _cut(good: dict[str, Any]) -> bytes:
    return json.dumps(good).encode()[:-9]


DAMAGE = {
    "cut short": (_cut, r"is unreadable \("),
    "empty": (lambda good: b"", r"is unreadable \("),
    "not text": (lambda good: bytes(range(256)), r"is unreadable \("),
    "a list": (lambda good: b"[1, 2]", r"not a JSON object"),
    "nested without an end": (lambda good: b"[" * 200_000, r"is unreadable \("),
    "of another shape": (lambda good: json.dumps({"boot": 7, "pid": "x"}).encode(), r"has another shape"),
    "too large": (lambda good: b" " * (5 << 20) + b"{}", r"5242882 bytes, expected"),
}


def _places(fleet: Any) -> dict[str, Path]:
    state, run = fleet.settings.state_dir("spark1"), fleet.settings.run_dir("spark1")
    return {name: (run / "units" if name.startswith("unit-") else state) / name for name in GOOD}


async def _start_on(fleet: Any, contents: dict[str, bytes | None]) -> None:
    """The supervisor ends and another one finds these files."""
    await fleet.kill_supervisor("spark1")
    for name, path in _places(fleet).items():
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        if (content := contents.get(name)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    await fleet.start_supervisor("spark1")
    await fleet.until_answering(lambda s: True, "the supervisor answers", 60)


async def test_damage_of_every_kind_in_every_file_is_set_aside_and_never_trusted(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as fleet:
        for what, (damage, said) in DAMAGE.items():
            fault = Fault(
                f"state files {what}",
                sees="down, nothing trusted; `up` serves",
                journal="… set aside as ….unreadable (STATE_SET_ASIDE)",
            )
            await _start_on(fleet, {name: damage(good) for name, good in GOOD.items()})
            for name, path in _places(fleet).items():
                await fleet.said("spark1", rf"{path.name}.*{said}.*set aside as .*unreadable", Event.STATE_SET_ASIDE)
                # Both daemons' own records are begun anew at once, the fleet's with what people must know of it.
                assert not path.exists() or name in ("node.json", "fleet.json"), (what, name)
                aside = path.with_name(path.name + ".unreadable")
                assert aside.read_bytes() == damage(GOOD[name]), (what, name)
                aside.unlink()
            status = await fleet.status()
            assert (status["state"], status["boot"], status["wanted"]) == ("down", None, "down"), what
            assert "the fleet's record was unreadable and was set aside" in status["set_aside"], what
            fault.report()
        assert (await fleet.up())["state"] == "serving"


@pytest.mark.parametrize("key", ["format", "fleet", "node"])
async def test_a_file_of_another_format_fleet_or_node_is_named_with_both_values(
    tmp_path: Path, demo_checkpoint: Path, key: str
) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as fleet:
        foreign = NODE | {key: 2 if key == "format" else "another"}
        await _start_on(fleet, {"node.json": json.dumps(foreign).encode()})
        value = "2, expected 1" if key == "format" else f"'another', expected '{NODE[key]}'"
        await fleet.said("spark1", rf"node.json has {key} {value}; set aside", Event.STATE_SET_ASIDE)
        status = await fleet.status()
        assert status["nodes"]["spark1"]["highest_generation"] == 0
        assert status["nodes"]["spark1"]["boot"] is None


async def test_a_pipe_or_a_directory_in_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as fleet:
        await fleet.kill_supervisor("spark1")
        places = _places(fleet)
        for name in ("node.json", "fleet.json"):
            places[name].unlink(missing_ok=True)
        os.mkfifo(places["node.json"])
        places["fleet.json"].mkdir()
        await fleet.start_supervisor("spark1")
        await fleet.until_answering(lambda s: s["state"] == "down", "the supervisor answers", 60)
        await fleet.said("spark1", r"node.json is unreadable \(not a file\)", Event.STATE_SET_ASIDE)
        await fleet.said("spark1", r"fleet.json is unreadable \(not a file\)", Event.STATE_SET_ASIDE)
        assert (await fleet.up())["state"] == "serving"


async def test_a_good_file_is_kept(tmp_path: Path, demo_checkpoint: Path) -> None:
    """What the tests above take for damage must not be everything."""
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as fleet:
        await _start_on(fleet, {"node.json": json.dumps(NODE | {"boot": None}).encode()})
        status = await fleet.status()
        assert status["nodes"]["spark1"]["highest_generation"] == 7
        assert "set aside" not in fleet.log("spark1")
