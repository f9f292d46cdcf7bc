"""`dsv41 gateway`: the OpenAI endpoint that users see, on the head."""

from __future__ import annotations

import argparse
from pathlib import Path


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "gateway",
        help="serve the OpenAI endpoint on the head",
        description="Listens on gateway.address:gateway.port until SIGTERM. Passes requests on while the "
        "fleet serves, and answers 503 with Retry-After while it does not.",
    )
    parser.add_argument(
        "--settings", type=Path, required=True, metavar="FILE", help="settings of the fleet, JSON"
    )
    parser.add_argument("--node", required=True, metavar="NAME", help="the node this runs on: the head")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from .. import gateway, journal
    from ..settings import load

    journal.setup(stage="gateway", node=args.node)
    return gateway.run(load(args.settings), args.node)
