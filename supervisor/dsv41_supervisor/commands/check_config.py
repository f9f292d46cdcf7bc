"""`dsv41 check-config FILE`: stage 1 alone; what the NixOS build runs on the rendered JSON."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import Exit
from ..settings import load


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("check-config", help="check a settings file")
    parser.add_argument("file", type=Path)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    settings = load(args.file)
    fleet = settings.fleet
    print(f"{args.file}: fleet {fleet.name}, {fleet.topology}, {fleet.world_size} nodes, settings {settings.hash[:12]}")
    return Exit.OK
