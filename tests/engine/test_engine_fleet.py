"""The whole fleet with the real SGLang: three supervisors in three namespaces, rows from the row store, the gateway.

Faults, one after the other: `kill -9` of rank 1's scheduler in the middle of a stream, and SIGSTOP of rank 2's. What
the user sees: an error event, 503 with Retry-After, and after each recovery the same greedy answer as before. A frozen
rank leaves the head's own health check at 200; the one-token canary through all ranks notices it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.settings import EngineKind
from dsv41_supervisor.smoke import first_key

from tests.harness.fleet import FleetUnderTest, kill, running_fleet

BOOT_S = 420
"""Bound of a boot of three ranks; 55 s on two idle cores."""
NOTICED_S = 2.0


CANARY_S = 10.0


def _recover_at_once(raw: dict[str, Any]) -> None:
    raw["recovery"]["backoff_s"] = 0
    raw["supervisor"] |= {"canary_period_s": 2, "canary_timeout_s": CANARY_S}


@pytest.mark.timeout(1200)
async def test_a_real_fleet_serves_survives_a_killed_rank_and_answers_the_same_again(
    tmp_path: Path, demo_checkpoint: Path, engine_python: Path, record_property: Any
) -> None:
    async with running_fleet(
        tmp_path, demo_checkpoint, engine=EngineKind.SGLANG, engine_python=engine_python, change=_recover_at_once
    ) as fleet:
        status = await fleet.up(BOOT_S)
        assert status["state"] == "serving", status["refusals"]
        before = await fleet.chat(24)
        assert before.completion_tokens == 24
        await _rows_come_from_the_row_stores(fleet)
        await _either_spelling_turns_thinking_on(fleet)

        timeline = await _kill_in_the_middle_of_a_stream(fleet)
        for name, value in timeline.items():
            record_property(name, value)
        print(json.dumps(timeline))

        after = await fleet.chat(24)
        assert (after.text, after.completion_tokens) == (before.text, before.completion_tokens)

        timeline = await _freeze_a_worker(fleet)
        for name, value in timeline.items():
            record_property(name, value)
        print(json.dumps(timeline))

        after = await fleet.chat(24)
        assert (after.text, after.completion_tokens) == (before.text, before.completion_tokens)


async def _rows_come_from_the_row_stores(fleet: FleetUnderTest) -> None:
    status = await fleet.status()
    for node in status["nodes"].values():
        assert node["rank"]["armed"] == {"engram_nvme": "engaged"}
        assert node["measured"]["counters"]["engram_rows_read"] > 0

    def each_row_once(status: dict[str, Any]) -> bool:
        """Every head of every layer is owned by exactly one rank, so together they read each row once."""
        counters = [node["measured"]["counters"] for node in status["nodes"].values()]
        return {sum(c["engram_rows_read"] for c in counters)} == {c["engram_lookups"] for c in counters}

    # Between two steps: a canary every two seconds counts too, and a worker ends its step after rank 0 answered.
    await fleet.until(each_row_once, "counters of one and the same step", 60)


async def _either_spelling_turns_thinking_on(fleet: FleetUnderTest) -> None:
    n_tokens = {}
    for name, switch in (
        ("off", {"thinking": False}),
        ("on", {"thinking": True}),
        ("alias", {"enable_thinking": True}),
        ("conflict", {"thinking": False, "enable_thinking": True}),
    ):
        _, body = await _post(fleet, {"max_tokens": 1, "chat_template_kwargs": switch})
        n_tokens[name] = body["usage"]["prompt_tokens"]
    assert n_tokens["alias"] == n_tokens["on"] > n_tokens["off"] == n_tokens["conflict"]


async def _kill_in_the_middle_of_a_stream(fleet: FleetUnderTest) -> dict[str, float]:
    """Seconds from the kill to: noticed, stream ended, 503, all stopped, serving again."""
    first = asyncio.Event()
    stream = asyncio.ensure_future(fleet.chat(600, lambda text: first.set()))
    await asyncio.wait_for(first.wait(), 60)
    old_boot = (await fleet.status())["boot"]["id"]
    victim = fleet.engine_process(1, "scheduler")
    killed_at, killed_on_clock = time.monotonic(), time.time()
    kill(victim)
    timeline: dict[str, float] = {}

    async def stream_ends() -> None:
        with pytest.raises(Dsv41Error, match="the stream ended with an error: .*lost"):
            await stream
        timeline["stream_ended_s"] = time.monotonic() - killed_at

    async def noticed() -> None:
        await fleet.until(lambda s: s["state"] == "recovering", "the kill was noticed", 60)
        status, body = await _post(fleet, {"max_tokens": 1})
        assert status == 503
        assert body["error"]["message"]
        timeline["answered_503_s"] = time.monotonic() - killed_at

    await asyncio.wait_for(asyncio.gather(stream_ends(), noticed()), 120)
    after = await fleet.until(
        lambda s: s["state"] == "failed" or (s["state"] == "serving" and s["boot"]["id"] != old_boot),
        "the fleet came back",
        BOOT_S,
    )
    assert after["state"] == "serving", after["reason"]
    timeline["serving_again_s"] = time.monotonic() - killed_at
    stopped = [e["at"] for e in after["timeline"] if e["what"] == "all ranks stopped" and e["at"] > killed_on_clock]
    timeline["all_stopped_s"] = stopped[0] - killed_on_clock
    # By the head's own clock: this test shares two cores with engines that stop and start.
    lost = [e["at"] for e in after["timeline"] if e["what"].startswith("lost: ") and e["at"] > killed_on_clock]
    timeline["noticed_s"] = lost[0] - killed_on_clock
    assert timeline["noticed_s"] <= NOTICED_S
    return {name: round(value, 2) for name, value in timeline.items()}


async def _freeze_a_worker(fleet: FleetUnderTest) -> dict[str, float]:
    """Seconds from SIGSTOP of a scheduler to: noticed, serving again."""
    old_boot = (await fleet.status())["boot"]["id"]
    frozen_at = time.monotonic()
    kill(fleet.engine_process(2, "scheduler"), signal.SIGSTOP)
    lost = await fleet.until(lambda s: s["state"] == "recovering", "the freeze was noticed", 10 * CANARY_S)
    assert "the one-token canary did not come back within 10 s" in lost["reason"], lost["reason"]
    noticed_s = time.monotonic() - frozen_at
    after = await fleet.until(
        lambda s: s["state"] == "failed" or (s["state"] == "serving" and s["boot"]["id"] != old_boot),
        "the fleet came back", BOOT_S,
    )  # fmt: skip
    assert after["state"] == "serving", after["reason"]
    return {"freeze_noticed_s": round(noticed_s, 2), "freeze_serving_again_s": round(time.monotonic() - frozen_at, 2)}


async def _post(fleet: FleetUnderTest, more: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    key = first_key(Path(fleet.settings.gateway.keys_file))
    body = {
        "model": fleet.settings.engine.served_model_name,
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0,
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{fleet.demo.endpoint}/v1/chat/completions", json=body | more, headers={"Authorization": f"Bearer {key}"}
        ) as answer,
    ):
        if answer.status == 503:
            assert int(answer.headers["Retry-After"]) >= 1
        return answer.status, await answer.json()
