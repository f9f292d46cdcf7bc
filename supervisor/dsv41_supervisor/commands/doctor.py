"""`dsv41 doctor`: look at every node before anyone waits for a rank; --deep sends real traffic."""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import time

from ..errors import Exit
from . import add_settings, read_settings, this_node

DEFAULT_TIMEOUT_S = 1.2
DEEP_TIMEOUT_S = 20.0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("doctor", help="look for what is wrong, on every node and rail")
    add_settings(parser)
    parser.add_argument(
        "--deep", action="store_true", help="also send real traffic on every rail, and run a collective"
    )
    parser.add_argument("--list", action="store_true", help="print every check and look at nothing")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--timeout", type=_seconds, metavar="S",
        help=f"seconds that one fact may take to read ({DEFAULT_TIMEOUT_S:g}; {DEEP_TIMEOUT_S:g} with --deep)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.list:
        return _list(args)
    import asyncio

    from ..doctor.report import show
    from ..doctor.visit import visit

    settings = read_settings(args)
    here = this_node(args, settings) if args.node else _host_node(settings)
    timeout_s = args.timeout or (DEEP_TIMEOUT_S if args.deep else DEFAULT_TIMEOUT_S)
    began = time.monotonic()

    def progress(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", file=sys.stderr, flush=True)

    report = asyncio.run(visit(settings, here, deep=args.deep, timeout_s=timeout_s, show=progress))
    if args.json:
        print(json.dumps(report.to_json()), flush=True)
    else:
        show(report, sys.stdout)
    return report.exit_status


def _list(args: argparse.Namespace) -> int:
    from ..checks import all_checks
    from ..doctor.report import show_list

    if args.json:
        print(json.dumps([check.to_json() for check in all_checks()]), flush=True)
    else:
        show_list(all_checks(), sys.stdout)
    return Exit.OK


def _host_node(settings) -> str | None:  # type: ignore[no-untyped-def]
    """The node that this host is, if it is one."""
    name = socket.gethostname().split(".", 1)[0]
    return name if name in settings.fleet.nodes else None


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.1 <= (value := float(text)) <= 60:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not from 0.1 to 60 seconds")
