"""A bounded RDMA write with perftest's ib_write_bw: how it is called, what it prints, what the figure means.

`not run on GB10`: the parser is tested on what perftest 25.01 printed over soft-RoCE and on text of its shape, the flow
over soft-RoCE (tests/bed) and with a stand-in program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

PROGRAM = "ib_write_bw"
GOOD_GBIT_S = 90.0
"""A twin is one PCIe Gen5 x4 function: about 100 Gb/s. Source: issue 5; 92.6 and 97.3 in the vendor's own example."""
POWER_STATE_GBIT_S = (8.0, 25.0)
"""Link, width and counters are clean, and yet 13 Gb/s: only removing all power clears it. Source: users.md F15."""
_MESSAGE_BYTES = 65536


class Verdict(StrEnum):
    GOOD = "good"
    SLOW = "slow"
    POWER_STATE = "power-state"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """What one run of ib_write_bw printed. `average_gbit_s` is None when it printed no figure."""

    device: str | None
    gid_index: int | None
    mtu_bytes: int | None
    average_gbit_s: float | None
    problem: str | None

    @property
    def verdict(self) -> Verdict:
        if self.average_gbit_s is None:
            return Verdict.FAILED
        if self.average_gbit_s >= GOOD_GBIT_S:
            return Verdict.GOOD
        low, high = POWER_STATE_GBIT_S
        return Verdict.POWER_STATE if low <= self.average_gbit_s <= high else Verdict.SLOW


def argv(device: str, gid_index: int, port: int, seconds: int, server: str | None = None) -> list[str]:
    """The listening end without `server`, the writing end with the address that the other one exchanges data on."""
    return [
        PROGRAM, "-d", device, "-i", "1", "-x", str(gid_index), "-p", str(port), "-s", str(_MESSAGE_BYTES),
        "-D", str(seconds), "-F", "--report_gbits", *([server] if server else []),
    ]  # fmt: skip


def parse(text: str, seconds: int | None = None) -> Bandwidth:
    """The last bandwidth of one run, with device, GID index and MTU; the first error line when there is none.

    With -F perftest prints zero where it could not tell how fast its clock ticks (a busy machine: "Correlation
    coefficient r^2: … < 0.9"); the figure is then what it counted in the `seconds` that it was given. Source:
    perftest's src/get_clock.c, and print_report_bw in src/perftest_parameters.c.
    """

    def field(pattern: str) -> str | None:
        found = re.search(pattern, text, re.MULTILINE)
        return found.group(1) if found else None

    unit = field(r"BW average\[([^\]]+)\]")
    # bytes, iterations, peak, average, message rate
    rows = re.findall(r"^\s*(\d+)\s+(\d+)\s+[\d.]+\s+(\d+(?:\.\d+)?)\s+[\d.]+\s*$", text, re.MULTILINE)
    average = float(rows[-1][2]) if rows else None
    if average is not None and unit is not None and unit.lower().startswith(("mb", "mib")):
        average = average * (2**20 if "i" in unit.lower().split("/")[0] else 10**6) * 8 / 1e9
    if average == 0 and seconds:
        average = int(rows[-1][0]) * int(rows[-1][1]) * 8 / seconds / 1e9
    gid, mtu = field(r"GID index\s*:\s*(\d+)"), field(r"Mtu\s*:\s*(\d+)\[B\]")
    return Bandwidth(
        device=field(r"Device\s*:\s*(\S+)"),
        gid_index=int(gid) if gid else None,
        mtu_bytes=int(mtu) if mtu else None,
        average_gbit_s=average,
        problem=None if average is not None else _first_error(text),
    )


def _first_error(text: str) -> str:
    wanted = re.compile(r"fail|error|couldn't|unable|cannot|not found|timed? ?out|refused", re.IGNORECASE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if wanted.search(line)]
    return (errors or lines[-1:] or ["it printed nothing"])[0]


def available() -> bool:
    return shutil.which(PROGRAM) is not None


async def run(command: Sequence[str], seconds: float) -> str:
    """Everything the program printed; it is killed, with what it started, after `seconds`."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds):
            out, _ = await process.communicate()
        return out.decode(errors="replace")
    except TimeoutError:
        return f"{command[0]} timed out after {seconds:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
