"""What is attacked: the gateway as its own process, with an engine and a supervisor that this process plays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.ports import free_port

KEY = "a-key-for-the-tests-0123456789"
PROMPT = "a-prompt-that-no-log-may-show"
PATIENCE_S = 30.0
"""For one answer, on slow and busy cores: longer is a hang."""
START_S = 60.0

_OPENAI = {"id": "c1", "object": "chat.completion", "created": 1, "model": "demo",
           "choices": [{"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}],
           "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}  # fmt: skip
_ANTHROPIC = {"id": "m1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "42"}],
              "stop_reason": "end_turn", "usage": {"input_tokens": 9, "output_tokens": 1}}  # fmt: skip
_RESPONSES = {"id": "r1", "object": "response", "status": "completed", "output": []}
EVENTS = {
    "/v1/responses": b"event: response.created\ndata: {}\n\nevent: response.completed\ndata: {}\n\n",
    "/v1/messages": b"event: message_start\ndata: {}\n\nevent: message_stop\ndata: {}\n\n",
}
DONE = b"data: [DONE]\n\n"

Script = Callable[[str, dict[str, Any], asyncio.StreamWriter], Awaitable[None]]
"""Path, body, and where to write: one answer of the engine, byte by byte. Then the connection is closed."""


def whole(content: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    return head.encode() + content


async def answers(path: str, body: dict[str, Any], out: asyncio.StreamWriter) -> None:
    """As an engine in good health."""
    if body.get("stream"):
        out.write(whole(EVENTS.get(path, DONE), kind="text/event-stream"))
        return
    said = {"/v1/messages": _ANTHROPIC, "/v1/responses": _RESPONSES}.get(path, _OPENAI)
    out.write(whole(json.dumps(said).encode()))


async def _end_connections() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for connection in left:
        connection.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@dataclass
class Upstream:
    """Engine and supervisor, in a thread of their own."""

    engine_port: int = field(default_factory=free_port)
    supervisor_port: int = field(default_factory=free_port)
    script: Script = answers
    requests: int = 0
    aborts: int = 0

    async def _engine(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lengths = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
            raw = await reader.readexactly(int(lengths[0].split(":")[1])) if lengths else b"{}"
            path = head.split(" ")[1]
            if path == "/abort_request":
                self.aborts += 1
                writer.write(whole(b"{}"))
            else:
                self.requests += 1
                await self.script(path, json.loads(raw), writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the gateway closed: it is free to. Or the tests have ended
        finally:
            writer.close()

    async def _supervisor(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        says = {"version": 1, "ready": True, "reason": None, "state": "serving", "boot": "boot-1", "detail": None,
                "upstream": f"http://127.0.0.1:{self.engine_port}", "served_model_name": "demo",
                "retry_after_s": 0.0}  # fmt: skip
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"since=" in head:
                    await asyncio.sleep(1.0)
                content = json.dumps(says).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content)
                    + content
                )
        writer.close()

    @contextlib.contextmanager
    def running(self) -> Iterator[Upstream]:
        loop = asyncio.new_event_loop()
        up = threading.Event()

        async def serve() -> None:
            engine = await asyncio.start_server(self._engine, "127.0.0.1", self.engine_port, limit=1 << 20)
            supervisor = await asyncio.start_server(self._supervisor, "127.0.0.1", self.supervisor_port)
            up.set()
            async with engine, supervisor:
                await asyncio.Event().wait()

        task = loop.create_task(serve())

        def thread() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
            loop.run_until_complete(_end_connections())

        runner = threading.Thread(target=thread, daemon=True)
        runner.start()
        assert up.wait(START_S), "the scripted engine did not start"
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(task.cancel)
            runner.join(START_S)

    @contextlib.contextmanager
    def acting(self, script: Script) -> Iterator[None]:
        self.script = script
        try:
            yield
        finally:
            self.script = answers


@dataclass
class Answer:
    """One answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])


@dataclass
class Target:
    """A gateway process, and where it listens."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    upstream: Upstream
    _looked_at: int = 0

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def post(self, path: str, body: object, *head: str, key: str | None = KEY) -> Answer:
        """A request with a good head; bytes are sent as they are."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        with self.connect() as sock:
            sock.sendall(request("POST", path, f"Content-Length: {len(raw)}", *head, key=key) + raw)
            return read_answer(sock)

    def get(self, path: str) -> Answer:
        with self.connect() as sock:
            sock.sendall(request("GET", path))
            return read_answer(sock)

    def send(self, raw: bytes) -> Answer | None:
        """Whatever bytes; None when the connection was closed without an answer."""
        with self.connect() as sock:
            with contextlib.suppress(OSError):  # closed before all was sent
                sock.sendall(raw)
            try:
                return read_answer(sock)
            except (ConnectionError, EOFError):
                return None

    def must_serve(self) -> None:
        """A healthy client, now: its request is answered, and the log has nothing that it must not have."""
        answer = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]})
        assert answer.status == 200 and b'"42"' in answer.body, answer
        self.must_be_quiet()

    def must_be_quiet(self) -> None:
        assert self.process.poll() is None, f"the gateway ended: {self.said()[-2000:]}"
        for never in ("Traceback", "bug in the gateway", KEY, PROMPT):
            assert never not in self.said(), self.said()[-4000:]

    def said(self) -> str:
        """The log since `overlook`."""
        return self.log.read_bytes()[self._looked_at :].decode(errors="replace")

    def overlook(self) -> None:
        """What an earlier test made it say is that test's failure alone."""
        self._looked_at = self.log.stat().st_size

    @property
    def rss_bytes(self) -> int:
        return self._status("VmRSS")

    @property
    def peak_bytes(self) -> int:
        """Since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) * 1024

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def n_open(self) -> int:
        """Descriptors."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def request(method: str, path: str, *head: str, key: str | None = KEY, version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: x", *head]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if not any(line.lower().startswith("content-type") for line in head):
        lines.append("Content-Type: application/json")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def read_answer(sock: socket.socket) -> Answer:
    """One answer, with a length or until the end. Raises EOFError when none comes, TimeoutError when it hangs."""
    with sock.makefile("rb") as file:
        while True:
            line = file.readline()
            if not line:
                raise EOFError
            version, status = line.split(b" ")[:2]
            assert version in (b"HTTP/1.1", b"HTTP/1.0"), line
            headers = {}
            while (line := file.readline().strip()):
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            if status != b"100":
                break
        if "content-length" in headers:
            body = file.read(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(file.readline(), 16):
                body += file.read(size)
                file.readline()
        else:
            body = file.read()
    return Answer(int(status), headers, body)


def until(condition: Callable[[], Any], what: str, within_s: float = START_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        time.sleep(0.02)


@contextlib.contextmanager
def gateway(
    directory: Path,
    upstream: Upstream,
    *,
    shorter: str = "",
    n_files: int | None = None,
    tls: dict[str, str] | None = None,
) -> Iterator[Target]:
    """The real `dsv41 gateway`. `shorter`: statements that shorten waits of a minute; `n_files`: its limit of files."""
    for name, text in (("api-keys", f"me:{KEY}\n"), ("fleet-key", "f" * 64 + "\n")):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    port = free_port()
    settings = {
        "fleet": {
            "name": "test", "topology": "switched", "key_file": str(directory / "fleet-key"),
            "nodes": {"spark1": {"rank": 0, "management_address": "127.0.0.1", "management_interface": "lo",
                                 "supervisor_port": upstream.supervisor_port}},
        },
        "checkpoint": {"path": str(directory), "revision": "0" * 40},
        "engine": {"python": sys.executable, "device": "cpu", "parallelism": {"tp_size": 1},
                   "served_model_name": "demo"},
        "gateway": {"port": port, "keys_file": str(directory / "api-keys")} | ({"tls": tls} if tls else {}),
    }  # fmt: skip
    file = directory / "settings.json"
    file.write_text(json.dumps(settings))
    program = f"import sys\n{shorter}\nfrom dsv41_supervisor.__main__ import main\nsys.exit(main())"
    argv = [sys.executable, "-c", program, "gateway", "--settings", str(file), "--node", "spark1"]

    def limit_files() -> None:
        if n_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, n_files))

    log = directory / "log"
    with log.open("wb") as to:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=to, stderr=to, preexec_fn=limit_files)
    target = Target(process, port, log, upstream)
    try:
        until(lambda: "the fleet serves" in target.said() or process.poll() is not None, "the gateway's start")
        assert process.poll() is None, target.said()
        yield target
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError("the gateway did not stop 20 s after SIGTERM") from None
