"""`dsv41 status`: every node, its rank and the reason for anything that is not ready."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ..errors import Dsv41Error, Exit, Refusal, Stage
from ..settings import Settings
from . import add_settings, read_settings
from .refusals import to_start_anyway


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("status", help="show the fleet")
    add_settings(parser, node=False)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--decisions", type=int, nargs="?", const=20, metavar="N", help="show the last N decisions and why instead (20)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from ..fleet.peers import SupervisorClient
    from .fleet import rows

    settings = read_settings(args)
    if args.decisions is not None:
        return _decisions(args, settings)

    async def ask() -> dict[str, object]:
        async with SupervisorClient(settings, settings.fleet.head) as head:
            await head.alive()
            return await head.call("GET", "/status", timeout_s=15)

    status = asyncio.run(ask())
    if args.json:
        print(json.dumps(status))
    else:
        _show(status, rows(status, settings.fleet), settings)
    return Exit.OK if status["state"] == "serving" else Exit.UNAVAILABLE


def _decisions(args: argparse.Namespace, settings: Settings) -> int:
    import asyncio

    from ..fleet.peers import SupervisorClient

    if args.decisions < 1:
        raise Dsv41Error(
            f"--decisions is {args.decisions}, expected 1 or more.", stage=Stage.CONFIG, hint="Leave N out for 20."
        )

    async def ask() -> list[dict[str, object]]:
        async with SupervisorClient(settings, settings.fleet.head) as head:
            await head.alive()
            answer = await head.call("GET", f"/fleet/decisions?lines={args.decisions}", timeout_s=15)
            return list(answer["decisions"])

    decisions = asyncio.run(ask())
    if args.json:
        print(json.dumps(decisions))
        return Exit.OK
    for decision in decisions:
        print("\n".join(decision_lines(decision)))
    return Exit.OK


def decision_lines(decision: dict[str, object]) -> list[str]:
    """One decision; each of its reasons but the first has a line of its own, below the first one's sentence."""
    at = str(decision["at"])
    why = str(decision.get("why") or "").splitlines()
    words = str(decision["decision"]).splitlines() or [""]
    if why:
        words[-1] += f", because {why[0]}"
    return [f"{at}  {words[0]}", *(" " * (len(at) + 4) + line for line in (*words[1:], *why[1:]))]


def reason_lines(status: dict[str, Any]) -> list[str]:
    """Why the fleet is not serving: the reason, and every refusal once, each with its check's id."""
    refusals = [Refusal.from_json(r) for r in status["refusals"]]
    shown = [str(r) for r in refusals]
    reason = str(status["reason"] or "").splitlines()
    # A boot that failed has its refusals for a reason.
    first = reason if reason and not set(reason) <= {line for text in shown for line in text.splitlines()} else []
    lines = [f"because: {first[0]}", *(f"  {line}" for line in first[1:])] if first else []
    if shown and not first:
        lines.append("because:" if len(shown) > 1 else f"because: {shown[0]}")
        shown = shown if len(shown) > 1 else []
    lines += [f"  {line}" for text in shown for line in text.splitlines()]
    return lines + to_start_anyway(refusals, status.get("override", ()))


def gateway_lines(status: dict[str, Any], settings: Settings) -> list[str]:
    """That nobody is served although the ranks may be: only when it is so."""
    from ..units.words import look_at_gateway

    gateway = status.get("gateway") or {}
    if gateway.get("trouble") is None:
        return []
    where = f"the gateway on {settings.fleet.head} at {gateway['where']}"
    return [f"{where} {gateway['trouble']}. {look_at_gateway(settings)}"]


def _show(status, table, settings) -> None:  # type: ignore[no-untyped-def]
    from rich.console import Console
    from rich.table import Table

    from ..fabric.words import status_lines
    from .together import together

    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    boot = status["boot"]["id"] if status["boot"] else "none"
    console.print(
        f"fleet {status['fleet']}: [bold]{status['state']}[/bold], boot {boot}, {status['recoveries']} recoveries"
    )
    if status.get("paused_by"):
        console.print(f"recovery is paused by {status['paused_by']}; dsv41 resume ends that", markup=False)
    if status.get("unwritten"):
        console.print(status["unwritten"], markup=False)
    if status.get("set_aside"):
        console.print(status["set_aside"], markup=False)
    for line in reason_lines(status):
        console.print(line, markup=False)
    shown = Table(box=None, pad_edge=False)
    for column in ("rank", "node", "state", "adapters"):
        shown.add_column(column, no_wrap=True)
    for column in ("rank MB", "daemon MB", "free GiB", "rows read"):
        shown.add_column(column, justify="right", no_wrap=True)
    for row in table:
        armed = ", ".join(f"{name} {state}" for name, state in row.get("adapters", {}).items()) or "-"
        measured = map(row.get, ("rss_mb", "supervisor_rss_mb", "memory_available_gib", "engram_rows_read"))
        figures = ("-" if figure is None else str(figure) for figure in measured)
        shown.add_row(str(row["rank"]), row["node"], row["state"], armed, *figures)
    console.print(shown)
    for row in table:
        if row["detail"] != row["state"]:
            console.print(f"{row['node']}: {row['detail']}", markup=False)
    for line in gateway_lines(status, settings):
        console.print(line, markup=False)
    for line in together(status, settings):
        console.print(line, markup=False)
    for line in status_lines(status):
        console.print(line, markup=False)
