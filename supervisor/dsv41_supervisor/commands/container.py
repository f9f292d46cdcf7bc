"""`dsv41 container`: what podman has for this node's rank; what unit dsv41-container runs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from ..errors import Dsv41Error, Exit
from ..settings import Settings
from . import add_settings, read_settings, this_node


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("container", help="say what engine.container needs here (unit dsv41-container)")
    add_settings(parser)
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write that JSON to a file, whole or not at all")
    parser.add_argument("--remove", action="store_true", help="first remove containers whose rank is gone")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    settings = read_settings(args)
    node = this_node(args, settings)
    if settings.engine.container is None:
        print("engine.container is null: ranks run by engine.python, and no container is needed.")
        return Exit.OK
    if args.remove:
        _remove(settings.engine.container.podman, settings, node)
    from ..atomic import write_json
    from ..rank.container_look import look
    from ..rank.container_report import check_container

    facts = asyncio.run(look(settings, node))
    if args.to is not None:
        # The supervisor that asked is another user, and nothing in it is secret.
        write_json(args.to, facts.model_dump(mode="json"), 0o644)
        return Exit.OK
    if args.json:
        print(facts.model_dump_json(indent=2))
        return Exit.OK
    findings = check_container(settings, node, facts).findings
    for finding in findings:
        print(f"{finding.severity}: {finding}")
    if not findings:
        print(f"podman {facts.version} has {settings.engine.container.image} and what a rank needs beside it.")
    return Exit.UNAVAILABLE if any(finding.refuses for finding in findings) else Exit.OK


def _remove(podman: str, settings: Settings, node: str) -> None:
    """What stays is found by the look that follows."""
    from ..rank.container import node_label
    from ..rank.containers import remove_left

    try:
        for name in asyncio.run(remove_left(podman, node_label(settings, node))):
            print(f"removed {name}, whose rank is gone", file=sys.stderr)
    except Dsv41Error as error:
        print(error, file=sys.stderr)
