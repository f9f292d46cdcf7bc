"""`dsv41 guard`: the memory guard of one node; what unit dsv41-guard runs. It replaces this process by a small one."""

from __future__ import annotations

import argparse
import os

from . import add_settings, read_settings, this_node


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("guard", help="guard one node's memory (unit dsv41-guard)")
    add_settings(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..guard.link import guard_argv

    settings = read_settings(args)
    argv = guard_argv(settings, this_node(args, settings))
    # What read the settings weighs three times what guards: it goes, and only the standard library is loaded anew.
    os.execv(argv[0], argv)
