"""What is armed in each process, and what it counted: written by the engine, compared by the supervisor.

`armed-<role>-<pid>.json` is replaced as a whole. `counters-<adapter>-<role>-<pid>` is one page that the engine maps and
adds to; a reader may catch it between two counters, never inside one.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .adapter import Role, State

FORMAT = 1
PAGE_BYTES = 4096
_VALUES_AT = 2048
_MAX_COUNTERS = (PAGE_BYTES - _VALUES_AT) // 8

log = logging.getLogger(__name__)
_named: set[tuple[str, int]] = set()


@dataclass(frozen=True, slots=True)
class AdapterState:
    """One adapter in one process."""

    state: State
    reason: str | None
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArmedReport:
    """What one process of the engine says about its adapters."""

    boot: str
    pid: int
    role: Role
    rank: int
    adapters: Mapping[str, AdapterState]
    path: Path


class Reporter:
    """Writes one process's report; every change replaces the file."""

    def __init__(self, report_dir: Path, *, boot: str, rank: int, role: Role) -> None:
        self._dir = report_dir
        self.role = role
        self._head = {"format": FORMAT, "boot": boot, "pid": os.getpid(), "role": role.value, "rank": rank}
        self._adapters: dict[str, AdapterState] = {}

    def set(self, name: str, state: State, *, reason: str | None = None, targets: Sequence[str] | None = None) -> None:
        """Note a state without writing it yet; `targets` None keeps those noted before."""
        kept = self._adapters[name].targets if name in self._adapters and targets is None else tuple(targets or ())
        self._adapters[name] = AdapterState(state, reason, kept)

    def write(self) -> None:
        """Raises OSError when the directory cannot be written."""
        adapters = {
            name: {"state": a.state.value, "reason": a.reason, "targets": list(a.targets)}
            for name, a in self._adapters.items()
        }
        stem = f"{self._head['role']}-{self._head['pid']}"
        staged = self._dir / f".armed-{stem}.tmp"
        staged.write_text(json.dumps({**self._head, "adapters": adapters}) + "\n")
        os.replace(staged, self._dir / f"armed-{stem}.json")

    def counters(self, adapter: str, names: Sequence[str]) -> CounterPage:
        """A page of its own for each adapter: two of them count in one process."""
        page = self._dir / f"counters-{adapter}-{self._head['role']}-{self._head['pid']}"
        return CounterPage(page, boot=str(self._head["boot"]), names=names)


class CounterPage:
    """Counters of one process in a mapped page: setting one is a store to memory, never a system call."""

    def __init__(self, path: Path, *, boot: str, names: Sequence[str]) -> None:
        head = json.dumps({"format": FORMAT, "boot": boot, "names": list(names)}).encode()
        if len(head) > _VALUES_AT or len(names) > _MAX_COUNTERS:
            raise ValueError(f"{len(names)} counters do not fit the page of {PAGE_BYTES} bytes")
        staged = path.with_name(f".{path.name}.tmp")
        with open(staged, "wb+") as file:
            file.write(head.ljust(_VALUES_AT))
            file.write(bytes(PAGE_BYTES - _VALUES_AT))
            file.flush()
            self._page = mmap.mmap(file.fileno(), PAGE_BYTES)
        os.replace(staged, path)
        self._at = {name: _VALUES_AT + 8 * i for i, name in enumerate(names)}

    def set(self, name: str, value: int) -> None:
        struct.pack_into("<Q", self._page, self._at[name], value)


def read_reports(report_dir: Path, boot: str) -> list[ArmedReport]:
    """Reports of this boot, in name order. A torn or foreign file is skipped and named in the log, once."""
    reports = []
    for path in _files(report_dir, "armed-*.json"):
        try:
            raw = json.loads(path.read_bytes())
            report = _report(raw, path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _name(path, f"is not a report ({error!r})")
            continue
        if report.boot == boot:
            reports.append(report)
    return reports


def _report(raw: Any, path: Path) -> ArmedReport:
    if raw["format"] != FORMAT:
        raise ValueError(f"format {raw['format']}, expected {FORMAT}")
    adapters = {
        str(name): AdapterState(State(a["state"]), a["reason"], tuple(map(str, a["targets"])))
        for name, a in raw["adapters"].items()
    }
    return ArmedReport(str(raw["boot"]), int(raw["pid"]), Role(raw["role"]), int(raw["rank"]), adapters, path)


def read_counters(report_dir: Path, boot: str) -> dict[str, int]:
    """Counters of this boot, summed over processes. A torn or foreign page is skipped and named."""
    total: dict[str, int] = {}
    for path in _files(report_dir, "counters-*"):
        try:
            page = path.read_bytes()
            if len(page) != PAGE_BYTES:
                raise ValueError(f"{len(page)} bytes, expected {PAGE_BYTES}")
            head = json.loads(page[:_VALUES_AT])
            if head["format"] != FORMAT:
                raise ValueError(f"format {head['format']}, expected {FORMAT}")
            names = [str(name) for name in head["names"]]
            if len(names) > _MAX_COUNTERS:
                raise ValueError(f"{len(names)} counters")
            values = struct.unpack_from(f"<{len(names)}Q", page, _VALUES_AT)
            page_boot = head["boot"]
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            _name(path, f"is not a counter page ({error!r})")
            continue
        if page_boot == boot:
            for name, value in zip(names, values, strict=True):
                total[name] = total.get(name, 0) + value
    return total


def _files(report_dir: Path, pattern: str) -> list[Path]:
    try:
        return sorted(report_dir.glob(pattern))
    except OSError as error:
        _name(report_dir, f"cannot be listed ({error.strerror})")
        return []


def _name(path: Path, problem: str) -> None:
    """Once for each state of a file: the supervisor reads once a second."""
    try:
        key = (str(path), path.stat().st_mtime_ns)
    except OSError:
        key = (str(path), 0)
    if key not in _named:
        _named.add(key)
        log.warning("%s %s; skipped", path, problem)
