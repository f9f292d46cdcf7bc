"""`dsv41 supervisor`: the daemon of one node; what unit dsv41-supervisor runs."""

from __future__ import annotations

import argparse

from . import add_settings, read_settings, this_node


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("supervisor", help="run the daemon of one node (unit dsv41-supervisor)")
    add_settings(parser)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from ..light import few_arenas, pyroute2_by_parts, settled

    few_arenas()
    pyroute2_by_parts()
    from .. import daemon, journal

    settings = read_settings(args)
    node = this_node(args, settings)
    journal.setup(args.log_level, node=node, rank=settings.fleet.nodes[node].rank, world_size=settings.fleet.world_size)
    settled()
    return asyncio.run(daemon.run(settings, args.settings.resolve(), node))
