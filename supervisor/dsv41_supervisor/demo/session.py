"""`dsv41 demo`, from nothing to an answer: environments, checkpoint, network, nodes, fleet, gateway, one chat request.

The order is the seven stages'; this file only strings them together and shows how far it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..atomic import write_json
from ..errors import Dsv41Error, Exit, Refusal, Refused, Stage
from ..fleet.peers import SupervisorClient
from ..settings import EngineKind, Settings, parse
from ..smoke import Answer, ask, first_key
from .ended import NOT_AGAIN
from .fleet import DaemonEnded, DemoFleet
from .fleet_settings import choose_ports, demo_settings, ensure_keys
from .network import Mode, Network, mode
from .progress import Progress
from .report import SCRIPTED, report, what_next

POLL_S = 0.25
CHECKPOINT_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for on the command line."""

    root: Path
    """Checkout that holds demo/, rowstore/ and adapters/."""
    state_root: Path
    tp: int
    nodes: int
    engine: EngineKind
    once: bool
    as_json: bool
    prompt: str
    max_tokens: int
    loopback: bool
    gateway_port: int | None
    script: Path | None
    prepare_only: bool


async def run(options: Options) -> int:
    """The whole demo. Leaves no process, namespace, mount or socket, however it ends."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    with Progress() as progress, _only_one(options.state_root):
        work = asyncio.ensure_future(_run(options, progress, stop))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                return await work
            return 130
        return await work


async def _run(options: Options, progress: Progress, stop: asyncio.Event) -> int:
    python = Path(sys.executable)
    if options.engine is EngineKind.SGLANG:
        from .environments import ensure_engine

        with progress.stage("environment"):
            environment = await asyncio.to_thread(ensure_engine, options.root, sys.executable, progress)
            python = environment.python
    else:
        progress.say(f"this is the {SCRIPTED}")
    with progress.stage("checkpoint"):
        checkpoint, revision = await asyncio.to_thread(make_checkpoint, options.root, options.state_root)
    if options.prepare_only:
        return Exit.OK
    probe = mode()
    network = Network(options.nodes, probe._replace(mode=Mode.LOOPBACK) if options.loopback else probe)
    with progress.stage("network"):
        await asyncio.to_thread(network.open)
    progress.say(f"network: {network.mode} ({network.reason})")
    fleet: DemoFleet | None = None
    try:
        fleet = _fleet(options, network, python, checkpoint, revision)
        return await _serve(options, fleet, progress)
    finally:
        with progress.stage("stop"):
            left = await _to_the_end(_stop(fleet, network))
        if left:
            raise Dsv41Error(
                f"left behind: {', '.join(left)}.",
                stage=Stage.RANK,
                hint="End them by hand: kill -9 PID.",
                transient=True,
            )
        progress.say(
            f"stopped; nothing is left but files: keys, settings, rows and logs in {options.state_root}, "
            f"the checkpoint in {checkpoint}"
        )


async def _to_the_end(work: Coroutine[Any, Any, list[str]]) -> list[str]:
    """A second Ctrl-C must not leave half of it behind: cancellation waits until the work is done."""
    task = asyncio.ensure_future(work)
    while not task.done():
        # Swallowed: what is left must still be named, and nothing of the demo comes after this.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    return task.result()


async def _stop(fleet: DemoFleet | None, network: Network) -> list[str]:
    if fleet is not None:
        await fleet.stop()
    return await asyncio.to_thread(network.close)


async def _serve(options: Options, fleet: DemoFleet, progress: Progress) -> int:
    began = time.monotonic()
    with progress.stage("supervisors"):
        await fleet.start_supervisors()
    with progress.stage("gateway starts"):
        await fleet.start_gateway()
    async with SupervisorClient(fleet.settings, fleet.settings.fleet.head) as head:
        await head.call("POST", "/fleet/up", {"by": "dsv41 demo"})
        status = await _until_serving(fleet, head, progress)
        ready_s = time.monotonic() - began
        stages = progress.took_s | _stage_times(status, fleet.settings)
        if not options.once:
            print(what_next(fleet, fleet.settings.gateway.keys_file), file=sys.stderr)
        answer = await _answer(options, fleet, progress)
        stages["gateway"] = answer.took_s
        status = await fleet.status(head)
        result = report(fleet, status, answer, ready_s, stages)
        if options.as_json:
            print(json.dumps(result, ensure_ascii=False), flush=True)
        elif options.once:
            _print_report(result)
        if options.once:
            return Exit.OK
        await _stay(fleet, head, progress)
    return Exit.OK


async def _until_serving(fleet: DemoFleet, head: SupervisorClient, progress: Progress) -> dict[str, Any]:
    """Follow the boot, showing each node's stage. Raises Refused with every reason when it fails."""
    shown: dict[str, str] = {}
    with progress.stage("fleet"):
        while True:
            status = await fleet.status(head)
            for name, node in status["nodes"].items():
                text, fraction = _node_line(node)
                if shown.get(name) != text or fraction is not None:
                    shown[name] = text
                    progress.node(name, text, fraction)
            if status["state"] == "serving":
                return status
            if status["state"] == "failed":
                refusals = [Refusal.from_json(r) for r in status["refusals"]]
                if refusals:
                    raise Refused(refusals)
                hint = f"See the logs in {fleet.state_root}."
                raise Dsv41Error(f"the fleet failed: {status['reason']}", stage=Stage.ENGINE, hint=hint)
            await asyncio.sleep(POLL_S)


def _node_line(node: dict[str, Any]) -> tuple[str, float | None]:
    if "rank" not in node:
        return "no answer yet", None
    if node["prepare"]["state"] == "running":
        stage = node["prepare"]["stage"]
        return f"stage {stage}" if stage else "begins its checks", node["prepare"]["fraction"]
    if node["rank"]["state"] == "absent":
        return "checked" if node["prepare"]["state"] == "passed" else "idle", None
    return node["rank"]["sentence"], node["rank"]["fraction"] if node["rank"]["state"] == "loading" else None


async def _answer(options: Options, fleet: DemoFleet, progress: Progress) -> Answer:
    key = first_key(Path(fleet.settings.gateway.keys_file))
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if not options.as_json:
            sys.stderr.write(text)
            sys.stderr.flush()

    with progress.stage("answer", quiet=True):
        progress.say(f"asking: {options.prompt}")
        answer = await ask(
            fleet.endpoint, key, fleet.settings.engine.served_model_name, options.prompt, options.max_tokens, show
        )
        if shown and not options.as_json:
            sys.stderr.write("\n")
    progress.say(f"{answer.completion_tokens} tokens at {answer.tokens_per_s:.1f} tokens/s")
    return answer


async def _stay(fleet: DemoFleet, head: SupervisorClient, progress: Progress) -> None:
    """Until Ctrl-C: say what changes."""
    said = ""
    while True:
        try:
            status = await fleet.status(head)
            line = f"{status['state']}{': ' + str(status['reason']) if status['reason'] else ''}"
        except DaemonEnded as error:
            line = f"{error} {NOT_AGAIN}"
        except Dsv41Error as error:
            line = str(error)
        if line != said:
            said = line
            progress.say(f"fleet: {line}")
        await asyncio.sleep(1)


def _stage_times(status: dict[str, Any], settings: Settings) -> dict[str, float]:
    """Stages 2–4 take as long as the slowest node; rank and engine from the head's timeline."""
    stages: dict[str, float] = {}
    for stage in (Stage.FABRIC, Stage.SHARE, Stage.PACK):
        took = [node["prepare"]["took_s"].get(stage) for node in status["nodes"].values()]
        stages[stage] = max((t for t in took if t is not None), default=0.0)
    at = {entry["what"]: entry["at"] for entry in status["timeline"]}
    if {"workers start", "head starts", "serving"} <= set(at):
        stages[Stage.RANK] = at["head starts"] - at["workers start"]
        stages[Stage.ENGINE] = at["serving"] - at["head starts"]
    return stages


def _fleet(options: Options, network: Network, python: Path, checkpoint: Path, revision: str) -> DemoFleet:
    state_root = options.state_root
    keys = ensure_keys(state_root)
    raw = demo_settings(
        network, state_root=state_root, tp=options.tp, nodes=options.nodes, engine=options.engine,
        engine_python=python, demo_dir=options.root / "demo", checkpoint_dir=checkpoint, revision=revision,
        ports=choose_ports(network, options.gateway_port), script=options.script,
    )  # fmt: skip
    settings_path = state_root / "settings.json"
    settings = parse(json.dumps(raw), "the demo's settings")
    write_json(settings_path, raw)
    # What an earlier demo was doing is over: nothing of it may be adopted.
    for node in settings.fleet.nodes:
        for path in [*settings.state_dir(node).glob("*.json"), *settings.run_dir(node).glob("units/*.json")]:
            path.unlink()
    assert str(keys.api_keys_file) == settings.gateway.keys_file
    return DemoFleet(settings, settings_path, network, state_root)


def make_checkpoint(root: Path, state_root: Path) -> tuple[Path, str]:
    """Directory and revision of the demo's checkpoint; made when it is missing or damaged."""
    target = state_root.parent / "checkpoint"
    script = root / "demo" / "make_checkpoint.py"
    if not script.is_file():
        raise Dsv41Error(
            f"{script} is missing.", stage=Stage.SHARE,
            hint="Run the demo from a checkout of the project, or name one with --source.",
        )  # fmt: skip
    result = subprocess.run(
        [sys.executable, str(script), str(target)], capture_output=True, text=True, timeout=CHECKPOINT_TIMEOUT_S
    )
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        raise Dsv41Error(
            f"the demo's checkpoint could not be made: {lines[-1] if lines else f'status {result.returncode}'}",
            stage=Stage.SHARE, hint=f"Free some space or remove {target}, then try again.",
            transient=result.returncode == 69,
        )  # fmt: skip
    manifest = json.loads((target / "dsv41-checkpoint.json").read_text())
    return target, str(manifest["revision"])


@contextlib.contextmanager
def _only_one(state_root: Path) -> Iterator[IO[str]]:
    """Two demos in one state directory would take each other's units for their own."""
    try:
        state_root.mkdir(parents=True, exist_ok=True)
        file = (state_root / "lock").open("a+")
    except OSError as error:
        raise Dsv41Error(
            f"cannot write {state_root}: {error.strerror}.", stage=Stage.CONFIG, hint="Name another with --state."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise Dsv41Error(
                f"another demo (process {file.read().strip() or '?'}) runs in {state_root}.", stage=Stage.CONFIG,
                hint="Stop it with Ctrl-C, or name another directory with --state.", transient=True,
            ) from None  # fmt: skip
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file


def _print_report(result: dict[str, Any]) -> None:
    print(f"ready after {result['ready_s']} s")
    for rank in result["ranks"]:
        print(f"rank {rank['rank']} on {rank['node']}: {rank['state']}, {rank['rss_mb']} MB")
    print(
        f"supervisors: {', '.join(map(str, result['supervisors_rss_mb']))} MB; gateway: {result['gateway_rss_mb']} MB"
    )
    print(f"{result['completion_tokens']} tokens at {result['tokens_per_s']} tokens/s; "
          f"{result['engram_rows_read']} Engram rows read by the row stores")  # fmt: skip
    print("stages: " + ", ".join(f"{name} {took} s" for name, took in result["stages"].items()))
    print("not shown here:")
    for sentence in result["shows_not"]:
        print(f"  {sentence}")
