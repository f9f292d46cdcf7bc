"""How much memory is left: the machine's MemAvailable (never MemFree), or what a cgroup still allows. Stdlib only."""

from __future__ import annotations

import os

READ_BYTES = 16384
TYPE_CHECKING = False  # `typing` itself would make the guard larger; type checkers take this for typing's.
if TYPE_CHECKING:
    from typing import Protocol

    class Source(Protocol):
        """Where the figure that is held against the floor comes from."""

        name: str

        def available_bytes(self) -> int:
            """Bytes that can still be taken. Raises OSError or ValueError when it cannot be known."""


def parse_meminfo(text: bytes) -> dict[str, int]:
    """/proc/meminfo as bytes by name; lines of another shape are left out."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(b":")
        parts = rest.split()
        if colon and parts and parts[0].isdigit():
            found[name.decode("ascii", "replace")] = int(parts[0]) * (1024 if parts[1:2] == [b"kB"] else 1)
    return found


class SystemMemory:
    """MemAvailable of the machine. The file stays open: opening one takes memory, and this is read when there is none.

    Source: proc(5); on an integrated GPU this is also what SGLang 0.5.23 counts as free GPU memory (utils/common.py).
    """

    name = "MemAvailable"

    def __init__(self, proc_root: str = "/proc") -> None:
        self._fd = os.open(f"{proc_root}/meminfo", os.O_RDONLY | os.O_CLOEXEC)

    def available_bytes(self) -> int:
        text = os.pread(self._fd, READ_BYTES, 0)
        at = text.find(b"MemAvailable:")
        if at < 0:
            raise ValueError("meminfo has no MemAvailable line")
        return int(text[at + 13 : at + 40].split(None, 1)[0]) * 1024

    def fields(self) -> dict[str, int]:
        """Every line, in bytes."""
        return parse_meminfo(os.pread(self._fd, READ_BYTES, 0))


class CgroupMemory:
    """What a cgroup's limit leaves: limit - usage + file pages that can be dropped at once. Both cgroup versions.

    Source: admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst; inactive_file counts as available, as kubelet does it.
    """

    def __init__(self, directory: str) -> None:
        v2 = os.path.exists(f"{directory}/memory.current")
        limit, usage = ("memory.max", "memory.current") if v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        self.name = f"memory left in {directory}"
        self._inactive = b"inactive_file " if v2 else b"total_inactive_file "
        self._limit = os.open(f"{directory}/{limit}", os.O_RDONLY | os.O_CLOEXEC)
        self._usage = os.open(f"{directory}/{usage}", os.O_RDONLY | os.O_CLOEXEC)
        self._stat = os.open(f"{directory}/memory.stat", os.O_RDONLY | os.O_CLOEXEC)

    def available_bytes(self) -> int:
        limit = os.pread(self._limit, 64, 0).strip()
        if limit == b"max":
            return 1 << 62
        usage = int(os.pread(self._usage, 64, 0))
        stat = os.pread(self._stat, READ_BYTES, 0)
        _, found, rest = stat.partition(b"\n" + self._inactive)
        return max(0, int(limit) - usage + (int(rest.split(None, 1)[0]) if found else 0))


class Least:
    """The scarcest of several sources decides, and gives its name to the sentence."""

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources
        self.name = sources[0].name

    def available_bytes(self) -> int:
        least, self.name = min((source.available_bytes(), source.name) for source in self._sources)
        return least


def pressure(text: bytes) -> tuple[float, float]:
    """Share of the last 10 s in which some / all tasks waited for memory, in percent. Source: accounting/psi.rst."""
    shares = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(b" ")
        at = rest.find(b"avg10=")
        if at >= 0:
            shares[kind] = float(rest[at + 6 :].split(None, 1)[0])
    return shares.get(b"some", 0.0), shares.get(b"full", 0.0)


def kho_bug(fields: dict[str, int]) -> str | None:
    """The kernel bug in which kexec handover keeps about 26 GiB: more contiguous memory is free than there is.

    Source: kernels 7.0.0-1019 and -31 on GB10, mia2x#259, eugr#392 (facts: users.md F19).
    """
    total, free = fields.get("CmaTotal"), fields.get("CmaFree")
    if total is None or free is None or free <= total:
        return None
    return (
        f"CmaFree ({free / 2**30:.1f} GiB) is above CmaTotal ({total / 2**30:.1f} GiB): this kernel's kexec handover "
        "holds memory back (about 26 GiB on a Spark). Boot with kho=off, or another kernel."
    )
