"""`dsv41 up`: bring the fleet up and wait until it serves."""

from __future__ import annotations

import argparse
import json

from ..errors import Exit
from . import add_settings, read_settings


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("up", help="bring the fleet up and wait until it serves")
    add_settings(parser, node=False)
    parser.add_argument("--json", action="store_true", help="print the fleet's status as JSON at the end")
    parser.add_argument("--timeout", type=float, metavar="S", help="stop waiting after S seconds; the fleet goes on")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from .fleet import failure, order

    said, status = asyncio.run(order(read_settings(args), "up", lambda s: s["state"] == "serving", args.timeout))
    if status["state"] != "serving":
        if args.json:
            print(json.dumps(status | {"said": said}))
        return failure(status)
    if args.json:
        print(json.dumps(status | {"said": said}))
        return Exit.OK
    print(f"serving: boot {status['boot']['id']}" + (f" ({said})" if "nothing was changed" in said else ""))
    return Exit.OK
