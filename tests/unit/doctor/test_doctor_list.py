"""The list of checks in supervisor/DOCTOR.md is the one that `dsv41 doctor --list` prints, and each known pain of a
fabric has its checks. DSV41_UPDATE_DOCTOR=1 writes the list anew."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from dsv41_supervisor.checks import all_checks

BEGIN = "<!-- the list of checks: made by tests/unit/doctor/test_doctor_list.py -->\n"
END = "<!-- end of the list -->\n"
N_PAINS = 27
"""users.md §2a."""


def _document(repo_root: Path) -> Path:
    return repo_root / "supervisor" / "DOCTOR.md"


def _table() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dsv41_supervisor", "doctor", "--list", "--json"], capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip
    rows = ["| id | stage | severity | what | source |", "|---|---|---|---|---|"]
    for check in json.loads(done.stdout):
        rows.append("| `{id}` | {stage} | {severity} | {what} | {source} |".format(**check))
    return "\n" + "\n".join(rows) + "\n\n"


def test_the_list_in_the_document_is_the_one_that_is_printed(repo_root: Path) -> None:
    path = _document(repo_root)
    text = path.read_text()
    before, rest = text.split(BEGIN)
    listed, after = rest.split(END)
    if os.environ.get("DSV41_UPDATE_DOCTOR") == "1":
        path.write_text(before + BEGIN + _table() + END + after)
    else:
        assert listed == _table(), "run with DSV41_UPDATE_DOCTOR=1 to write it anew"


def test_every_known_pain_of_a_fabric_has_the_checks_that_name_it_as_their_source(repo_root: Path) -> None:
    rows = re.findall(r"^\| F(\d+) \| [^|]+ \| ([^|]+) \|$", _document(repo_root).read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, N_PAINS + 1))
    for number, said in rows:
        named = {c.id for c in all_checks() if re.search(rf"\bF{number}\b", c.source)}
        assert set(re.findall(r"`([a-z-]+)`", said)) == named, f"F{number}"
        assert named or said.startswith("cannot be seen on a machine, because"), f"F{number}"
