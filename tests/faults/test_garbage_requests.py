"""Fault: 1,000 requests of garbage at the supervisor's port: broken HTTP, endless heads, wrong types, with and without
the key.

What the user sees: nothing; the fleet serves on. Every whole request is answered, and nothing with 500.
What the operator sees: no line a request; the supervisor's memory stays where it was.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from dsv41_supervisor.api import ROUTES
from dsv41_supervisor.fleet.peers import FLEET_HEADER

from tests.harness.faults import Fault
from tests.harness.fleet import FleetUnderTest, running_fleet

N_REQUESTS = 1000
GROWTH_BYTES = 16 << 20
AT_ONCE = 32
PATIENCE_S = 3.0
"""For an answer. Half a request gets none; that its connection is closed in time is in test_slow_client.py."""
# What a well-formed request of these would do is an order or long work, not garbage.
ORDERS = ("/fleet/", "/node/stop", "/node/drain", "/rank/{rank}/admit", "/incidents", "/doctor")


class _Garbage:
    """Seeded: the same thousand every time."""

    def __init__(self, seed: int, key: str, fleet: str) -> None:
        self._rng = random.Random(seed)
        self._good = f"Authorization: Bearer {key}\r\n{FLEET_HEADER}: {fleet}\r\n".encode()
        self._paths = [route.path for route in ROUTES if not route.path.startswith(ORDERS)]

    def next(self) -> bytes:
        return self._rng.choice(
            (self._bytes, self._line, self._long_head, self._many_heads, self._lengths, self._chunks, self._values,
             self._body, self._pipelined, self._nothing)
        )()  # fmt: skip

    def _head(self, method: str | None = None, path: str | None = None) -> bytes:
        rng = self._rng
        method = method or rng.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW", "get"])
        path = path or rng.choice([*self._paths, "/", "/%00", "/../../etc/passwd", "/status?" + "a=b&" * 200, "*",
                                   "http://elsewhere/", "/node/logs?lines=9999999999999999999999&unit=rank",
                                   "/node/watch?since=-1&wait_s=nan", "/rank/-1/report"])  # fmt: skip
        if rng.random() < 0.1:
            return b"DELETE /status HTTP/1.1\r\nHost: x\r\n" + self._good
        path = path.replace("{rank}", rng.choice(["0", "-1", "9" * 40, "x", "%30"]))
        key = self._good if rng.random() < 0.7 else b"Authorization: Bearer \xff\xfe\r\n"
        return f"{method} {path} HTTP/1.1\r\nHost: x\r\n".encode() + key

    def _bytes(self) -> bytes:
        return self._rng.randbytes(self._rng.randrange(1, 4000))

    def _line(self) -> bytes:
        return self._rng.choice([b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
                                 b"\r\n" * 500, b"GET / HTTP/1.1\n\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                                 b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /status HTTP/0.9\r\n\r\n"])  # fmt: skip

    def _long_head(self) -> bytes:
        return self._head() + b"X-Long: " + b"a" * self._rng.choice([7000, 9000, 70_000, 700_000]) + b"\r\n\r\n"

    def _many_heads(self) -> bytes:
        return self._head() + b"".join(b"X-%d: y\r\n" % i for i in range(self._rng.choice([90, 500, 5000]))) + b"\r\n"

    def _lengths(self) -> bytes:
        length = self._rng.choice(["-1", "x", "1e3", "99999999999999999999", "10, 10", "0x10", "+5"])
        return self._head("POST") + f"Content-Length: {length}\r\n\r\n".encode() + b"{}"

    def _chunks(self) -> bytes:
        head = self._head("POST") + b"Transfer-Encoding: chunked\r\n\r\n"
        chunks = [b"zz\r\n", b"ffffffffffffffff\r\nabc", b"3\r\nabcd\r\n0\r\n\r\n", b"-1\r\n\r\n"]
        return head + self._rng.choice(chunks)

    def _values(self) -> bytes:
        return self._head("POST") + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"

    def _body(self) -> bytes:
        anything: list[Any] = [None, True, -1, 1e308, "x" * 100, [], {}, {"id": "x"}, [[[[]]]], "NaN"]
        names = ["boot", "why", "grace_s", "settings_hash", "mark", "phase", "last_lines", "lost", "exit_status", "by"]
        body = {name: self._rng.choice(anything) for name in self._rng.sample(names, 5)}
        raw = self._rng.choice([json.dumps(body).encode(), b"[" * 5000, self._rng.randbytes(300), b'{"boot": NaN}'])
        return self._head("POST") + f"Content-Length: {len(raw)}\r\n\r\n".encode() + raw

    def _pipelined(self) -> bytes:
        return (self._head("GET", "/nothing") + b"\r\n") * 20

    def _nothing(self) -> bytes:
        return b""


async def test_a_thousand_requests_of_garbage_leave_the_supervisor_as_it_was(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as fleet:
        before = await fleet.up()
        assert before["state"] == "serving", before["refusals"]
        key = Path(fleet.settings.fleet.key_file).read_text().strip()
        garbage = _Garbage(41, key, fleet.settings.fleet.name)
        # The first half makes the buffers that stay; what the second half adds to them would be a leak.
        statuses = await _send(fleet, [garbage.next() for _ in range(N_REQUESTS // 2)])
        rss = (await fleet.status())["nodes"]["spark1"]["supervisor"]["rss_bytes"]
        fault = Fault("1,000 requests of garbage", sees="nothing", journal="none")
        statuses |= await _send(fleet, [garbage.next() for _ in range(N_REQUESTS // 2)])
        assert statuses >= {400, 404, 405}, statuses
        assert not any(500 <= status < 600 and status != 503 for status in statuses), statuses
        after = await fleet.status()
        assert (after["state"], after["boot"]) == ("serving", before["boot"])
        assert after["nodes"]["spark1"]["supervisor"]["rss_bytes"] < rss + GROWTH_BYTES
        log = fleet.log("spark1")
        assert "Traceback" not in log, log[-4000:]
        assert len(log.splitlines()) < 100, "garbage fills the log"
        fault.report()


async def _send(fleet: FleetUnderTest, requests: list[bytes]) -> set[int]:
    """Every status that came back."""
    here = fleet.settings.fleet.nodes["spark1"]
    where = str(here.management_address), here.supervisor_port
    statuses: set[int] = set()
    room = asyncio.Semaphore(AT_ONCE)

    async def one(raw: bytes) -> None:
        async with room:
            reader, writer = await asyncio.open_connection(*where)
            try:
                writer.write(raw)
                answer = await asyncio.wait_for(reader.read(65536), PATIENCE_S)
            except (ConnectionError, TimeoutError):
                return
            finally:
                writer.transport.abort()
            for line in answer.split(b"\r\n"):
                if line.startswith(b"HTTP/1."):
                    statuses.add(int(line.split()[1]))

    await asyncio.gather(*(one(raw) for raw in requests))
    return statuses
