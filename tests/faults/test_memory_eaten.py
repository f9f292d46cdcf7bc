"""Fault: a rank eats memory at 2 GB/s while it loads, in a memory cgroup that stands for the machine's memory.

What the user sees: `dsv41 up` names the figure and the floor, and that the rank was killed; the next `up` starts anew.
What the operator sees: `… is …, below the floor of …: killing rank 0` (MESSAGE_ID MEMORY_FLOOR), an alert
`memory-kill`, and a bundle. The cgroup's own limit is never reached: nobody but the guard kills.

DSV41_GUARD_RUNS=20 makes it twenty times; a few are enough to see it break.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dsv41_supervisor.units.procfs import start_time

from tests.harness.fleet import running_fleet
from tests.harness.guard import MIB, memory_cgroup

RUNS = int(os.environ.get("DSV41_GUARD_RUNS", "3"))
LIMIT_BYTES = 1536 * MIB
FLOOR_BYTES = 512 * MIB
BYTES_PER_S = 2_000_000_000

# Started as the engine: prints what a loading engine prints, and two children eat at half the pace each.
EATER = """
import mmap, os, sys, time
with open({procs!r}, "w") as file:
    file.write(str(os.getpid()))
for line in ("Init torch distributed begin.", "Init parallel ends.", "Load weight begin."):
    print(line, flush=True)
for half in range(2):
    if os.fork():
        continue
    chunk, kept, began = 16 << 20, [], time.monotonic()
    out = os.open(f"{eaten}-{{half}}", os.O_WRONLY | os.O_CREAT)
    while len(kept) * chunk < {limit} // 2:
        # Populated by the kernel, chunk by chunk, at the wanted pace or as fast as this machine can.
        kept.append(mmap.mmap(-1, chunk, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
        os.pwrite(out, f"{{len(kept) * chunk:<20d}} {{time.monotonic() - began:<20.6f}}".encode(), 0)
        time.sleep(max(0.0, len(kept) * chunk / {rate} * 2 - (time.monotonic() - began)))
    time.sleep(600)
time.sleep(600)
"""


async def test_a_rank_that_eats_memory_is_killed_before_the_limit(tmp_path: Path, demo_checkpoint: Path) -> None:
    with memory_cgroup("dsv41-test-eaten", LIMIT_BYTES) as cgroup:
        eaten = [tmp_path / "eaten-0", tmp_path / "eaten-1"]
        engine = tmp_path / "engine"
        engine.mkdir()
        (engine / "scripted_engine.py").write_text(
            EATER.format(
                procs=str(cgroup.directory / "cgroup.procs"),
                eaten=str(tmp_path / "eaten"),
                limit=LIMIT_BYTES,
                rate=BYTES_PER_S,
            )
        )

        def guarded(raw: dict[str, Any]) -> None:
            raw["engine"]["python_path"] = [str(engine)]
            raw["guard"] = {"floor_bytes": FLOOR_BYTES, "cgroup_dir": str(cgroup.directory)}

        async with running_fleet(
            tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False, change=guarded
        ) as fleet:
            supervisor = fleet.demo.daemons[0].process.pid
            alive_since = start_time(supervisor)
            figures = []
            for _ in range(RUNS):
                status = await fleet.up()
                assert status["state"] == "failed"
                (refusal,) = status["refusals"]
                assert f"below the floor of {FLOOR_BYTES / 2**30:.2f} GiB: killing rank 0" in refusal["what"]
                assert status["nodes"]["spark1"]["measured"]["n_processes"] == 0
                each = [tuple(map(float, path.read_text().split())) for path in eaten]
                n_bytes, took_s = sum(n for n, _ in each), max(s for _, s in each)
                figures.append({"eaten_mib": round(n_bytes / MIB), "gb_per_s": round(n_bytes / 1e9 / took_s, 2)})
                assert (cgroup.n_oom_kills, cgroup.n_at_limit) == (0, 0)
                assert start_time(supervisor) == alive_since
                for path in eaten:
                    path.unlink()
            print(json.dumps({"runs": RUNS, "killed_by_the_guard": len(figures), "each": figures}))
            notices = [n["kind"] for n in (await fleet.status())["nodes"]["spark1"]["notices"]]
            assert notices.count("memory-kill") == RUNS
