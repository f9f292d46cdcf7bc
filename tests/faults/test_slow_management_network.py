"""Fault: the management network is slow (300 ms each way), stalls, or loses connections, between head and worker.

What the user sees: nothing. A boot takes longer, status answers later, and the fleet serves on: only silence of
`peer_timeout_s` ends a boot. A stall longer than that does, and the fleet comes back after it.
What the operator sees: nothing; with a long stall `its supervisor has been silent for … s` (MESSAGE_ID RANK_LOST).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.demo.network import Mode, mode
from dsv41_supervisor.journal import Event

from tests.harness.cables import divert
from tests.harness.faults import Fault
from tests.harness.fleet import FleetUnderTest, running_fleet
from tests.harness.proxy import Proxy, Weather

pytestmark = pytest.mark.skipif(mode().mode is not Mode.NAMESPACES, reason=mode().reason)
CALM_S = 12.0
"""Each weather is borne for this long: four times `peer_timeout_s`."""


@asynccontextmanager
async def _proxied(fleet: FleetUnderTest, node: str) -> AsyncIterator[Proxy]:
    """What the head says to a node's supervisor goes through a proxy from now on."""
    here = fleet.settings.fleet.nodes[node]
    where = str(here.management_address), here.supervisor_port
    listening = await asyncio.to_thread(divert, fleet.demo.network, "spark1", *where)
    proxy = Proxy(where)
    await proxy.start(listening)
    # Connections made before go around it, so they are cut.
    await fleet.kill_supervisor("spark1")
    await fleet.start_supervisor("spark1")
    await fleet.until_answering(lambda s: s["nodes"][node].get("rank") is not None, "the head hears the node", 60)
    try:
        yield proxy
    finally:
        proxy.weather = Weather()
        await proxy.stop()


async def test_delay_stalls_and_lost_connections_do_not_end_a_boot_but_silence_does(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    def patient(raw: dict[str, Any]) -> None:
        raw["recovery"] |= {"backoff_s": 0.5, "max_recoveries": 20}

    async with (
        running_fleet(tmp_path, demo_checkpoint, gateway=False, change=patient) as fleet,
        _proxied(fleet, "spark2") as proxy,
    ):
        proxy.weather = Weather(delay_s=0.3)
        before = await fleet.up(120)
        assert before["state"] == "serving", before["refusals"]
        assert proxy.n_connections > 0
        for words, weather in (
            ("300 ms delay each way", Weather(delay_s=0.3)),
            ("stalls of up to 1.5 s", Weather(stall_s=1.5)),
            ("one piece in ten resets its connection", Weather(delay_s=0.05, cut=0.1, refuse=0.1)),
        ):
            fault = Fault(
                f"management network: {words}",
                sees="nothing; it serves on",
                journal="none",
            )
            proxy.weather, n_cut = weather, proxy.n_cut
            await _serves_for(fleet, before, CALM_S, words)
            assert (proxy.n_cut > n_cut) == (weather.cut > 0), words
            fault.report()
        assert "silent" not in fleet.log("spark1")

        fault = Fault(
            "management network: a stall longer than peer_timeout_s",
            sees="503; serves again",
            journal="rank 1 on spark2: its supervisor has been silent for … s (RANK_LOST)",
        )
        proxy.weather = Weather(held=True)
        await fleet.until(lambda s: s["state"] == "recovering", "the silence was noticed", 30)
        await fleet.said("spark1", "rank 1 on spark2: its supervisor has been silent", Event.RANK_LOST)
        proxy.weather = Weather()
        after = await fleet.until(lambda s: s["state"] in ("serving", "failed"), "it serves again", 120)
        assert after["state"] == "serving", after["reason"]
        fault.report(after)


async def _serves_for(fleet: FleetUnderTest, before: dict[str, Any], seconds: float, words: str) -> None:
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    while loop.time() < ends:
        status = await fleet.status()
        assert (status["state"], status["boot"]) == ("serving", before["boot"]), (words, status["reason"])
        await asyncio.sleep(0.25)
