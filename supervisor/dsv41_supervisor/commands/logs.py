"""`dsv41 logs NODE`: last lines of that node's rank (or of packing), asked of its supervisor."""

from __future__ import annotations

import argparse

from ..errors import Dsv41Error, Exit, Stage
from . import add_settings, read_settings


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("logs", help="show a rank's last lines")
    parser.add_argument("node_name", metavar="NODE", nargs="?", help="node (the head)")
    parser.add_argument("-n", "--lines", type=int, default=60, metavar="N", help="number of lines (60)")
    parser.add_argument("--unit", choices=("rank", "pack"), default="rank")
    add_settings(parser, node=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from ..fleet.peers import SupervisorClient

    if args.lines < 1:
        raise Dsv41Error(
            f"--lines is {args.lines}, expected 1 or more.", stage=Stage.CONFIG, hint="Leave it out for 60."
        )
    settings = read_settings(args)
    node = args.node_name or settings.fleet.head
    if node not in settings.fleet.nodes:
        raise Dsv41Error(
            f"{node} is not a node of fleet {settings.fleet.name}.", stage=Stage.CONFIG,
            hint=f"Name one of {', '.join(settings.fleet.in_rank_order)}.",
        )  # fmt: skip

    async def ask() -> list[str]:
        async with SupervisorClient(settings, node) as supervisor:
            answer = await supervisor.call("GET", f"/node/logs?unit={args.unit}&lines={args.lines}")
            return [str(line) for line in answer["lines"]]

    print("\n".join(asyncio.run(ask())))
    return Exit.OK
