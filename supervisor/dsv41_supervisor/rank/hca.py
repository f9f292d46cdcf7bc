"""The grammar of NCCL_IB_HCA, read as NCCL reads it, so that a value somebody wrote is understood or refused. Pure.

    [^][=]name[:port[:rail[:plane]]][,name…]

`^` turns the whole list into exclusions and `=` makes every name exact instead of a prefix; both stand once, in front.
Source: matchIfList and parseStringList in NCCL's src/misc/utils.cc, and its environment variables page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_ENTRIES = 32
"""MAX_IB_DEVS: NCCL stops reading there without a word."""
MAX_NAME = 63
_ENTRY = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(?P<numbers>(?::\d{0,4}){0,2}(?::\d{1,4})?)")


@dataclass(frozen=True, slots=True)
class HcaEntry:
    """One device, or prefix of devices. None: any port; rail and plane are what newer NCCL groups by."""

    name: str
    port: int | None = None
    rail: int | None = None
    plane: int | None = None

    def __str__(self) -> str:
        numbers = [self.port, self.rail, self.plane]
        while numbers and numbers[-1] is None:
            numbers.pop()
        return ":".join([self.name, *("" if n is None else str(n) for n in numbers)])


@dataclass(frozen=True, slots=True)
class HcaList:
    """A parsed NCCL_IB_HCA."""

    entries: tuple[HcaEntry, ...]
    exact: bool = False
    exclude: bool = False

    def __str__(self) -> str:
        return ("^" if self.exclude else "") + ("=" if self.exact else "") + ",".join(map(str, self.entries))

    def selects(self, device: str, port: int = 1) -> bool:
        """Whether NCCL would use this port of this device."""
        listed = any(
            (device == e.name if self.exact else device.startswith(e.name)) and e.port in (None, port)
            for e in self.entries
        )
        return listed != self.exclude


def parse_hca(value: str) -> HcaList:
    """Parse NCCL_IB_HCA. Raises ValueError, saying what NCCL would have made of it where that is a trap."""
    rest = value
    exclude = rest.startswith("^")
    rest = rest.removeprefix("^")
    exact = rest.startswith("=")
    rest = rest.removeprefix("=")
    if not rest:
        raise ValueError(f"NCCL_IB_HCA {value!r} names no device, and NCCL would then use all of them")
    entries = tuple(_entry(shown, value) for shown in rest.split(","))
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"NCCL_IB_HCA has {len(entries)} entries, and NCCL reads {MAX_ENTRIES}")
    return HcaList(entries, exact, exclude)


def _entry(shown: str, value: str) -> HcaEntry:
    if shown[:1] in ("^", "="):
        raise ValueError(f"NCCL_IB_HCA {value!r}: {shown[0]} stands once, before the first name")
    found = _ENTRY.fullmatch(shown)
    if found is None:
        raise ValueError(f"NCCL_IB_HCA {value!r}: {shown!r} is not a device with an optional :port")
    if len(found["name"]) > MAX_NAME:
        raise ValueError(f"NCCL_IB_HCA: {found['name']!r} is longer than any device's name")
    numbers = [int(n) if n else None for n in found["numbers"].split(":")[1:]]
    if numbers and numbers[-1] is None:
        raise ValueError(f"NCCL_IB_HCA {value!r}: {shown!r} ends in a colon, and NCCL would look for port 0")
    if numbers and numbers[0] == 0:
        raise ValueError(f"NCCL_IB_HCA {value!r}: ports count from 1")
    return HcaEntry(found["name"], *numbers)


def exact_list(devices: Iterable[str], port: int = 1) -> HcaList:
    """Exactly these devices, in order, each once."""
    return HcaList(tuple(HcaEntry(name, port) for name in dict.fromkeys(devices)), exact=True)
