"""`dsv41`: one command for everything people touch. Each subcommand is a module in commands/."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Sequence

from . import __version__
from .commands.examples import EXAMPLES
from .errors import Dsv41Error, Exit

# In the order of a first day: try it, bring it up, look at it; then what units run.
COMMANDS = (
    "demo", "doctor", "up", "down", "drain", "pause", "status", "logs", "incident", "smoke", "key", "pack", "adapters",
    "check_config", "schema", "supervisor", "guard", "rank", "probe", "container", "gateway",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="dsv41", description=__doc__.split("\n", 1)[0] if __doc__ else None)
    top.add_argument("--version", action="version", version=f"dsv41 {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f".commands.{name}", __package__).register(subparsers)
    for name, command in subparsers.choices.items():
        if name in EXAMPLES:
            command.epilog = f"example: {EXAMPLES[name]}"
    return top


def unknown_command(argv: Sequence[str], known: Iterable[str]) -> str | None:
    """What to say about a first word that is no command; None when it is one, or an option."""
    known = list(known)
    if not argv or argv[0].startswith("-") or argv[0] in known:
        return None
    near = difflib.get_close_matches(argv[0], known, n=1)
    meant = f"Did you mean dsv41 {near[0]}? " if near else ""
    return f"there is no command {argv[0]!r}. {meant}dsv41 --help lists all."


def _flush() -> None:
    """Raises OSError now for what could only be told as a status of 120 when the interpreter ends."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
        raise


def _drop_output() -> None:
    """Whoever read it has left, or has no room: what is still in the buffer goes nowhere instead of failing again."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def main(argv: Sequence[str] | None = None) -> int:
    try:
        argv = sys.argv[1:] if argv is None else argv
        top = parser()
        known = next(a.choices for a in top._actions if isinstance(a, argparse._SubParsersAction))
        if (wrong := unknown_command(argv, known)) is not None:
            print(f"dsv41: {wrong}", file=sys.stderr)
            return Exit.USAGE
        args = top.parse_args(argv)
        status = int(args.run(args))
        _flush()
        return status
    except Dsv41Error as error:
        print(f"dsv41: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"dsv41: {where}{error.strerror or error}. Put that right, then try again.", file=sys.stderr)
        return Exit.UNAVAILABLE
    except Exception as error:
        traceback.print_exc()
        print(f"dsv41: a bug: {error!r}. Report it with the lines above.", file=sys.stderr)
        return Exit.BUG


if __name__ == "__main__":
    sys.exit(main())
