"""What up, down, drain and status share: asking the head, following until it is done, and showing a fleet."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from ..errors import Exit, Refusal
from ..settings import Fleet, Settings
from ..units.words import look_at_supervisor
from . import add_settings, read_settings
from .refusals import to_start_anyway

if TYPE_CHECKING:
    from ..fleet.peers import SupervisorClient

POLL_S = 0.5
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
_TAKEN = ("starting", "stopping", "draining")
"""What the head says of an order that needs no word more: the fleet's state follows."""
_LOST = {"up": "it was not brought up", "down": "it does not stay down", "drain": "it does not stay down"}
"""What became of an order that another one replaced."""

_GOES_ON = {
    "up": "the fleet goes on starting. dsv41 status shows how far it is, dsv41 down stops it",
    "down": "the fleet goes on stopping. dsv41 status shows what is left, dsv41 up starts it again",
    "drain": "the fleet goes on draining: running requests end, then every rank stops. dsv41 status shows how far it "
    "is, dsv41 down ends it now, dsv41 up starts it again",
}
"""What an order does after whoever gave it has stopped waiting, and the commands that look and undo."""


class StoppedWaiting(Exception):
    """Ctrl-C or SIGTERM while an order is followed. `taken`: the head has it, and goes on with it."""

    def __init__(self, what: str, taken: bool, exit_status: int) -> None:
        self.what, self.taken, self.exit_status = what, taken, exit_status
        super().__init__(what)

    def __str__(self) -> str:
        if self.taken:
            return f"no longer waiting; {_GOES_ON[self.what]}."
        return f"stopped before the head said that it took the order. dsv41 status shows whether it did ({self.what})."


async def order(
    settings: Settings, what: str, done_state: str, timeout_s: float | None, override: tuple[str, ...] = ()
) -> tuple[str, dict[str, Any]]:
    """Give the head an order and follow its status until it is done or failed; shows each change on standard error.

    Raises StoppedWaiting on Ctrl-C and on SIGTERM.
    """
    # Only now: the parser of every command imports this file, and aiohttp takes its time.
    from ..fleet.peers import SupervisorClient

    taken, exit_status = False, INTERRUPTED
    following = asyncio.current_task()
    assert following is not None

    def terminate() -> None:
        nonlocal exit_status
        exit_status = TERMINATED
        following.cancel()

    # Ctrl-C cancels by itself.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    asked: dict[str, Any] = {"by": f"{getpass.getuser()} with dsv41 {what}"}
    if override:
        asked["override"] = list(override)
    try:
        async with SupervisorClient(settings, settings.fleet.head) as head:
            await head.alive()
            answer = await head.call("POST", f"/fleet/{what}", asked)
            taken = True
            said = str(answer["said"])
            if said not in _TAKEN:
                # Now, not at the end: by then it is no longer so.
                print(f"dsv41: {said}", file=sys.stderr, flush=True)
            warn(answer.get("unwritten"))
            return said, await _follow(head, what, done_state, timeout_s)
    except asyncio.CancelledError:
        raise StoppedWaiting(what, taken, exit_status) from None


def warn(unwritten: object) -> None:
    """What an order's answer says about an order that is carried out and not on disk."""
    if unwritten is not None:
        print(f"dsv41: {unwritten}", file=sys.stderr, flush=True)


async def _follow(head: SupervisorClient, what: str, done_state: str, timeout_s: float | None) -> dict[str, Any]:
    began = time.monotonic()
    shown = ""
    while True:
        await head.alive()
        status = await head.call("GET", "/status", timeout_s=15)
        line = f"{status['state']}: {status['readiness']['detail']}"
        if line != shown:
            shown = line
            print(f"{time.monotonic() - began:7.1f} s  {line}", file=sys.stderr, flush=True)
        if status["state"] in (done_state, "failed"):
            return status
        if overruled(what, status) is not None:
            return status
        if timeout_s is not None and time.monotonic() - began > timeout_s:
            return status
        await asyncio.sleep(POLL_S)


def overruled(what: str, status: dict[str, Any]) -> str | None:
    """What became of an order that somebody's other one replaced, and whose; None while it holds."""
    wanted = status["wanted"]
    if wanted == ("up" if what == "up" else "down"):
        return None
    by = f"{wanted} was asked for"
    for entry in reversed(status["timeline"]):
        if " was asked for by " in entry["what"]:
            by = entry["what"]
            break
    return f"{_LOST[what]}: {by}"


def register_order(subparsers: Any, what: str, help_text: str, done_state: str, done_words: str) -> None:
    """The parser of an order to the head, which waits until the fleet is in `done_state`."""
    parser = subparsers.add_parser(what, help=help_text)
    add_settings(parser, node=False)
    parser.add_argument("--json", action="store_true", help="print the fleet's status as JSON at the end")
    parser.add_argument("--timeout", type=float, metavar="S", help="stop waiting after S seconds; the fleet goes on")
    if what == "up":
        parser.add_argument(
            "--override", metavar="ID", action="append", default=[],
            help="start although this check refuses (dsv41 doctor --list); logged, and shown in status",
        )  # fmt: skip
    parser.set_defaults(run=lambda args: _run_order(args, what, done_state, done_words))


def _run_order(args: argparse.Namespace, what: str, done_state: str, done_words: str) -> int:
    override = tuple(getattr(args, "override", ()))
    settings = read_settings(args)
    try:
        said, status = asyncio.run(order(settings, what, done_state, args.timeout, override))
    except StoppedWaiting as stopped:
        print(f"dsv41: {stopped}", file=sys.stderr)
        return stopped.exit_status
    if args.json:
        print(json.dumps(status | {"said": said}))
    if status["state"] != done_state:
        if status["state"] != "failed" and (why := overruled(what, status)) is not None:
            print(f"dsv41: {why}", file=sys.stderr)
            return Exit.UNAVAILABLE
        return failure(status)
    if done_state == "down" and (unseen := _unseen(status)):
        for node, trouble in unseen.items():
            left_s = status["nodes"][node].get("lease_left_s") or 0
            when = f"in {left_s:.0f} s at the latest" if left_s > 0 else "which has run out by now"
            print(
                f"dsv41: {node} was not seen: {trouble}. If its rank lives, it stops by itself when its lease ends, "
                f"{when}. {look_at_supervisor(settings, node)}",
                file=sys.stderr,
            )
        return Exit.UNAVAILABLE
    if status.get("unwritten") is not None:
        print(f"dsv41: {done_words}, but {status['unwritten']}", file=sys.stderr)
        return Exit.WARNINGS
    if not args.json:
        boot = f": boot {status['boot']['id']}" if status["boot"] else ""
        print(f"{done_words}{boot}")
    return Exit.OK


def _unseen(status: dict[str, Any]) -> dict[str, str]:
    """Nodes whose ranks nobody can vouch for, with the reason."""
    return {
        name: str(node.get("trouble") or "its supervisor is silent").rstrip(".")
        for name, node in status["nodes"].items()
        if "rank" not in node
    }


def failure(status: dict[str, Any]) -> int:
    """Show why a fleet is not where it was asked to be; the exit status that says whether trying again can help."""
    if status["state"] != "failed":
        print(f"dsv41: the fleet is still {status['state']}; it goes on without this command", file=sys.stderr)
        return Exit.UNAVAILABLE
    refusals = [Refusal.from_json(r) for r in status["refusals"]]
    for refusal in refusals:
        print(f"dsv41: {refusal}", file=sys.stderr)
    for line in to_start_anyway(refusals, status["override"]):
        print(f"dsv41: {line}", file=sys.stderr)
    if not refusals:
        print(f"dsv41: the fleet failed: {status['reason']}", file=sys.stderr)
    return Exit.UNAVAILABLE if refusals and all(r.transient for r in refusals) else Exit.REFUSED


def rows(status: dict[str, Any], fleet: Fleet) -> list[dict[str, Any]]:
    """One row a node, worst first. A node that does not answer has its rank from the fleet file."""
    table = []
    for name, node in status["nodes"].items():
        measured = node.get("measured", {})
        if "rank" not in node:
            detail = node.get("trouble") or "its supervisor is silent"
            number = fleet.nodes[name].rank if name in fleet.nodes else "?"
            table.append({"node": name, "rank": number, "state": "unreachable", "detail": detail})
            continue
        table.append(
            {
                "node": name,
                "rank": node["rank_number"],
                "state": node["rank"]["state"],
                "detail": node["rank"]["sentence"],
                "adapters": node["rank"]["armed"],
                "rss_mb": _in(measured.get("rank_rss_bytes"), 1e6, None),
                "supervisor_rss_mb": round(node["supervisor"]["rss_bytes"] / 1e6, 1),
                "memory_available_gib": _in(measured.get("memory_available_bytes"), 2**30, 1),
                "engram_rows_read": measured.get("counters", {}).get("engram_rows_read"),
            }
        )
    bad = {"unreachable": 0, "failed": 1}
    return sorted(table, key=lambda r: (bad.get(r["state"], 2), str(r["rank"]).zfill(3)))


def _in(n_bytes: int | None, unit: float, digits: int | None) -> float | None:
    """None for what was not measured: a node that has just gone silent has neither 0 MB nor no memory left."""
    return None if n_bytes is None else round(n_bytes / unit, digits)
