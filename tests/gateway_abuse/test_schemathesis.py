"""schemathesis against our own OpenAPI document: what it says is valid is taken, and every answer is a promised one.

Whether what it does not promise is refused is not asked: much of that is refused by the engine, which is scripted here.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.gateway_abuse.target import KEY, Target

SEED = 41
_CASES = re.compile(r"(\d+) generated, (\d+) passed")


def run(target: Target, python: Path, directory: Path, *more: str) -> int:
    """Requests that it made. Fails with all that it said."""
    done = subprocess.run(
        [
            str(python.with_name("schemathesis")), "run", f"http://127.0.0.1:{target.port}/openapi.json",
            "-H", f"Authorization: Bearer {KEY}", "--seed", str(SEED), "--checks", "all",
            "--exclude-checks", "negative_data_rejection", "--continue-on-failure", "--no-shrink", *more,
        ],
        cwd=directory, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    cases = _CASES.search(done.stdout)
    assert cases is not None and cases[1] == cases[2], done.stdout[-2000:]
    return int(cases[1])


def test_drawn_requests_get_promised_answers(target: Target, clients_python: Path, tmp_path: Path) -> None:
    before = target.upstream.requests
    assert run(target, clients_python, tmp_path, "--phases", "fuzzing", "--max-examples", "5") > 50
    assert target.upstream.requests - before > 20, "nearly all was refused before the engine: the document is too wide"


@pytest.mark.slow
def test_every_boundary_and_many_more_drawn_requests_get_promised_answers(
    target: Target, clients_python: Path, tmp_path: Path
) -> None:
    assert run(target, clients_python, tmp_path, "--phases", "coverage,fuzzing", "--max-examples", "80") > 2000
