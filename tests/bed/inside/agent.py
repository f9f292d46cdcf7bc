"""Runs in a guest: one JSON request a line from a serial line, one JSON answer a line back. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tty
from typing import Any


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Run one command to its end. 124 is its exit status when it took longer than it was given."""
    try:
        done = subprocess.run(
            asked["argv"], input=asked["stdin"], capture_output=True, text=True, errors="replace",
            timeout=asked["timeout_s"], cwd="/",
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        said = [(part or b"").decode(errors="replace") for part in (error.stdout, error.stderr)]
        return {"status": 124, "stdout": said[0], "stderr": said[1] + f"\nnot ended within {asked['timeout_s']} s"}
    except OSError as error:
        return {"status": 127, "stdout": "", "stderr": f"{asked['argv'][0]}: {error.strerror}"}
    return {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def main(device: str) -> None:
    line = os.open(device, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(line)
    with open(line, "rb", buffering=0) as asked, open(os.dup(line), "wb") as answers:
        answers.write(b'\n{"ready": true}\n')
        answers.flush()
        pending = b""
        while True:
            pending += asked.read(65536)
            *lines, pending = pending.split(b"\n")
            for request in filter(bytes.strip, lines):
                answers.write(json.dumps(answer(json.loads(request))).encode() + b"\n")
                answers.flush()


main(sys.argv[1])
