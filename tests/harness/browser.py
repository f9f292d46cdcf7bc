"""A headless Chromium, driven over its own protocol: one tab, expressions and their values, and what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp


class Browser:
    """`async with Browser(program, profile) as tab`; the browser ends with the block."""

    def __init__(self, program: str, profile: Path) -> None:
        self._program, self._profile = program, profile
        self._ids = itertools.count(1)
        self._errors: list[str] = []

    async def __aenter__(self) -> Browser:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        self._process = await asyncio.create_subprocess_exec(
            self._program, "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", *sandbox,
            "--remote-debugging-port=0", f"--user-data-dir={self._profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        # It writes down where it listens; a pipe would be held by its children beyond its end.
        where = self._profile / "DevToolsActivePort"
        async with asyncio.timeout(60):
            while not (where.exists() and (said := where.read_text().split())):
                assert self._process.returncode is None, "the browser ended before it listened"
                await asyncio.sleep(0.05)
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{said[0]}/json") as answer:
            page = next(target for target in await answer.json() if target["type"] == "page")
        self._socket = await self._session.ws_connect(page["webSocketDebuggerUrl"])
        for domain in ("Runtime", "Page", "Log"):
            await self._call(f"{domain}.enable")
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._socket.close()
        await self._session.close()
        # The program may be a script that started the browser: the whole session goes.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def go(self, url: str) -> None:
        await self._call("Page.navigate", url=url)
        await self.until("document.readyState == 'complete'", f"{url} is loaded")

    async def value(self, expression: str) -> Any:
        """What an expression gives in the page."""
        answer = await self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str, what: str, timeout_s: float = 30) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            with contextlib.suppress(AssertionError):
                if await self.value(expression):
                    return
            assert asyncio.get_running_loop().time() < deadline, f"not seen after {timeout_s} s: {what}"
            await asyncio.sleep(0.1)

    async def errors(self) -> list[str]:
        """Exceptions and everything the browser itself complained about (its policy too) since the start."""
        await self.value("1")
        # A 401 that was provoked is logged by the browser as well.
        return [text for text in self._errors if "401" not in text]

    async def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(30):
            while True:
                message = json.loads((await self._socket.receive()).data)
                if message.get("id") == number:
                    assert "error" not in message, message
                    return message["result"]
                if message.get("method") == "Runtime.exceptionThrown":
                    self._errors.append(str(message["params"]["exceptionDetails"]["text"]))
                if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                    self._errors.append(str(message["params"]["entry"]["text"]))
