"""Fault: the head's supervisor is killed with SIGKILL while the fleet serves, and started again.

What the user sees: nothing; a running stream goes on to its end.
What the operator sees: `adopted boot …` (MESSAGE_ID FLEET_ADOPTED); no rank was restarted.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.harness.faults import Fault
from tests.harness.fleet import kill, running_fleet


async def test_ranks_and_streams_survive_and_the_boot_is_adopted(tmp_path: Path, demo_checkpoint: Path) -> None:
    slow = {"all": {"tokens_per_s": 1.5}}
    async with running_fleet(tmp_path, demo_checkpoint, behaviour=slow) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        ranks = [fleet.rank_process(r) for r in range(3)]
        first = asyncio.Event()
        got: list[str] = []

        def show(text: str) -> None:
            got.append(text)
            first.set()

        stream = asyncio.ensure_future(fleet.chat(max_tokens=64, show=show))
        await asyncio.wait_for(first.wait(), 60)
        supervisor = next(d for d in fleet.demo.daemons if d.node == "spark1" and d.name == "supervisor")
        fault = Fault(
            "SIGKILL of the head's supervisor while serving, restarted",
            sees="nothing; the stream goes on",
            journal="adopted boot … (FLEET_ADOPTED)",
        )
        kill(supervisor.process.pid)
        await supervisor.process.wait()
        fleet.demo.daemons.remove(supervisor)
        await fleet.demo.start_daemon("supervisor", "spark1")
        after = await fleet.until_answering(lambda s: s["state"] == "serving", "the boot was adopted", 60)
        fault.report(after)
        assert after["boot"]["id"] == before["boot"]["id"]
        assert any("adopted boot" in entry["what"] for entry in after["timeline"])
        assert [fleet.rank_process(r) for r in range(3)] == ranks
        answer = await asyncio.wait_for(stream, 120)
        assert answer.finish_reason == "stop"
        assert answer.text == "".join(got)
