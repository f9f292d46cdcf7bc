"""Alerts reach a real command and a real HTTP server; what cannot be delivered is said and holds nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from dsv41_supervisor.fleet import alerts as alerts_module
from dsv41_supervisor.fleet.alerts import Alerts
from dsv41_supervisor.settings import parse

from tests.unit.fleets import good


def made(tmp_path: Path, **more: Any) -> Alerts:
    document = good()
    document["alerts"] = {"timeout_s": 20} | more
    return Alerts(parse(json.dumps(document)), "spark1")


@contextlib.asynccontextmanager
async def running(alerts: Alerts) -> AsyncIterator[Alerts]:
    task = asyncio.create_task(alerts.run())
    try:
        yield alerts
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 40) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Server:
    """An HTTP server on loopback that answers as it is told and remembers what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.answers: list[int] = []
        self.hang = False

    async def _answer(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.json()))
        if self.hang:
            await asyncio.sleep(3600)
        return web.Response(status=self.answers.pop(0) if self.answers else 200)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/in/{secret}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/in/T0-very-secret"
        finally:
            await runner.cleanup()


async def test_the_command_gets_one_json_object_on_its_input(tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with running(made(tmp_path, command=["/bin/sh", "-c", f"cat >> {out}; env > {out}.env"])) as alerts:
        assert alerts.tell("lost", "rank 1 on spark2 failed: Bearer abcdefghij", node="spark2", incident="2026-x")
        await until(lambda: alerts.n_delivered == 1, "delivered")
    (event,) = lines(out)
    assert {k: event[k] for k in ("format", "kind", "severity", "fleet", "node", "told_by", "incident")} == {
        "format": 1, "kind": "lost", "severity": "warning", "fleet": "lab", "node": "spark2", "told_by": "spark1",
        "incident": "2026-x",
    }  # fmt: skip
    assert "abcdefghij" not in event["sentence"]
    passed_on = {line.split("=", 1)[0] for line in Path(f"{out}.env").read_text().splitlines()}
    assert passed_on <= {"PATH", "HOME", "LANG", "TZ", "PWD", "SHLVL", "_", "OLDPWD"}


async def test_a_command_that_hangs_is_killed_and_said(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hangs = ["/bin/sh", "-c", f"sleep 600 & echo $! > {pid}; wait"]
    async with running(made(tmp_path, command=hangs, timeout_s=1)) as alerts:
        alerts.tell("gave-up", "staying down")
        await until(lambda: alerts.last_failure is not None, "the failure is said")
        assert "the command /bin/sh did not end within 1 s" in str(alerts.last_failure)
        stat = Path(f"/proc/{pid.read_text().strip()}/stat")
        await until(lambda: not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z", "its child died")


async def test_a_command_that_is_not_there_or_fails_is_said(tmp_path: Path) -> None:
    for command, said in ((["/nonexistent/alert"], "cannot be started"), (["/bin/false"], "ended with status 1")):
        async with running(made(tmp_path, command=command)) as alerts:
            alerts.tell("gave-up", "staying down")
            await until(lambda a=alerts: a.last_failure is not None, "the failure is said")
            assert said in str(alerts.last_failure)


async def test_the_webhook_is_posted_to_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts_module, "FIRST_PAUSE_S", 0.01)
    server, file = Server(), tmp_path / "url"
    async with server.listening() as url, running(made(tmp_path, webhook_url_file=str(file))) as alerts:
        file.write_text(url + "\n")
        server.answers = [500, 429, 204]
        alerts.tell("memory-kill", "spark3: MemAvailable is 3.90 GiB", node="spark3")
        await until(lambda: alerts.n_delivered == 1, "delivered at the third try")
        assert [body["kind"] for _, body in server.got] == ["memory-kill"] * 3
        assert server.got[0][0]["Content-Type"] == "application/json"
        assert alerts.last_failure is None
        # Refused for good: not tried again; and the URL, which is a secret, is in no message.
        server.answers = [403]
        alerts.tell("recovered", "boot b2 serves again")
        await until(lambda: alerts.last_failure is not None, "the refusal is said")
        assert len(server.got) == 4
        assert "the webhook answered 403 (tried 1 times)" in str(alerts.last_failure)
        assert "secret" not in str(alerts.last_failure)


async def test_a_webhook_that_hangs_or_is_away_is_given_up_within_its_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "FIRST_PAUSE_S", 0.01)
    server, file = Server(), tmp_path / "url"
    server.hang = True
    async with server.listening() as url:
        file.write_text(url)
        async with running(made(tmp_path, webhook_url_file=str(file), timeout_s=0.3, tries=2)) as alerts:
            alerts.tell("lost", "x")
            await until(lambda: alerts.last_failure is not None, "given up")
            assert "did not answer within 0 s (tried 2 times)" in str(alerts.last_failure)
    async with running(made(tmp_path, webhook_url_file=str(file), tries=2)) as alerts:
        alerts.tell("lost", "x")
        await until(lambda: alerts.last_failure is not None, "given up")
        assert "cannot be reached (ClientConnectorError) (tried 2 times)" in str(alerts.last_failure)


async def test_a_url_file_that_is_missing_or_holds_something_else_is_said(tmp_path: Path) -> None:
    for text, said in ((None, "No such file or directory"), ("ftp://x y", "does not hold one http(s) URL")):
        file = tmp_path / "url"
        if text is not None:
            file.write_text(text)
        async with running(made(tmp_path, webhook_url_file=str(file))) as alerts:
            alerts.tell("lost", "x")
            await until(lambda a=alerts: a.last_failure is not None, "said")
            assert said in str(alerts.last_failure)


async def test_the_same_event_is_told_once_and_counted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    alerts = made(tmp_path, command=["/bin/sh", "-c", f"cat >> {out}"], repeat_s=0.2)
    async with running(alerts):
        assert [alerts.tell("lost", "a", node="spark2") for _ in range(3)] == [True, False, False]
        assert alerts.tell("lost", "b", node="spark3")
        await until(lambda: alerts.n_delivered == 2, "two nodes")
        await until(lambda: alerts.tell("lost", "a again", node="spark2"), "told again after a while")
        await until(lambda: alerts.n_delivered == 3, "delivered")
    assert [e["not_told_since"] for e in lines(out)][:2] == [0, 0]
    assert lines(out)[2]["not_told_since"] >= 2


async def test_what_is_muted_or_nobody_asked_for_is_not_told(tmp_path: Path) -> None:
    assert not made(tmp_path).tell("lost", "nobody listens")
    muted = made(tmp_path, command=["/bin/true"], muted=["recovered"])
    assert not muted.tell("recovered", "x")
    assert not muted.tell("no-such-kind", "x")
    assert muted.tell("lost", "x")
