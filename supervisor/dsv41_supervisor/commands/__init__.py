"""One module a command: `register(subparsers)` adds its parser, `run(args)` does it and returns the exit status."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

from ..errors import Dsv41Error, Stage
from ..settings import Settings, load

DEFAULT_SETTINGS = Path("/etc/dsv41/settings.json")


def add_settings(parser: argparse.ArgumentParser, *, node: bool = True) -> None:
    """--settings, and --node where a command is about one node."""
    parser.add_argument(
        "--settings", type=Path, default=DEFAULT_SETTINGS, metavar="FILE", help=f"settings file ({DEFAULT_SETTINGS})"
    )
    if node:
        parser.add_argument("--node", metavar="NAME", help="node this is about (this host's name)")


def read_settings(args: argparse.Namespace) -> Settings:
    return load(args.settings)


def this_node(args: argparse.Namespace, settings: Settings) -> str:
    """The node named by --node, or by this host's name."""
    name = args.node or socket.gethostname().split(".", 1)[0]
    if name not in settings.fleet.nodes:
        raise Dsv41Error(
            f"{name} is not a node of fleet {settings.fleet.name}.", stage=Stage.CONFIG,
            hint=f"Name one with --node: {', '.join(settings.fleet.in_rank_order)}.",
        )  # fmt: skip
    return str(name)
