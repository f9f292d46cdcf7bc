"""The scripted engine: a test double of SGLang that starts, loads, answers, hangs, lies and dies as it is told.

Takes SGLang's arguments and ignores what it does not need; behaves like `python -m sglang.launch_server` 0.5.23 as a
supervisor sees it: the same kinds of processes, log lines, ports, endpoints and ends. It loads no model and says so
in its log and in every answer. What it is told comes from the file in DSV41_SCRIPT (see scripted/script.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time

from scripted import arming
from scripted.dummy import serve_dummy
from scripted.lines import BANNER, WHO, Log
from scripted.script import Script, ScriptRefused

EXIT_REFUSED = 78
SCHEDULER_EXIT_TIMEOUT_S = 15
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_DETOKENIZER = """
import ctypes, signal
prctl = ctypes.CDLL(None).prctl
prctl(1, 9, 0, 0, 0)
prctl(15, b"sglang::detoken", 0, 0, 0)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pause()
"""


def main(argv: list[str]) -> int:
    arguments = _parse(argv)
    if arguments.scripted_scheduler is not None:
        from scripted.rank import run_scheduler

        _become("sglang::schedul")
        address = arguments.dist_init_addr
        return asyncio.run(run_scheduler(arguments.node_rank, arguments.nnodes, address, arguments.scripted_scheduler))
    return asyncio.run(Launcher(arguments).run())


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=WHO, allow_abbrev=False)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--served-model-name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--dist-init-addr", default="127.0.0.1:20000")
    parser.add_argument("--context-length", type=int, default=4096)
    parser.add_argument("--scripted-scheduler", type=int, help=argparse.SUPPRESS)
    arguments, _ = parser.parse_known_args(argv)
    if arguments.tp_size != arguments.nnodes:
        parser.error(
            f"--tp-size {arguments.tp_size} and --nnodes {arguments.nnodes}: the scripted engine has one rank a node"
        )
    return arguments


def _become(name: str) -> None:
    """A child of the launcher: named as SGLang's, dies with its parent as SGLang's, leaves Ctrl-C to it."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Launcher:
    """The main process of one rank: starts the others, serves HTTP, and ends when it must."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._rank = arguments.node_rank
        self._log = Log()
        self._children: list[asyncio.subprocess.Process] = []
        self._writer: asyncio.StreamWriter | None = None
        self._stop = asyncio.Event()

    async def run(self) -> int:
        print(BANNER, file=sys.stderr, flush=True)
        try:
            self._script = Script.from_environment(self._rank)
        except ScriptRefused as error:
            self._log(f"scripted engine: {error}")
            return EXIT_REFUSED
        if (reason := self._script.now.refuse_arming) is not None:
            arming.report("launcher", refused=reason)
            self._log(
                f"scripted engine: adapter refused: {reason}. Turn it off, or take refuse_arming out of the script."
            )
            return EXIT_REFUSED
        if self._script.now.ignore_sigterm:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._asked_to_stop)
        self._log(f"server_args={vars(self._arguments)}")
        try:
            return await self._run()
        finally:
            for child in self._children:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
            for child in self._children:
                await child.wait()

    async def _run(self) -> int:
        reader = await self._start_children()
        scheduler = self._children[0]
        tasks = {
            "end of the scheduler": asyncio.create_task(scheduler.wait()),
            "told to stop": asyncio.create_task(self._stop.wait()),
            "life": asyncio.create_task(self._live(reader)),
        }
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        if tasks["told to stop"].done():
            return await self._end_politely()
        if tasks["life"].done() and (status := tasks["life"].result()) is not None:
            return status
        # What it last said may still be on its way.
        with contextlib.suppress(TimeoutError):
            status = await asyncio.wait_for(asyncio.shield(tasks["life"]), 1)
            if status is not None:
                return status
        return await self._after_the_scheduler(await scheduler.wait())

    async def _start_children(self) -> asyncio.StreamReader:
        # aiohttp is imported afterwards: the scheduler starts meanwhile.
        ours, theirs = socket.socketpair()
        me = [sys.executable, os.path.abspath(__file__), *sys.argv[1:]]
        with theirs:
            argv = [*me, "--scripted-scheduler", str(theirs.fileno())]
            self._children.append(await asyncio.create_subprocess_exec(*argv, pass_fds=[theirs.fileno()]))
        if self._rank == 0:
            # It does nothing, so it need not be more than a name that dies with its parent.
            idle = [sys.executable, "-I", "-S", "-c", _DETOKENIZER]
            self._children.append(await asyncio.create_subprocess_exec(*idle))
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        return reader

    async def _live(self, reader: asyncio.StreamReader) -> int | None:
        """Serve, and do as the scheduler says. Returns an exit status, or None when the scheduler has ended."""
        began = time.monotonic()
        if self._rank == 0:
            from scripted.server import Head

            arguments = self._arguments
            model = arguments.served_model_name or arguments.model_path
            self._head = Head(model, arguments.context_length, self._script, self._log, self._tell)
        while line := await reader.readline():
            message = json.loads(line)
            if self._rank == 0:
                self._head.heard(message)
            if "exit" in message:
                return int(message["exit"])
            if "ready" in message:
                # Until here SIGTERM just ends the process, and the kernel its children: as with the real one.
                for number in (signal.SIGTERM, signal.SIGINT):
                    asyncio.get_running_loop().add_signal_handler(number, self._asked_to_stop)
                try:
                    await self._listen()
                except OSError as error:
                    # As the real one: it says so and does not end, because its other threads go on.
                    self._log(f"ERROR:    {error}")
                    self._log("INFO:     Waiting for application shutdown.")
                    await self._stop.wait()
                    return 1
                self._say_listening(time.monotonic() - began)
            if "warm" in message and self._rank == 0:
                self._head.warm = True
                self._log("The server is fired up and ready to roll!")
        return None

    async def _listen(self) -> None:
        host, port = self._arguments.host, self._arguments.port
        if self._rank > 0:
            self._server = await serve_dummy(host, port)
            return
        from aiohttp import web

        runner = web.AppRunner(self._head.app(), access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()

    def _say_listening(self, took_s: float) -> None:
        where = f"{self._arguments.host}:{self._arguments.port}"
        if self._rank > 0:
            self._log(f"Dummy health check server started in background thread at {where}")
            return
        self._log(f"Engine startup timings (s): load_weight=0.10, kv_cache_allocation=0.10, scheduler_e2e={took_s:.2f}")
        self._log(f"INFO:     Started server process [{os.getpid()}]")
        self._log("INFO:     Waiting for application startup.")
        self._log("INFO:     Application startup complete.")
        self._log(f"INFO:     Uvicorn running on http://{where} (Press CTRL+C to quit)")

    def _tell(self, order: dict[str, int]) -> None:
        assert self._writer is not None
        with contextlib.suppress(OSError):
            self._writer.write(json.dumps(order).encode() + b"\n")

    def _asked_to_stop(self) -> None:
        if self._script.now.ignore_sigterm:
            self._log("SIGTERM received, and ignored as the script says.")
        elif self._rank > 0:
            self._log(
                f"SIGTERM received on node_rank {self._rank}; waiting for the rank-0 ShutdownReq broadcast "
                "to stop the schedulers."
            )
        else:
            self._stop.set()

    async def _end_politely(self) -> int:
        """Rank 0 only. As the real one: what runs is waited for without a limit, then every rank is told to end."""
        self._log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        scheduler = self._children[0]
        while self._head.n_running and scheduler.returncode is None:
            await asyncio.sleep(0.05)
        await asyncio.sleep(self._script.now.stop_s)
        self._log("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
        self._tell({"stop": 1})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(scheduler.wait(), SCHEDULER_EXIT_TIMEOUT_S)
        return 0

    async def _after_the_scheduler(self, status: int) -> int:
        """The scheduler has ended, and so does the whole rank; with which status is SGLang's own (seen 2026-11-29)."""
        pid = self._children[0].pid
        if status == 0:
            return 0
        if self._rank > 0 and status < 0:
            # Killed from outside: the real launcher of a worker ends with 0.
            self._log(f"Scheduler or DataParallelController {pid} terminated with {status}")
            await asyncio.sleep(self._script.now.crash_s)
            self._log(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=False, pid={os.getpid()}")
            return 0
        if self._rank > 0:
            self._log("Received sigquit from a child process. It usually means the child failed.")
        else:
            if status < 0:
                self._log(
                    f"Subprocess scheduler_0 (pid={pid}) crashed with exit code {status}. "
                    "Triggering SIGQUIT for cleanup..."
                )
            self._log("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
            await asyncio.sleep(self._script.now.crash_s)
        self._log(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
        os.kill(os.getpid(), signal.SIGKILL)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
