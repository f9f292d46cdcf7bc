"""Bytes read are progress while a rank loads: a worker's log says nothing for minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dsv41_supervisor.rank.phases import Phase
from dsv41_supervisor.rank.reading import STEP_BYTES, Reading, bytes_read

READER = "import os, sys; [os.pread(os.open(sys.argv[1], os.O_RDONLY), 1 << 20, 0) for _ in range(16)]; print(1, flush=True); input()"  # noqa: E501


def test_what_a_child_reads_counts_for_its_session_and_for_no_other(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(1 << 20))
    with subprocess.Popen([sys.executable, "-c", READER, str(big)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          start_new_session=True) as reader:  # fmt: skip
        assert reader.stdout is not None and reader.stdin is not None
        reader.stdout.readline()
        theirs = bytes_read(reader.pid)
        assert theirs >= 16 << 20
        assert bytes_read(1 << 30) == 0
        reader.stdin.close()


def test_a_sign_comes_with_each_step_and_only_in_phases_that_read() -> None:
    read = {"bytes": 0}
    reading = Reading(lambda session: read["bytes"])
    assert reading.look(Phase.WEIGHTS) == 0
    read["bytes"] += STEP_BYTES - 1
    assert reading.look(Phase.WEIGHTS) == 0
    read["bytes"] += 1
    assert reading.look(Phase.WEIGHTS) == 1
    assert reading.look(Phase.WEIGHTS) == 1
    read["bytes"] = 0
    assert reading.look(Phase.STARTING) == 1
    read["bytes"] = 10 * STEP_BYTES
    assert reading.look(Phase.CAPTURE) == 1
    assert reading.look(Phase.STARTING) == 2
