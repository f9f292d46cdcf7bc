"""Fault: a worker's supervisor is killed with SIGKILL while the fleet serves, and started again within seconds.

What the user sees: nothing when it is back before `peer_timeout_s`; the ranks and a running stream go on.
What the operator sees: `rank 1 of boot … outlived the supervisor; taking it up again` on that node.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.harness.faults import Fault
from tests.harness.fleet import running_fleet


async def test_ranks_and_streams_survive_a_restart_of_a_workers_supervisor(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    def patient(raw: dict[str, Any]) -> None:
        # A loaded machine takes its time to start a Python; on a node it takes a second.
        raw["supervisor"] |= {"peer_timeout_s": 30, "lease_ttl_s": 60}

    async with running_fleet(
        tmp_path, demo_checkpoint, change=patient, behaviour={"all": {"tokens_per_s": 1.5}}
    ) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        ranks = [fleet.rank_process(r) for r in range(3)]
        first = asyncio.Event()
        got: list[str] = []

        def show(text: str) -> None:
            got.append(text)
            first.set()

        stream = asyncio.ensure_future(fleet.chat(max_tokens=64, show=show))
        await asyncio.wait_for(first.wait(), 30)
        fault = Fault(
            "SIGKILL of a worker's supervisor while serving, restarted",
            sees="nothing; the stream goes on",
            journal="rank 1 of boot … outlived the supervisor; taking it up again",
        )
        await fleet.kill_supervisor("spark2")
        await fleet.start_supervisor("spark2")
        await fleet.said("spark2", f"rank 1 of boot {before['boot']['id']} outlived the supervisor", timeout_s=40)
        await fleet.until_node("spark2", lambda s: s["rank"]["state"] == "ready", "its rank is ready again", 40)
        fault.mark("serving")
        after = await fleet.until(lambda s: s["state"] == "serving", "it serves")
        assert after["boot"] == before["boot"]
        assert not any(e["what"].startswith("lost") for e in after["timeline"])
        assert [fleet.rank_process(r) for r in range(3)] == ranks
        answer = await asyncio.wait_for(stream, 90)
        assert (answer.finish_reason, answer.text) == ("stop", "".join(got))
        fault.report()
