"""Asked before `nixos-rebuild switch`: would the new system change what a running rank was started from?

A switch itself never restarts a rank. But it restarts the supervisor, and one whose rank runs another closure or other
settings stops the whole fleet and starts it anew: minutes without an answer that nobody asked for. So it is refused,
with what to do instead. Standard library only; exit status 0 lets the switch go on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

NOW = ("switch", "test")
"""Actions that change the running system. `boot` waits for a restart of the machine, `dry-activate` does nothing."""
RUNNING = ("active", "activating", "reloading", "deactivating")
TEMPLATE = "dsv41-rank@.service"


def running(unit: str) -> bool:
    """Whether systemd has the unit now; a systemd that cannot be asked has none of ours."""
    asked = subprocess.run(
        ["systemctl", "show", "--property=ActiveState", "--value", unit], capture_output=True, text=True
    )
    return asked.returncode == 0 and asked.stdout.strip() in RUNNING


def changed(current: Path, incoming: Path) -> list[str]:
    """Names of the unit's lines that differ between two systems; empty where the rank stays the same."""
    before, after = (lines(system / "etc/systemd/system" / TEMPLATE) for system in (current, incoming))
    return sorted({line.partition("=")[0] for line in before ^ after if "=" in line})


def lines(unit: Path) -> set[str]:
    try:
        return set(unit.read_text().splitlines())
    except FileNotFoundError:
        return set()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", required=True)
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--head", required=True)
    parser.add_argument("--current", type=Path, default=Path("/run/current-system"))
    parser.add_argument("incoming", type=Path)
    parser.add_argument("action", nargs="?", default="switch")
    args = parser.parse_args()
    unit = f"dsv41-rank@{args.rank}"
    if args.action not in NOW or not running(f"{unit}.service"):
        return 0
    different = changed(args.current, args.incoming)
    if not different:
        return 0
    print(
        f"{args.node} rank {args.rank}, config: {unit} is running, and this switch changes what it was started from "
        f"({', '.join(different)}). The fleet would be stopped and started anew.\n"
        f"Nothing was changed. Either finish what runs, and switch all nodes before the next start:\n"
        f"    dsv41 drain                        # on {args.head}\n"
        f"    nixos-rebuild {args.action}               # on every node\n"
        f"    systemctl start dsv41-rank@0       # on {args.head}\n"
        f"or let it wait for the next boot of the machine: nixos-rebuild boot.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
