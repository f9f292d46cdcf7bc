"""Logging: facts go in journal fields, sentences stay sentences. Events worth alerting on are declared here, once."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType

_NONE: Mapping[str, str] = MappingProxyType({})
_fields: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("dsv41_fields", default=_NONE)

log = logging.getLogger("dsv41")
JOURNAL_SOCKET = "/run/systemd/journal/socket"
MAX_MESSAGE_CHARACTERS = 32 << 10
"""One datagram; the kernel's limit is around 200 kB."""
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class Event(Enum):
    """MESSAGE_IDs (128-bit, fixed for ever): `journalctl MESSAGE_ID=…`; `modules/dsv41.catalog` says what to do."""

    STAGE_DONE = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0001"
    STAGE_REFUSED = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0002"
    BOOT_STARTED = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0003"
    FLEET_SERVING = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0004"
    RANK_LOST = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0005"
    FLEET_STOPPED = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0006"
    RECOVERY_STARTED = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0007"
    RECOVERY_GIVEN_UP = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0008"
    LEASE_EXPIRED = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0009"
    MEMORY_FLOOR = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d000a"
    FLEET_ADOPTED = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d000b"
    STOPPED_BY_HAND = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d000c"
    FABRIC_CHANGED = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0030"
    CHECK_OVERRIDDEN = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0031"
    MEMORY_LOW = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0040"
    GPU_NO_MEMORY = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0041"
    INCIDENT_KEPT = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0042"
    NOT_KEPT_OR_TOLD = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0043"
    GUARD_MISSING = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0044"
    STATE_SET_ASIDE = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0021"
    PEER_REFUSED = "7b1f0c7c0f1a4a3a9f5f6c2f6a1d0022"


@contextlib.contextmanager
def fields(**values: object) -> Iterator[None]:
    """Journal fields (DSV41_STAGE, DSV41_NODE, …) for every line logged inside; names are given in lower case."""
    merged = {**_fields.get()} | {f"DSV41_{k.upper()}": str(v) for k, v in values.items() if v is not None}
    token = _fields.set(merged)
    try:
        yield
    finally:
        _fields.reset(token)


def event(kind: Event, sentence: str, level: int = logging.INFO, **values: object) -> None:
    """Log one declared event with its MESSAGE_ID."""
    with fields(**values):
        log.log(level, sentence, extra={"MESSAGE_ID": kind.value, "DSV41_EVENT": kind.name})


class _FieldFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        for key, value in _fields.get().items():
            setattr(record, key, value)
        return True


class _TextFormatter(logging.Formatter):
    """One line: time, level, where, sentence. For terminals, files and machines without a journal."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created)) + f".{int(record.msecs):03d}"
        where = " ".join(
            str(getattr(record, f"DSV41_{key}"))
            for key in ("NODE", "STAGE", "RANK")
            if getattr(record, f"DSV41_{key}", None) is not None
        )
        line = f"{at} {record.levelname.lower():7} {where + ': ' if where else ''}{record.getMessage()}"
        # In the journal it is a field of its own.
        line += f" [{record.DSV41_EVENT}]" if hasattr(record, "DSV41_EVENT") else ""
        return line if not record.exc_info else f"{line}\n{self.formatException(record.exc_info)}"


def setup(level: str = "info", **values: object) -> None:
    """Log to the journal, fields and all, when systemd started us with one; to standard error otherwise."""
    _fields.set({f"DSV41_{k.upper()}": str(v) for k, v in values.items() if v is not None})
    handler: logging.Handler | None = None
    if os.environ.get("JOURNAL_STREAM") and os.path.exists(JOURNAL_SOCKET):
        handler = JournalHandler(JOURNAL_SOCKET)
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_TextFormatter())
    handler.addFilter(_FieldFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


class JournalHandler(logging.Handler):
    """Lines with their fields to systemd-journald. Source: systemd.io/JOURNAL_NATIVE_PROTOCOL.

    Thirty lines here, instead of a library that has to be compiled against libsystemd wherever this is installed.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._text = _TextFormatter()
        # As SyslogIdentifier= in the modules: dsv41-supervisor, dsv41-rank-0.
        words = itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:])
        self._identifier = "-".join(["dsv41", *words])

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self._text.formatException(record.exc_info)
        values = {
            "MESSAGE": message[:MAX_MESSAGE_CHARACTERS],
            "PRIORITY": str(_PRIORITIES.get(record.levelno, 6)),
            "SYSLOG_IDENTIFIER": self._identifier,
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
        }
        values |= {k: str(v) for k, v in vars(record).items() if k.startswith("DSV41_") or k == "MESSAGE_ID"}
        try:
            self._socket.sendto(b"".join(map(_field, values, values.values())), self._path)
        except OSError:
            # A journal that is away or full. Standard error ends there too, but it waits; a supervisor may not.
            if record.levelno >= logging.ERROR:
                with contextlib.suppress(OSError):
                    sys.stderr.write(self._text.format(record) + "\n")

    def close(self) -> None:
        self._socket.close()
        super().close()


def _field(name: str, value: str) -> bytes:
    raw = value.encode(errors="surrogateescape")
    if b"\n" in raw:
        return name.encode() + b"\n" + len(raw).to_bytes(8, "little") + raw + b"\n"
    return name.encode() + b"=" + raw + b"\n"
