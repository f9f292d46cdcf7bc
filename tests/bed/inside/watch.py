"""Runs in a guest: a watch of the rails as beside a serving rank, and what it says of each change that is made here.

Arguments: the node, and a JSON list of [shell command, what a sentence of the watch must then hold; "" for none].
Prints, as JSON, what it said after each, and how many seconds that took.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

from dsv41_supervisor.fabric.links import read_links
from dsv41_supervisor.fabric.roots import Roots
from dsv41_supervisor.fabric.watch import FabricWatch, look
from dsv41_supervisor.settings import load

WAIT_S = 90.0


async def main(node: str, steps: list[tuple[str, str]]) -> None:
    settings = load(Path("/etc/dsv41/settings.json"))
    # A supervisor has long loaded what the first look needs; emulated, that takes longer than a look may.
    await read_links()
    watch = FabricWatch(settings, node, lambda: None)
    watch.start(await look(settings, node, Roots()))
    running = asyncio.create_task(watch.run())
    while watch.looked_at_s is None:
        await asyncio.sleep(0.05)
    said = []
    for command, wanted in steps:
        began = time.monotonic()
        subprocess.run(["sh", "-ec", command], check=True)
        while time.monotonic() < began + WAIT_S:
            sentences = [str(change) for change in watch.changes]
            if any(wanted in one for one in sentences) if wanted else not sentences:
                break
            await asyncio.sleep(0.05)
        said.append({"sentences": sentences, "took_s": round(time.monotonic() - began, 2)})
    running.cancel()
    print(json.dumps(said))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
