"""`dsv41 pause` and `dsv41 resume`: keep the fleet from recovering by itself, and let it again."""

from __future__ import annotations

import argparse
import getpass

from ..errors import Exit
from . import add_settings, read_settings

_HELP = {
    "pause": "start no recovery until resumed; what serves goes on",
    "resume": "recover by itself again",
}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for what, help_text in _HELP.items():
        parser = subparsers.add_parser(what, help=help_text)
        add_settings(parser, node=False)
        parser.set_defaults(run=lambda args, what=what: run(args, what))


def run(args: argparse.Namespace, what: str) -> int:
    import asyncio

    from ..fleet.peers import SupervisorClient

    settings = read_settings(args)

    async def ask() -> str:
        async with SupervisorClient(settings, settings.fleet.head) as head:
            await head.alive()
            by = f"{getpass.getuser()} with dsv41 {what}"
            return str((await head.call("POST", f"/fleet/{what}", {"by": by}))["said"])

    print(asyncio.run(ask()))
    return Exit.OK
