"""`dsv41 gateway`: the OpenAI endpoint that users see, on the head; what unit dsv41-gateway runs."""

from __future__ import annotations

import argparse

from . import add_settings, read_settings, this_node


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "gateway",
        help="serve the OpenAI endpoint on the head (unit dsv41-gateway)",
        description="Listens on gateway.address:gateway.port until SIGTERM. Passes requests on while the "
        "fleet serves, and answers 503 with Retry-After while it does not.",
    )
    add_settings(parser)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from .. import gateway, journal

    settings = read_settings(args)
    node = this_node(args, settings)
    journal.setup(args.log_level, stage="gateway", node=node)
    return gateway.run(settings, node)
