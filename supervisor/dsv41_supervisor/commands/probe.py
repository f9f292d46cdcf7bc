"""`dsv41 probe`: what unit dsv41-probe runs for `dsv41 doctor --deep`: a short program in the engine's environment."""

from __future__ import annotations

import argparse

from . import add_settings, read_settings, this_node


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("probe", help="run what the supervisor asked for (unit dsv41-probe)")
    add_settings(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..doctor.deep.probe import become

    settings = read_settings(args)
    return become(settings, this_node(args, settings))
