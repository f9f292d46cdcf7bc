"""`dsv41 key`: make a client's API key on the head, and list those there are."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import Exit
from . import add_settings, read_settings


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "key",
        help="make an API key for a client, or list the keys",
        description="A new key is printed once; gateway.keys_file gets its hash. The running gateway takes it with the "
        "next request. To take a key away, delete its line.",
    )
    what = parser.add_subparsers(metavar="ACTION", required=True)
    new = what.add_parser("new", help="make a key and print it, this once")
    new.add_argument("name", metavar="NAME", help="whose key it is; shown in metrics and to its owner")
    new.add_argument(
        "limits", metavar="LIMIT=VALUE", nargs="*",
        help="requests= in flight, tokens_per_minute=, max_tokens=, effort= (default), models= (a,b)",
    )  # fmt: skip
    listed = what.add_parser("list", help="the names, with their limits")
    for sub, run in ((new, _new), (listed, _list)):
        add_settings(sub, node=False)
        sub.add_argument("--file", type=Path, help="key file (gateway.keys_file)")
        sub.set_defaults(run=run)


def _new(args: argparse.Namespace) -> int:
    from ..gateway import new_key

    path = _file(args)
    key = new_key.add(path, args.name, args.limits)
    print(key)
    print(f"It is shown this once; {path} holds its hash.", file=sys.stderr)
    return Exit.OK


def _list(args: argparse.Namespace) -> int:
    from ..gateway import new_key

    for name, entry in new_key.known(_file(args)).items():
        print(" ".join([name, *entry.limits.words()]))
    return Exit.OK


def _file(args: argparse.Namespace) -> Path:
    if args.file is not None:
        return Path(args.file)
    settings = read_settings(args)
    return Path(settings.path(settings.gateway.keys_file, settings.fleet.head))
