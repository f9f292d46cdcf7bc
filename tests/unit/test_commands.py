"""Exit statuses and words of the commands, against a running head: 0 done, 69 try again later, 78 refused."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dsv41_supervisor.__main__ import main
from dsv41_supervisor.errors import Exit

from tests.harness.fleet import FleetUnderTest, running_fleet


@pytest.fixture
async def fleet(tmp_path: Path, demo_checkpoint: Path) -> AsyncIterator[FleetUnderTest]:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True) as running:
        yield running


async def _dsv41(fleet: FleetUnderTest, *argv: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dsv41_supervisor", *argv, "--settings", str(fleet.demo.settings_path),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def test_a_day_of_a_fleet_on_the_command_line(fleet: FleetUnderTest, tmp_path: Path) -> None:
    status, out, _ = await _dsv41(fleet, "status")
    assert (status, "down" in out) == (Exit.UNAVAILABLE, True)
    status, _, err = await _dsv41(fleet, "up", "--timeout", "0.01")
    assert (status, "the fleet is still" in err) == (Exit.UNAVAILABLE, True)
    status, out, _ = await _dsv41(fleet, "up")
    assert (status, out.startswith("serving: boot ")) == (Exit.OK, True)
    status, out, _ = await _dsv41(fleet, "smoke")
    assert (status, "tokens/s" in out) == (Exit.OK, True)
    (tmp_path / "wrong").write_text("me:sk-wrong\n")
    status, _, err = await _dsv41(fleet, "smoke", "--key-file", str(tmp_path / "wrong"))
    assert (status, "the gateway answered 401" in err) == (Exit.REFUSED, True)
    status, out, _ = await _dsv41(fleet, "logs")
    assert (status, "scripted engine" in out) == (Exit.OK, True)
    status, _, err = await _dsv41(fleet, "logs", "--lines", "0")
    assert (status, "--lines is 0" in err) == (Exit.REFUSED, True)
    status, _, err = await _dsv41(fleet, "status", "--decisions", "0")
    assert (status, "--decisions is 0" in err) == (Exit.REFUSED, True)
    status, _, err = await _dsv41(fleet, "incident", "show", "nope")
    assert (status, err.strip().splitlines()[-1]) == (
        Exit.REFUSED, "dsv41: rank: there is no bundle nope. Run dsv41 incident list: it names those that are kept."
    )  # fmt: skip
    status, out, _ = await _dsv41(fleet, "down")
    assert (status, out) == (Exit.OK, "down: every rank is gone\n")


async def test_up_ends_when_someone_else_asks_for_down(fleet: FleetUnderTest) -> None:
    fleet.script({"all": {"phase_s": {"weights": 30}}})
    up = asyncio.ensure_future(_dsv41(fleet, "up"))
    await fleet.until(lambda s: s["state"] == "starting", "a boot is under way")
    second = await _started(fleet, "up")
    assert second.stderr is not None
    # Said when it is so, not when it serves.
    assert await asyncio.wait_for(second.stderr.readline(), 30) == (
        b"dsv41: the fleet is already starting; nothing was changed\n"
    )
    await fleet.head.call("POST", "/fleet/down", {"by": "root with a test"})
    status, _, err = await asyncio.wait_for(up, 30)
    await asyncio.wait_for(second.communicate(), 30)
    assert (status, second.returncode) == (Exit.UNAVAILABLE, Exit.UNAVAILABLE)
    assert err.splitlines()[-1] == "dsv41: it was not brought up: down was asked for by root with a test"
    assert "still" not in err


@pytest.mark.parametrize(("number", "exit_status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_to_an_order_says_that_the_fleet_goes_on(
    fleet: FleetUnderTest, number: signal.Signals, exit_status: int
) -> None:
    fleet.script({"all": {"phase_s": {"weights": 30}}})
    up = await _started(fleet, "up")
    await fleet.until(lambda s: s["state"] == "starting" and s["boot"] is not None, "a boot is under way")
    status, err = await _interrupted(up, number)
    assert status == exit_status
    assert err.splitlines()[-1] == (
        "dsv41: no longer waiting; the fleet goes on starting. dsv41 status shows how far it is, dsv41 down stops it."
    )
    assert (await fleet.status())["wanted"] == "up"
    down = await _started(fleet, "down")
    await fleet.until(lambda s: s["wanted"] == "down", "down is under way")
    status, err = await _interrupted(down, number)
    # It may have been done before the signal came, or be ending as a process.
    assert (status, "the fleet goes on stopping" in err) in ((exit_status, True), (0, False), (-number, False))


async def _started(fleet: FleetUnderTest, *argv: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dsv41_supervisor", *argv, "--settings", str(fleet.demo.settings_path),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _interrupted(process: asyncio.subprocess.Process, number: signal.Signals) -> tuple[int, str]:
    assert process.stderr is not None
    # Its first line of progress: the order was taken, and is followed.
    first = await asyncio.wait_for(process.stderr.readline(), 30)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode or 0, (first + err).decode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe" * 40, "cannot be read"),
        (b"short", "has 5 bytes, expected 32"),
        (b"a" * 40 + b"\nb", "more than one line"),
    ],
)
async def test_a_fleet_key_that_is_none_is_named(fleet: FleetUnderTest, content: bytes, words: str) -> None:
    path = Path(fleet.settings.fleet.key_file)
    good = path.read_bytes()
    path.write_bytes(content)
    try:
        status, _, err = await _dsv41(fleet, "status")
    finally:
        path.write_bytes(good)
    assert status == Exit.REFUSED
    assert words in err
    assert "Traceback" not in err


def test_a_path_that_cannot_be_read_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--settings", str(tmp_path)]) == Exit.REFUSED
    assert f"cannot read {tmp_path}: Is a directory." in capsys.readouterr().err
