"""`dsv41 status`: every node, its rank and the reason for anything that is not ready."""

from __future__ import annotations

import argparse
import json
import sys

from ..errors import Exit
from ..settings import Settings
from . import add_settings, read_settings


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
            return await head.call("GET", "/status", timeout_s=15)

    status = asyncio.run(ask())
    if args.json:
        print(json.dumps(status))
    else:
        _show(status, rows(status))
    return Exit.OK if status["state"] == "serving" else Exit.UNAVAILABLE


def _decisions(args: argparse.Namespace, settings: Settings) -> int:
    import asyncio

    from ..fleet.peers import SupervisorClient

    async def ask() -> list[dict[str, object]]:
        async with SupervisorClient(settings, settings.fleet.head) as head:
            answer = await head.call("GET", f"/fleet/decisions?lines={args.decisions}", timeout_s=15)
            return list(answer["decisions"])

    decisions = asyncio.run(ask())
    if args.json:
        print(json.dumps(decisions))
        return Exit.OK
    for decision in decisions:
        print(f"{decision['at']}  {decision['decision']}" + (f", because {decision['why']}" if decision["why"] else ""))
    return Exit.OK


def _show(status, table) -> None:  # type: ignore[no-untyped-def]
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
    if status["reason"]:
        console.print(f"because: {status['reason']}", markup=False)
    shown = Table(box=None, pad_edge=False)
    for column in ("rank", "node", "state", "adapters"):
        shown.add_column(column, no_wrap=True)
    for column in ("rank MB", "daemon MB", "free GiB", "rows read"):
        shown.add_column(column, justify="right", no_wrap=True)
    for row in table:
        armed = ", ".join(f"{name} {state}" for name, state in row.get("adapters", {}).items()) or "-"
        figures = (
            row.get(name, "") for name in ("rss_mb", "supervisor_rss_mb", "memory_available_gib", "engram_rows_read")
        )
        shown.add_row(str(row["rank"]), row["node"], row["state"], armed, *map(str, figures))
    console.print(shown)
    for row in table:
        if row["detail"] != row["state"]:
            console.print(f"{row['node']}: {row['detail']}", markup=False)
    for line in together(status):
        console.print(line, markup=False)
    for line in status_lines(status):
        console.print(line, markup=False)
    for refusal in status["refusals"]:
        console.print(
            f"  {refusal['node'] or ''} {refusal['stage']}: {refusal['what']} {refusal['hint']}", markup=False
        )
