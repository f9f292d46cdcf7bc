"""The scheduler of one rank: loads in phases, meets the other ranks over TCP, and makes tokens in step with them.

Rank 0 listens where SGLang's rendezvous would; the others connect and stay connected. A token is one step: rank 0
asks every other rank and waits for all answers, as a collective does. So a stopped peer stalls every rank, and a
dead one is noticed by the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from . import arming
from .lines import Log, peer_lost, progress
from .script import Script, ScriptRefused

TICK_S = 0.02
N_SHARDS = 8
DECODE_LOG_INTERVAL = 40
STOP = b"x"


class Stopped(Exception):
    """Rank 0 has told every rank to end."""


@dataclass(slots=True)
class Running:
    """One request that tokens are made for."""

    id: int
    left: int
    made: int = 0


@dataclass(slots=True)
class Counters:
    """What /metrics shows, refreshed when SGLang refreshes it: tokens every step, gauges only now and then."""

    prefill_tokens: int = 0
    decode_tokens: int = 0
    n_running: int = 0
    gen_throughput: float = 0.0

    def to_json(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass
class Scheduler:
    """State of one scheduler process."""

    rank: int
    world_size: int
    address: str
    script: Script
    log: Log
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    peers: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=dict)
    requests: dict[int, Running] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    phase: str = "starting"
    _met: bool = False

    async def run(self) -> int:
        """From start to end. Returns the exit status."""
        tasks = [asyncio.create_task(work) for work in (self._live(), self._end_when_alone(), self._take_orders())]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        try:
            return done.pop().result()
        except Stopped:
            return 0

    async def _live(self) -> int:
        began = time.monotonic()
        await self.enter("starting")
        self.log("Init parallel begin.")
        await self.enter("rendezvous")
        met = time.monotonic()
        try:
            await self._meet()
        except OSError as error:
            self.log(f"Scheduler hit an exception: Traceback (most recent call last):\nDistNetworkError: {error}")
            return 1
        self._met = True
        self.log(f"Init parallel ends. elapsed={time.monotonic() - met:.2f} s")
        self.log("Memory baseline taken. mem usage=0.00 GB")
        await self._load_weights()
        await self.enter("pools")
        self.log("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 8192, K size: 0.01 GB, V size: 0.01 GB")
        self.log("Memory pool end. avail mem=21.70 GB")
        await self.enter("capture")
        await self._barrier()
        if self.rank == 0:
            self.log("max_total_num_tokens=8192, chunked_prefill_size=4096, max_prefill_tokens=16384")
        arming.report("scheduler")
        self.tell({"ready": True, "took_s": time.monotonic() - began})
        await self.enter("warmup")
        self.phase = "serving"
        self.tell({"warm": True})
        work = [self._obey_while_serving(), self._make_tokens() if self.rank == 0 else self._follow()]
        await asyncio.gather(*work)
        return 0

    async def enter(self, phase: str) -> None:
        """Reach a phase and spend its time, unless the script has other plans for it."""
        self.phase = phase
        if phase == "capture" and self.script.phase_s(phase) > 0:
            self.log("Capture decode CUDA graph begin. backend=scripted, avail mem=21.70 GB")
        ends = time.monotonic() + self.script.phase_s(phase)
        while await self._obey(phase) or time.monotonic() < ends:
            await asyncio.sleep(TICK_S)
        if phase == "capture" and self.script.phase_s(phase) > 0:
            self.log("Capture decode CUDA graph end. elapsed=0.10 s, mem usage=0.00 GB, avail mem=21.70 GB.")

    async def _obey(self, phase: str) -> bool:
        """Die, exit or hang when the script says so in this phase. True while hanging."""
        now = self.script.now
        if now.die_at == phase:
            os.kill(os.getpid(), signal.SIGKILL)
        if now.exit_at == phase:
            self.tell({"exit": now.exit_code})
            await asyncio.sleep(60)
        return now.hang_at == phase

    def tell(self, message: dict[str, Any]) -> None:
        """A message to our launcher."""
        self.writer.write(json.dumps(message).encode() + b"\n")

    # -- the other ranks -----------------------------------------------------------------------------------------

    async def _meet(self) -> None:
        if self.world_size == 1:
            return
        host, _, port = self.address.rpartition(":")
        if self.rank == 0:
            everyone = asyncio.Event()

            async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                with contextlib.suppress(ValueError):
                    self.peers[int(await reader.readline())] = reader, writer
                    if len(self.peers) == self.world_size - 1:
                        everyone.set()

            # On every address, as torch's TCPStore listens.
            self._server = await asyncio.start_server(join, "0.0.0.0", int(port))
            await everyone.wait()
            for _, writer in self.peers.values():
                writer.write(b"go\n")
            return
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(f"{self.rank}\n".encode())
                if await reader.readline() == b"go\n":
                    self.peers[0] = reader, writer
                    return
            await self._obey("rendezvous")
            await asyncio.sleep(0.1)

    async def _barrier(self) -> None:
        """Every rank says that it is here; rank 0 answers when all have."""
        if self.rank == 0:
            await self._step()
        elif self.world_size > 1:
            await self._answer_step(self.peers[0])

    async def _step(self) -> None:
        """One collective, driven by rank 0. Never returns once a peer is lost (`_end_when_alone` decides)."""
        try:
            for _, writer in self.peers.values():
                writer.write(b"s")
            for reader, _ in self.peers.values():
                await reader.readexactly(1)
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.Event().wait()

    async def _answer_step(self, peer: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        reader, writer = peer
        try:
            if await reader.readexactly(1) == STOP:
                raise Stopped
            while await self._obey(self.phase):
                await asyncio.sleep(TICK_S)
            writer.write(b"a")
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.Event().wait()

    # -- phases --------------------------------------------------------------------------------------------------

    async def _load_weights(self) -> None:
        self.phase = "weights"
        self.log("Load weight begin. avail mem=21.73 GB")
        began = time.monotonic()
        if self.rank == 0:
            progress(0, N_SHARDS, 0.0)
        for shard in range(1, N_SHARDS + 1):
            ends = began + self.script.phase_s("weights") * shard / N_SHARDS
            while await self._obey("weights") or time.monotonic() < ends:
                await asyncio.sleep(TICK_S)
            if self.rank == 0:
                progress(shard, N_SHARDS, time.monotonic() - began)
        took = time.monotonic() - began
        self.log(f"Load weight end. elapsed={took:.2f} s, type=Scripted, avail mem=21.71 GB, mem usage=0.02 GB.")

    async def _end_when_alone(self) -> int:
        """A broken connection is seen at once, also by an idle rank: it sits in a collective as well."""
        while not self._met or not self._alone():
            await asyncio.sleep(TICK_S)
        while (now := self.script.now).lie or now.peer_loss_s is None:
            await asyncio.sleep(TICK_S)
        await asyncio.sleep(now.peer_loss_s)
        self.log(peer_lost(self.address))
        return 1

    def _alone(self) -> bool:
        return any(
            reader.at_eof() or reader.exception() is not None or writer.is_closing()
            for reader, writer in self.peers.values()
        )

    async def _obey_while_serving(self) -> None:
        while True:
            await self._obey("serving")
            limit = self.script.now.die_after_tokens
            if limit is not None and self.counters.decode_tokens >= limit:
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(TICK_S)

    async def _take_orders(self) -> int:
        """Requests and aborts from the launcher; ends when the launcher closes the connection."""
        while line := await self.reader.readline():
            order = json.loads(line)
            if "abort" in order:
                self.requests.pop(order["abort"], None)
                continue
            if "stop" in order:
                for _, writer in self.peers.values():
                    writer.write(STOP)
                    with contextlib.suppress(OSError):
                        await writer.drain()
                return 0
            request = Running(order["id"], order["n_tokens"])
            self.requests[request.id] = request
            self.counters.prefill_tokens += order["n_prompt"]
            # Prefill refreshes the gauges, as SGLang does.
            self.counters.n_running = len(self.requests)
            self.tell({"counters": self.counters.to_json()})
            self.log(
                f"Prefill batch, #new-seq: 1, #new-token: {order['n_prompt']}, #cached-token: 0, token usage: 0.00, "
                f"#running-req: {len(self.requests) - 1}, #queue-req: 0, #pending-token: 0"
            )
        return 0

    async def _make_tokens(self) -> None:
        """Rank 0: a token for every request, one step at a time. Counters are refreshed as SGLang refreshes them."""
        for step in itertools.count(1):
            while not self.requests or self.script.now.stall_tokens or self.script.now.hang_at == "serving":
                if not self.requests and self.counters.n_running:
                    self.counters.n_running = 0
                    self.tell({"counters": self.counters.to_json()})
                await asyncio.sleep(TICK_S / 4)
            began = time.monotonic()
            await self._step()
            self.counters.decode_tokens += len(self.requests)
            for request in list(self.requests.values()):
                request.made += 1
                self.tell({"token": request.id, "n": request.made})
                if request.made >= request.left:
                    del self.requests[request.id]
            rate = self.script.now.tokens_per_s
            if step % DECODE_LOG_INTERVAL == 0:
                self.counters.n_running, self.counters.gen_throughput = len(self.requests), rate
                self.log(
                    f"Decode batch, #running-req: {len(self.requests)}, #token: {step}, token usage: 0.00, "
                    f"gen throughput (token/s): {rate:.2f}, #queue-req: 0"
                )
            self.tell({"counters": self.counters.to_json()})
            await asyncio.sleep(max(0.0, began + 1 / rate - time.monotonic()))

    async def _follow(self) -> None:
        """Any other rank: answer every step."""
        while True:
            await self._answer_step(self.peers[0])
            self.counters.decode_tokens += 1


async def run_scheduler(rank: int, world_size: int, address: str, fd: int) -> int:
    """Main of the scheduler process. `fd` is the socket to the launcher."""
    log = Log(rank if world_size > 1 else None)
    try:
        script = Script.from_environment(rank)
    except ScriptRefused as error:
        log(f"scripted engine: {error}")
        return 78
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=fd))
    scheduler = Scheduler(rank, world_size, address, script, log, reader, writer)
    status = await scheduler.run()
    with contextlib.suppress(OSError):
        await writer.drain()
    return status
