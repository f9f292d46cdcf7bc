"""`dsv41 incident`: keep a bundle of how things stand now; `list` and `show` those that were kept."""

from __future__ import annotations

import argparse
import getpass
import json
import time
from typing import Any
from urllib.parse import quote

from ..errors import Dsv41Error, Exit, Stage
from . import add_settings, read_settings


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "incident", help="keep, list and show bundles of failures",
        description="Without an action: keeps a bundle of how things stand now, and says where. Secrets are taken out.",
    )  # fmt: skip
    parser.add_argument("action", nargs="?", choices=("now", "list", "show"), default="now", help="(now)")
    parser.add_argument("name", nargs="?", help="with show: the bundle (the newest)")
    parser.add_argument("part", nargs="?", help="with show: print this part of it")
    parser.add_argument("--node", metavar="NODE", help="ask this node (the head, which keeps the fleet's)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_settings(parser, node=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from ..fleet.peers import SupervisorClient

    settings = read_settings(args)
    node = args.node or settings.fleet.head
    if node not in settings.fleet.nodes:
        raise Dsv41Error(
            f"{node} is not a node of fleet {settings.fleet.name}.", stage=Stage.CONFIG,
            hint=f"Name one of {', '.join(settings.fleet.in_rank_order)}.",
        )  # fmt: skip

    async def ask() -> dict[str, Any]:
        async with SupervisorClient(settings, node) as supervisor:
            await supervisor.alive()
            if args.action == "now":
                by = f"{getpass.getuser()} with dsv41 incident"
                return await supervisor.call("POST", "/incidents", {"by": by}, timeout_s=60)
            kept = await supervisor.call("GET", "/incidents", timeout_s=15)
            if args.action == "list":
                return kept
            name = args.name or (kept["incidents"][-1]["name"] if kept["incidents"] else None)
            if name is None:
                raise Dsv41Error(f"{node} has kept no bundle.", stage=Stage.RANK, hint="Make one with: dsv41 incident")
            part = f"?part={quote(args.part, safe='')}" if args.part else ""
            return await supervisor.call("GET", f"/incidents/{quote(name, safe='')}{part}", timeout_s=30)

    answer = asyncio.run(ask())
    if args.json:
        print(json.dumps(answer))
    elif "text" in answer:
        print(answer["text"], end="" if answer["text"].endswith("\n") else "\n")
    elif "parts" in answer:
        print(f"{answer['path']} on {node}")
        for part, size in answer["parts"].items():
            print(f"{size:>10}  {part}")
    elif "incidents" in answer:
        for entry in answer["incidents"]:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at"]))
            print(f"{at}  {entry['bytes']:>9}  {entry['name']}")
        if not answer["incidents"]:
            print(f"no bundle in {answer['directory']} on {node}")
    else:
        print(f"{answer['path']} on {node}")
    return Exit.OK
