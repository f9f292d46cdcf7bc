"""What the head remembers over a restart: an order that cannot be written down is refused, or carried out and said."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dsv41_supervisor.commands.fleet import rows
from dsv41_supervisor.commands.status import _show
from dsv41_supervisor.errors import Dsv41Error, Exit
from dsv41_supervisor.fleet import orders as orders_module
from dsv41_supervisor.fleet.controller import FleetController
from dsv41_supervisor.fleet.decisions import Decisions
from dsv41_supervisor.fleet.orders import FleetState
from dsv41_supervisor.fleet.record import SPARE_BYTES, FleetRecord
from dsv41_supervisor.node import NodeAgent
from dsv41_supervisor.rank.plan import Boot
from dsv41_supervisor.settings import parse
from dsv41_supervisor.units.process import ProcessUnits, UnitDefinition

from tests.harness.drive import fill, small_drive
from tests.unit.fleets import with_value


def _no_unit(name: str) -> UnitDefinition:
    raise AssertionError(f"{name} was started")


def _controller(directory: Path) -> FleetController:
    raw = with_value("supervisor.state_dir", str(directory))
    raw["fleet"]["nodes"]["spark1"]["management_address"] = "127.0.0.1"
    settings = parse(json.dumps(raw))
    agent = NodeAgent(settings, "spark1", ProcessUnits(_no_unit, directory.parent / "run"))
    return FleetController(settings, agent, "a-key-of-the-fleet-0123456789abcdef")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "state"
    where.mkdir()
    yield where


def _break(directory: Path) -> None:
    """Nothing can be written there: a file is in the directory's place. Root could write into any mode."""
    shutil.rmtree(directory)
    directory.write_text("")


def _mend(directory: Path) -> None:
    directory.unlink()
    directory.mkdir()


async def test_an_order_that_only_counts_over_restarts_is_refused_when_it_cannot_be_written(directory: Path) -> None:
    head = _controller(directory)
    _break(directory)
    for order, what in ((head.up, "up"), (head.pause, "pause")):
        with pytest.raises(Dsv41Error) as refused:
            order("a test")
        (refusal,) = refused.value.refusals
        assert refusal.what.startswith(f"{what} is refused: cannot write {directory}/fleet.json: "), refusal.what
        assert refusal.hint.startswith("Free some space")
        assert refused.value.exit_status is Exit.UNAVAILABLE
    assert (head.record.wanted_up, head.record.paused_by, head.state) == (False, None, FleetState.DOWN)
    # What is on disk and what is known here is the same again.
    assert head.unwritten is None
    _mend(directory)
    assert head.pause("a test") == "recovery is paused"
    _break(directory)
    with pytest.raises(Dsv41Error, match="resume is refused"):
        head.resume("a test")
    assert head.record.paused_by == "a test"
    await head.close()


async def test_down_is_carried_out_said_not_to_be_on_disk_and_written_later(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders_module, "WRITE_AGAIN_S", 0.02)
    head = _controller(directory)
    head.up("a test")
    head.state = FleetState.SERVING
    _break(directory)
    assert head.down("a test") == "stopping"
    assert head.record.wanted_up is False
    assert head.unwritten is not None
    assert head.unwritten.startswith(f"what was ordered last (wanted: down) is not on disk: cannot write {directory}")
    writing = asyncio.ensure_future(head.write_again())
    await asyncio.sleep(0.1)
    assert head.unwritten is not None
    seen = head.changes.version
    _mend(directory)
    assert await head.changes.newer_than(seen, 30)
    assert head.unwritten is None
    assert FleetRecord.load(directory).wanted_up is False
    writing.cancel()
    await head.close()


async def test_no_boot_begins_whose_number_cannot_be_written_down(directory: Path) -> None:
    head = _controller(directory)
    crew = head.crew
    crew.sequence = replace(crew.sequence, empty=frozenset(crew.sequence.nodes))
    _break(directory)
    with pytest.raises(Dsv41Error, match="no boot can begin, because its number cannot be written down"):
        crew.open_boot()
    assert (crew.sequence.boot, crew.record.boot, crew.record.generation) == (None, None, 0)
    await head.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_what_is_kept_free_for_the_record_lasts_on_a_drive_that_others_fill(tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    with small_drive(drive):
        record = FleetRecord(drive)
        record.save()
        spare = drive / "fleet.json.spare"
        assert spare.stat().st_blocks * 512 >= SPARE_BYTES
        fill(drive)
        for generation in range(5):
            record.generation, record.wanted_up = generation, bool(generation % 2)
            record.save()
            assert record.unwritten is None
            assert FleetRecord.load(drive).generation == generation
        # The one thing that takes it away.
        spare.unlink()
        fill(drive, "more")
        record.wanted_up = True
        record.save()
        assert record.unwritten == f"cannot write {drive}/fleet.json: {os.strerror(errno.ENOSPC)}"
        assert FleetRecord.load(drive).wanted_up is False
        assert sorted(p.name for p in drive.iterdir()) == ["filler", "fleet.json", "more"]


# -- a record that cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format": 99}'])
def test_a_record_that_cannot_be_read_is_told_until_the_next_boot(directory: Path, content: str) -> None:
    (directory / "fleet.json").write_text(content)
    record = FleetRecord.load(directory)
    assert record.set_aside is not None
    assert record.set_aside.startswith(
        f"the fleet's record was unreadable and was set aside ({directory}/fleet.json.unreadable)"
    )
    assert (directory / "fleet.json.unreadable").read_text() == content
    (decision,) = Decisions(directory).last(20)
    assert decision["why"] == record.set_aside
    # Another restart does not forget it, and does not decide it again.
    assert FleetRecord.load(directory).set_aside == record.set_aside
    assert len(Decisions(directory).last(20)) == 1
    record.boot = Boot("b1", 7, 41000)
    record.save()
    assert FleetRecord.load(directory).set_aside is None


async def test_a_record_that_cannot_be_read_is_in_the_status(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _controller(directory).record.set_aside is None
    (directory / "fleet.json").write_text("{")
    head = _controller(directory)
    try:
        status = await head.status()
    finally:
        await head.close()
    _show(status, rows(status, head.settings.fleet), head.settings)
    assert "ranks of an earlier boot may run until their lease ends; dsv41 up starts cleanly" in capsys.readouterr().out
