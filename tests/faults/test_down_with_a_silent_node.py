"""Fault: a node cannot be asked while the fleet is taken down: its supervisor is gone or frozen, or its cable is cut.

What the user sees: `dsv41 down` says whom it waits for, ends with 69 within about `recovery.stop_timeout_s`, and names
the node that was not seen instead of vouching for its rank, and by when that rank's lease has ended.
With the node back, `down` says that every rank is gone.
What the operator sees: `every rank is gone, but spark3 could not be asked` (FLEET_STOPPED).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.demo.network import Mode, mode
from dsv41_supervisor.errors import Exit

from tests.harness.cables import hub_link_down
from tests.harness.faults import Fault
from tests.harness.fleet import FleetUnderTest, gone, kill, running_fleet


async def _down(fleet: FleetUnderTest) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dsv41_supervisor", "down", "--settings", str(fleet.demo.settings_path),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, out.decode(), err.decode()


async def test_down_does_not_vouch_for_a_node_that_it_could_not_ask(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False) as fleet:
        up = await fleet.up()
        assert up["state"] == "serving", up["refusals"]
        rank = fleet.rank_process(2)
        await fleet.kill_supervisor("spark3")
        status, out, err = await _down(fleet)
        assert (status, out) == (Exit.UNAVAILABLE, "")
        assert "dsv41: spark3 was not seen: " in err
        assert f"Look on spark3: {fleet.demo.state_root}/spark3/supervisor.log" in err
        assert "spark2 was not seen" not in err
        await fleet.said("spark1", "every rank is gone, but spark3 could not be asked")
        await gone(rank, 60)
        await fleet.start_supervisor("spark3")
        await fleet.heard("spark3")
        status, out, err = await _down(fleet)
        assert (status, out.startswith("down: every rank is gone")) == (Exit.OK, True), err


@contextlib.contextmanager
def _silent(fleet: FleetUnderTest, node: str, how: str) -> Iterator[None]:
    if how == "cut":
        with hub_link_down(fleet.demo.network, node):
            yield
        return
    frozen = fleet.supervisor(node).process.pid
    kill(frozen, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(frozen, signal.SIGCONT)


@pytest.mark.parametrize("how", ["frozen", "cut"])
async def test_down_does_not_wait_long_for_a_node_that_says_nothing(
    tmp_path: Path, demo_checkpoint: Path, how: str
) -> None:
    if how == "cut" and mode().mode is not Mode.NAMESPACES:
        pytest.skip(mode().reason)

    def short(raw: dict[str, Any]) -> None:
        raw["supervisor"] |= {"lease_ttl_s": 8, "peer_timeout_s": 2}
        raw["recovery"] |= {"stop_timeout_s": 10}

    async with running_fleet(
        tmp_path, demo_checkpoint, loopback=how == "frozen", gateway=False, change=short
    ) as fleet:
        up = await fleet.up()
        assert up["state"] == "serving", up["refusals"]
        rank = fleet.rank_process(2)
        fault = Fault(
            f"down while a node is {how}",
            sees="69 and the node's name, within about stop_timeout_s",
            journal="every rank is gone, but spark3 could not be asked; … (FLEET_STOPPED)",
        )
        with _silent(fleet, "spark3", how):
            # The order itself, without the command's start, and far below what one call to a node may take.
            async with asyncio.timeout(45):
                status, _, err = await _down(fleet)
            fault.mark("stopped")
            assert status == Exit.UNAVAILABLE
            assert re.search(r"waiting until the rank is gone on (spark\d, )*spark3;", err), err
            assert re.search(r"spark3 was not seen: .* its lease ends, (in \d+ s at the|which has run out)", err), err
            await fleet.said("spark1", "but spark3 could not be asked; a rank there ends with its lease, (in|which)")
            await gone(rank)
        await fleet.heard("spark3")
        status, out, err = await _down(fleet)
        assert (status, out.startswith("down: every rank is gone")) == (Exit.OK, True), err
        fault.report()
