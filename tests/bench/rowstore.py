"""The row store against the design it replaces, the drive it reads and other ways to read a row.

    make bench NAME=rowstore [ARGS="--quick"]

Prints one JSON object: conditions, every goal with its figure and whether it holds, and all measurements. Arms are
interleaved call by call; outputs are compared byte by byte with what the rows must be. Goals are ratios inside one run.
Direct reads everywhere but where a peer cannot; peers through the page cache have the file's pages dropped first.
A virtual machine's host may cache the drive: no absolute figure here says anything about another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import rowstore_drive
import rowstore_memory
import rowstore_packing
import rowstore_parts as parts
import rowstore_peers
from rowstore_parts import Bench, Table, Threads, say

PARTS = {
    "once": rowstore_drive.once,
    "cold": rowstore_drive.cold,
    "hits": rowstore_memory.hits,
    "beside": rowstore_drive.beside,
    "peers": rowstore_peers.peers,
    "text": rowstore_memory.text,
    "pack": rowstore_packing.pack,
}


def conditions(table: Table, args: argparse.Namespace) -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    return {
        "machine": platform.machine(), "cpu": model, "cores": os.cpu_count(), "kernel": platform.release(),
        "load_average_before": os.getloadavg(), "table_gib": round(table.n_rows * 264 / 2**30, 2),
        "directory": str(table.path.parent), "quick": args.quick, "python": platform.python_version(),
        "baseline": "tests/bench/rowstore_baseline.c, written from a prose description of the published design",
    }  # fmt: skip


def markdown(bench: Bench, where: dict[str, object], argv: list[str]) -> str:
    """The goals as a table for people; rowstore/BENCHMARK.md carries one."""
    held = {True: "yes", False: "**no**", None: "not measured"}
    lines = [
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {where['cores']} cores {where['cpu']}, Linux {where['kernel']}, "
        f"table of {where['table_gib']} GiB, load {where['load_average_before'][0]:.1f} before and "
        f"{where['load_average_after'][0]:.1f} after; `python tests/bench/rowstore.py {' '.join(argv)}`",
        "", "| what | goal | figure | holds | what bounds it |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for goal in bench.goals:
        figure = "" if goal["figure"] is None else f"{goal['figure']:.4g} {goal['unit']}".strip()
        lines.append(f"| {goal['name']} | {goal['goal']} | {figure} | {held[goal['holds']]} | {goal.get('note', '')} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a small table and fewer calls; about two minutes"
    )
    parser.add_argument("--dir", default=os.path.join(tempfile.gettempdir(), "dsv41-bench-rowstore"))
    parser.add_argument("--tokens", help="a file of int32 token ids to use as text")
    parser.add_argument("--cache-mib", type=int, default=None, help="cache of the text replay, one layer")
    parser.add_argument("--only", help=f"comma-separated parts: {','.join(PARTS)}")
    parser.add_argument("--markdown", help="write the goals as a table there, too")
    args = parser.parse_args()
    args.cache_mib = args.cache_mib or (32 if args.quick else 2048)
    directory = Path(args.dir) / ("quick" if args.quick else "full")
    directory.mkdir(parents=True, exist_ok=True)
    Threads.library = parts.compile_c(directory, "rowstore_baseline")
    table = Table(directory, (2 << 20) if args.quick else (16 << 20))
    bench = Bench(table, args)
    where = conditions(table, args)
    for part in args.only.split(",") if args.only else PARTS:
        say(f"{part} …")
        PARTS[part](bench)
    where["load_average_after"] = os.getloadavg()
    if args.markdown:
        Path(args.markdown).write_text(markdown(bench, where, sys.argv[1:]))
    print(json.dumps({"conditions": where, "goals": bench.goals, "measured": bench.measured}, indent=1))


if __name__ == "__main__":
    main()
