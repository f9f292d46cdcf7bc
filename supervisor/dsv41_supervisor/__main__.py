"""`dsv41`: one command for everything people touch. Each subcommand is a module in commands/."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence

from . import __version__
from .errors import Dsv41Error, Exit

# In the order of a first day: try it, bring it up, look at it; then what units run.
COMMANDS = (
    "demo", "doctor", "up", "down", "drain", "pause", "status", "logs", "incident", "smoke", "pack", "adapters",
    "check_config", "schema", "supervisor", "guard", "rank", "probe", "gateway",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="dsv41", description=__doc__.split("\n", 1)[0] if __doc__ else None)
    top.add_argument("--version", action="version", version=f"dsv41 {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f".commands.{name}", __package__).register(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args = parser().parse_args(argv)
        return int(args.run(args))
    except Dsv41Error as error:
        print(f"dsv41: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
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
