"""Telling people: a command that gets the event as JSON on its standard input, and a webhook it is POSTed to.

Nothing waits for an alert: events are queued, and one that cannot be delivered is named in the log and in the status.
No secret is in an argv: the webhook's URL is read from its file each time, and events are redacted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections import deque
from pathlib import Path
from typing import Any

import aiohttp

from ..credentials import WEBHOOK_URL, credential
from ..incident.redact import Redactor
from ..journal import Event, event, log
from ..settings import AlertKind, Settings

FORMAT = 1
SEVERITY = {
    AlertKind.RECOVERED: "info", AlertKind.RESUMED: "info", AlertKind.FABRIC_RESTORED: "info",
    AlertKind.LOST: "warning", AlertKind.PAUSED: "warning", AlertKind.MEMORY_LOW: "warning",
    AlertKind.MEMORY_PRESSURE: "warning", AlertKind.FABRIC_DEGRADED: "warning",
}  # fmt: skip
"""Everything else is an error."""
MAX_QUEUED = 100
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
_PASSED_ON = ("PATH", "HOME", "LANG", "TZ")


class Alerts:
    """One node's alerts; `run` delivers them in order until cancelled."""

    def __init__(self, settings: Settings, node: str) -> None:
        self._settings = settings
        self._node = node
        self._queue: deque[dict[str, Any]] = deque(maxlen=MAX_QUEUED)
        self._news = asyncio.Event()
        self._told: dict[tuple[str, str], float] = {}
        self._suppressed: dict[tuple[str, str], int] = {}
        self._session: aiohttp.ClientSession | None = None
        self.last_failure: str | None = None
        self.n_delivered = 0

    def tell(self, kind: str, sentence: str, *, node: str | None = None, **more: Any) -> bool:
        """Queue one event. False when it is muted, unknown, or was told about the same node a short while ago."""
        alerts = self._settings.alerts
        try:
            known = AlertKind(kind)
        except ValueError:
            return False
        if known in alerts.muted or (alerts.command is None and alerts.webhook_url_file is None):
            return False
        key, now = (kind, node or ""), time.monotonic()
        if key in self._told and now - self._told[key] < alerts.repeat_s:
            self._suppressed[key] = self._suppressed.get(key, 0) + 1
            return False
        self._told[key] = now
        told = {
            "format": FORMAT, "kind": kind, "severity": SEVERITY.get(known, "error"), "sentence": sentence,
            "fleet": self._settings.fleet.name, "node": node, "told_by": self._node, "at": round(time.time(), 3),
            "not_told_since": self._suppressed.pop(key, 0), **more,
        }  # fmt: skip
        if len(self._queue) == MAX_QUEUED:
            log.error("alerts pile up; the oldest is dropped: %s", self._queue[0]["sentence"])
        self._queue.append(told)
        self._news.set()
        return True

    async def run(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._queue:
                    await self._deliver(self._queue.popleft())
        finally:
            if self._session is not None:
                await self._session.close()

    async def _deliver(self, told: dict[str, Any]) -> None:
        alerts = self._settings.alerts
        body = json.dumps(Redactor().value(told), ensure_ascii=False)
        ways = []
        if alerts.command is not None:
            ways.append(self._run_command(body))
        if alerts.webhook_url_file is not None:
            ways.append(self._post(body))
        failures = [f for f in await asyncio.gather(*ways) if f is not None]
        for failure in failures:
            self.last_failure = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {failure}"
            event(Event.NOT_KEPT_OR_TOLD, f"an alert ({told['kind']}) was not delivered: {failure}", logging.ERROR)
        self.n_delivered += len(ways) - len(failures)

    async def _run_command(self, body: str) -> str | None:
        """Why it failed, or None. A command that hangs is killed with everything it started."""
        command, timeout_s = self._settings.alerts.command, self._settings.alerts.timeout_s
        assert command is not None
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, start_new_session=True,
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            )  # fmt: skip
        except OSError as error:
            return f"the command {command[0]} cannot be started: {error.strerror}"
        try:
            await asyncio.wait_for(process.communicate(f"{body}\n".encode()), timeout_s)
        except TimeoutError:
            return f"the command {command[0]} did not end within {timeout_s:.0f} s"
        except OSError as error:
            return f"the command {command[0]} failed: {error.strerror}"
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return f"the command {command[0]} ended with status {process.returncode}" if process.returncode else None

    async def _post(self, body: str) -> str | None:
        """Why it failed, or None. The URL is a secret: it is in no message."""
        alerts = self._settings.alerts
        assert alerts.webhook_url_file is not None
        path = credential(WEBHOOK_URL) or Path(self._settings.path(alerts.webhook_url_file, self._node))
        try:
            url = (await asyncio.to_thread(path.read_text)).strip()
        except (OSError, UnicodeDecodeError) as error:
            return f"alerts.webhook_url_file {path} cannot be read: {getattr(error, 'strerror', 'not text')}"
        if not url.startswith(("https://", "http://")) or len(url.split()) != 1:
            return f"alerts.webhook_url_file {path} does not hold one http(s) URL"
        pause_s, why = FIRST_PAUSE_S, ""
        for n in range(1, alerts.tries + 1):
            why, final = await self._try(url, body)
            if not why:
                return None
            if final or n == alerts.tries:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        return f"the webhook {why} (tried {n} times)"

    async def _try(self, url: str, body: str) -> tuple[str, bool]:
        """One POST: why it failed (empty when it did not), and whether trying again is useless."""
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            async with self._session.post(
                url, data=body.encode(), headers={"Content-Type": "application/json", "User-Agent": "dsv41"},
                timeout=aiohttp.ClientTimeout(total=self._settings.alerts.timeout_s), allow_redirects=False,
            ) as answer:  # fmt: skip
                if answer.status < 300:
                    return "", True
                return f"answered {answer.status}", 300 <= answer.status < 500 and answer.status not in (408, 429)
        except TimeoutError:
            return f"did not answer within {self._settings.alerts.timeout_s:.0f} s", False
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"cannot be reached ({type(error).__name__})", False
