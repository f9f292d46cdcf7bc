"""`dsv41 smoke`: one streamed chat request through the gateway, as a user would send it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..errors import Exit
from . import add_settings, read_settings


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("smoke", help="send one chat request through the gateway")
    add_settings(parser, node=False)
    parser.add_argument("--prompt", default="What is 19 + 23?")
    parser.add_argument("--max-tokens", type=int, default=32, metavar="N")
    parser.add_argument("--key-file", type=Path, help="file whose first key is used (gateway.keys_file)")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from ..smoke import ask, first_key
    from ..units.words import look_at_gateway

    settings = read_settings(args)
    keys_file = args.key_file or settings.path(settings.gateway.keys_file, settings.fleet.head)
    certificate = settings.gateway.tls.certificate
    trusted = settings.path(certificate, settings.fleet.head) if certificate is not None else None
    key = first_key(keys_file) if settings.gateway.require_key else None

    def show(text: str) -> None:
        if not args.json:
            sys.stdout.write(text)
            sys.stdout.flush()

    model, look = settings.engine.served_model_name, look_at_gateway(settings)
    asking = ask(
        settings.gateway.url, key, model, args.prompt, args.max_tokens, show, look=look, certificate=trusted
    )
    answer = asyncio.run(asking)
    if args.json:
        print(json.dumps(answer.to_json()))
    else:
        print(
            f"\n{answer.completion_tokens} tokens at {answer.tokens_per_s:.1f} tokens/s, "
            f"the first after {answer.first_s:.2f} s"
        )
    return Exit.OK
