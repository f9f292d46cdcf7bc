"""Orders given twice, at once, or in the middle of another: `up` on a healthy fleet changes nothing and says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.harness.fleet import running_fleet


async def test_up_is_idempotent_and_down_in_the_middle_of_a_boot_leaves_nothing(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, loopback=True, gateway=False) as fleet:
        both = await asyncio.gather(*(fleet.head.call("POST", "/fleet/up", {"by": str(i)}) for i in range(2)))
        said = {answer["said"] for answer in both}
        assert said <= {"starting", "the fleet is already starting; nothing was changed"}
        served = await fleet.until(lambda s: s["state"] == "serving", "it serves")
        ranks = [fleet.rank_process(r) for r in range(3)]
        again = await fleet.head.call("POST", "/fleet/up", {})
        assert again["said"] == "the fleet is already serving; nothing was changed"
        status = await fleet.status()
        assert status["boot"] == served["boot"]
        assert [fleet.rank_process(r) for r in range(3)] == ranks

        await fleet.head.call("POST", "/fleet/down", {})
        down = await fleet.until(lambda s: s["state"] == "down", "it is down")
        assert all(node["measured"]["n_processes"] == 0 for node in down["nodes"].values())
        assert (await fleet.head.call("POST", "/fleet/down", {}))[
            "said"
        ] == "the fleet is already down; nothing was changed"

        fleet.script({"all": {"phase_s": {"weights": 30}}})
        await fleet.head.call("POST", "/fleet/up", {})
        await fleet.until(lambda s: "weights" in s["readiness"]["detail"], "a boot is under way")
        await fleet.head.call("POST", "/fleet/down", {})
        down = await fleet.until(lambda s: s["state"] == "down", "the boot was given up")
        assert all(node["measured"]["n_processes"] == 0 for node in down["nodes"].values())


async def test_drain_lets_a_running_stream_finish(tmp_path: Path, demo_checkpoint: Path) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, behaviour={"all": {"tokens_per_s": 4}}) as fleet:
        assert (await fleet.up())["state"] == "serving"
        first = asyncio.Event()
        stream = asyncio.ensure_future(fleet.chat(max_tokens=16, show=lambda text: first.set()))
        await asyncio.wait_for(first.wait(), 20)
        await fleet.head.call("POST", "/fleet/drain", {})
        assert (await asyncio.wait_for(stream, 30)).completion_tokens == 16
        await fleet.until(lambda s: s["state"] == "down", "drained")


async def test_up_in_the_middle_of_a_drain_lets_the_stream_finish_and_starts_then(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, behaviour={"all": {"tokens_per_s": 4}}) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving"
        first = asyncio.Event()
        stream = asyncio.ensure_future(fleet.chat(max_tokens=16, show=lambda text: first.set()))
        await asyncio.wait_for(first.wait(), 20)
        await fleet.head.call("POST", "/fleet/drain", {})
        again = await fleet.head.call("POST", "/fleet/up", {})
        assert again["said"] == "the drain that runs is finished first, then it starts"
        assert (await asyncio.wait_for(stream, 30)).completion_tokens == 16
        served = await fleet.until(lambda s: s["state"] == "serving", "it serves again", 60)
        assert served["boot"] != before["boot"]
