"""`dsv41 schema`: the settings as JSON Schema; the NixOS options are generated from the committed copy."""

from __future__ import annotations

import argparse
import json

from ..errors import Exit
from ..settings import Settings


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("schema", help="print the JSON Schema of the settings")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    print(json.dumps(Settings.model_json_schema(), indent=2, sort_keys=True, ensure_ascii=False))
    return Exit.OK
