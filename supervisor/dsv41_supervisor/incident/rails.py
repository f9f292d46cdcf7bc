"""The cables' recent past: link, bytes and errors of every rail, looked at every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from ..settings import Rail

PERIOD_S = 5.0
N_KEPT = 240
"""Twenty minutes."""
_NET = ("rx_bytes", "tx_bytes", "rx_dropped", "tx_errors", "rx_errors")
_RDMA = ("port_rcv_data", "port_xmit_data", "link_downed", "symbol_error", "port_xmit_wait")


class RailHistory:
    """One node's rails; `run` looks until cancelled."""

    def __init__(self, rails: Mapping[str, Rail], sys_root: str = "/sys") -> None:
        self._rails = rails
        self._root = Path(sys_root) / "class"
        self._kept: deque[tuple[float, dict[str, str]]] = deque(maxlen=N_KEPT)

    async def run(self) -> None:
        while True:
            self._kept.append((time.time(), self.look()))
            await asyncio.sleep(PERIOD_S)

    def look(self) -> dict[str, str]:
        """Each rail in one line; what cannot be read is left out."""
        said = {}
        for name, rail in self._rails.items():
            net = self._root / "net" / rail.interface
            words = [f"link={_read(net / 'operstate') or 'gone'}"]
            words += [f"{what}={value}" for what in _NET if (value := _read(net / "statistics" / what))]
            if rail.rdma_device is not None:
                port = self._root / "infiniband" / rail.rdma_device / "ports" / "1"
                words += [f"rdma={_read(port / 'state') or 'gone'}"]
                words += [f"{what}={value}" for what in _RDMA if (value := _read(port / "counters" / what))]
            said[name] = " ".join(words)
        return said

    def lines(self) -> list[str]:
        """The past as lines; a rail that stood still is said once."""
        before: dict[str, str] = {}
        lines = []
        for at, said in self._kept:
            for name, words in said.items():
                if before.get(name) != words:
                    lines.append(f"{time.strftime('%H:%M:%S', time.localtime(at))} {name} {words}")
            before = said
        return lines


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip().replace("\n", " ")
    except OSError:
        return None
