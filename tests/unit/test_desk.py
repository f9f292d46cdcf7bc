"""The desk tells each notice once, keeps a bundle of what is worth one, and lets nothing that fails spread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.errors import Dsv41Error, Stage
from dsv41_supervisor.fleet.desk import Desk
from dsv41_supervisor.incident import bundle
from dsv41_supervisor.settings import parse

from tests.unit.fleets import good


class Node:
    """A node as the desk sees one: a status with notices, and evidence or an error."""

    def __init__(self, name: str, failure: Exception | None = None) -> None:
        self.name = name
        self.failure = failure
        self.status: dict[str, Any] | None = {"notices": [], "same": {"kernel": "6.17"}}

    def notice(self, number: int, kind: str, sentence: str, at: float | None = None) -> None:
        assert self.status is not None
        at = time.time() if at is None else at
        self.status["notices"].append({"id": number, "at": at, "node": self.name, "kind": kind, "sentence": sentence})

    async def evidence(self) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        return {"parts": {"rank.log": f"{self.name} was here"}, "failed": {"kernel.log": "Permission denied"}}


def made(tmp_path: Path, nodes: list[Node], **more: Any) -> Desk:
    document = good()
    document["supervisor"] = {"state_dir": str(tmp_path / "state")}
    document["alerts"] = {"command": ["/bin/sh", "-c", f"cat >> {tmp_path}/told"]}
    document |= more
    about = {"boot": {"id": "b1"}, "timeline": [{"at": 1.0, "what": "checks"}]}
    return Desk(parse(json.dumps(document)), "spark1", {n.name: n for n in nodes}, lambda: dict(about))


@contextlib.asynccontextmanager
async def running(desk: Desk) -> AsyncIterator[None]:
    task = asyncio.create_task(desk.run(pick_up=True))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Any, what: str, timeout_s: float = 40) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


async def test_a_driver_out_of_memory_is_told_and_kept_once(tmp_path: Path) -> None:
    nodes = [Node("spark1"), Node("spark2"), Node("spark3", Dsv41Error("is silent.", stage=Stage.RANK, hint="Look."))]
    desk = made(tmp_path, nodes)
    nodes[1].notice(7, "gpu-no-memory", "the GPU driver logged NV_ERR_NO_MEMORY 1 times")
    nodes[1].notice(3, "memory-low", "from before this supervisor", at=time.time() - 3600)
    async with running(desk):
        await until(lambda: desk.alerts.n_delivered == 1 and desk.last_name, "told and kept")
        nodes[1].notice(8, "other-killer", "no alert has this name")
        # Two more looks: nothing is told again.
        seen = desk._seen["spark2"]
        await until(lambda: desk._seen["spark2"] != seen, "the next look")
    (event,) = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert (event["kind"], event["node"], event["severity"]) == ("gpu-no-memory", "spark2", "error")
    assert event["incident"] == desk.last_name
    parts = bundle.listing(desk.directory, desk.last_name)
    assert {"spark1/rank.log", "spark2/rank.log", "spark3/status-then.json", "timeline.txt"} <= set(parts)
    first = json.loads(bundle.read(desk.directory, desk.last_name, "incident.json"))
    assert first["failed_parts"]["spark1/kernel.log"] == "Permission denied"
    assert "is silent" in first["failed_parts"]["spark3/everything"]


async def test_a_bundle_that_cannot_be_written_is_said_and_nothing_else_is_lost(tmp_path: Path) -> None:
    desk = made(tmp_path, [Node("spark1")])
    desk.directory.parent.mkdir()
    desk.directory.write_text("a file where the directory should be")
    async with running(desk):
        desk.tell("lost", "rank 1 on spark2 failed", incident=True)
        await until(lambda: desk.last_failure is not None and desk.alerts.n_delivered == 1, "said, and told")
        with pytest.raises(OSError, match="could not be written"):
            await desk.make("asked-for", "a test")
    assert "could not be written" in str(desk.status()["incident_failure"])


async def test_the_same_failure_again_within_seconds_is_one_bundle(tmp_path: Path) -> None:
    desk = made(tmp_path, [Node("spark1")])
    assert desk.incident("lost", "a") is not None
    assert desk.incident("lost", "a again") is None
    assert desk.incident("gave-up", "another kind") is not None
    await until(lambda: len(bundle.entries(desk.directory)) == 2, "two bundles")


async def test_settings_in_a_bundle_have_no_secret(tmp_path: Path) -> None:
    document = good()["engine"] | {"environment": {"HF_TOKEN": "hf_" + "b" * 30}}
    desk = made(tmp_path, [Node("spark1")], engine=document)
    name = await desk.make("asked-for", "Bearer " + "c" * 30)
    everything = "".join(bundle.read(desk.directory, name, part) for part in bundle.listing(desk.directory, name))
    assert "b" * 30 not in everything and "c" * 30 not in everything
    assert '"HF_TOKEN": "[removed]"' in everything
