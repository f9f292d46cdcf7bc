"""`dsv41 rank N`: the main process of one rank; what unit dsv41-rank@N runs."""

from __future__ import annotations

import argparse

from . import add_settings, read_settings, this_node


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("rank", help="run one rank (unit dsv41-rank@N)")
    parser.add_argument("rank", type=int, metavar="N")
    add_settings(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from .. import journal
    from ..rank import process

    settings = read_settings(args)
    node = this_node(args, settings)
    journal.setup("info", node=node, rank=args.rank, stage="rank", world_size=settings.fleet.world_size)
    return asyncio.run(process.run(settings, node, args.rank))
