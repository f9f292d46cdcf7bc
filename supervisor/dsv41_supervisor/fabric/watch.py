"""Watches the rails while a rank runs: what differs from the launch is said at once, before and after.

A GID that moves breaks nothing at first: queue pairs that exist go on, and the next connection or the next boot fails.
So it is told when it happens. Netlink events wake the watch for a whole look; sysfs tells nobody, so the entries of the
GID tables that were set at the last look are read again every `PERIOD_S` seconds: some dozens of files, where a whole
look is a thousand. Without events, and every `WHOLE_S` seconds, the look is whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import Stage
from ..journal import Event, event, log
from ..settings import Settings
from .bounded import BoundedReads, Unread
from .facts import ROCE_V2, NodeFacts
from .links import fatal_errors, read_links, read_pcie
from .rdma import read_rdma, still_as_read
from .roots import Roots

PERIOD_S = 1.0
WHOLE_S = 30.0
SETTLE_S = 0.05
LOOK_S = 5.0
"""For one look: a driver that hangs must not silence the watch."""
"""Events come in bursts: one change of an interface is several messages."""
_EVENT_GROUPS = 0x1 | 0x10
"""RTMGRP_LINK and RTMGRP_IPV4_IFADDR."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not as it was when the rank was launched."""

    rail: str
    what: str
    before: str
    after: str
    at_s: float

    def __str__(self) -> str:
        return f"rail {self.rail}: {self.what} was {self.before}, is {self.after}"

    def to_json(self) -> dict[str, Any]:
        return {"rail": self.rail, "what": self.what, "before": self.before, "after": self.after, "at_s": self.at_s}


View = Mapping[tuple[str, str], str]
"""(rail, what) → value as it is shown."""


def view(settings: Settings, node: str, facts: NodeFacts) -> dict[tuple[str, str], str]:
    """What must not change under a running rank, for every rail of a node. Pure."""
    shown: dict[tuple[str, str], str] = {}
    for name, rail in settings.fleet.nodes[node].rails.items():
        link = facts.links.get(rail.interface)
        shown[name, "interface"] = "there" if link is not None else "missing"
        if link is not None:
            shown[name, "state"] = "up" if link.up else "down"
            shown[name, "carrier"] = "there" if link.carrier else "lost"
            shown[name, "MTU"] = str(link.mtu)
            shown[name, "addresses"] = ", ".join(sorted(map(str, link.addresses))) or "none"
            if link.pcie is not None and link.pcie.aer_fatal is not None:
                shown[name, "fatal PCIe errors"] = str(link.pcie.aer_fatal)
        if rail.rdma_device is None:
            continue
        device = facts.rdma.get(rail.rdma_device)
        port = device.port() if device is not None else None
        shown[name, "RDMA port"] = (port.state or "unknown") if port is not None else "missing"
        if port is not None:
            shown[name, "GID table"] = "; ".join(map(str, port.gids)) or "empty"
    return shown


def repaired(settings: Settings, node: str, change: Change) -> bool:
    """Whether a value that was wrong at launch (somebody overrode a check) is now what the settings want. Pure.

    Of a GID table: it got the rail's entry. Without one no index was planned, so that none can have moved.
    """
    rail = settings.fleet.nodes[node].rails[change.rail]
    wanted = {
        "interface": "there", "state": "up", "carrier": "there", "MTU": str(settings.fleet.mtu), "RDMA port": "ACTIVE",
        "addresses": str(rail.address),
    }  # fmt: skip
    if change.after == wanted.get(change.what):
        return True
    if change.what == "addresses":
        before, after = change.before.split(", "), change.after.split(", ")
        return str(rail.address) in after and str(rail.address) not in before
    if change.what == "GID table":
        entry = f": {rail.address.ip} {ROCE_V2} on {rail.interface}"
        return entry in change.after and entry not in change.before
    return False


def differences(before: View, after: View, at_s: float) -> tuple[Change, ...]:
    """Every entry that differs; one that is gone is shown as gone. Pure."""
    return tuple(
        Change(key[0], key[1], before.get(key, "nothing"), after.get(key, "gone"), at_s)
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )


async def look(settings: Settings, node: str, roots: Roots, reads: BoundedReads | None = None) -> NodeFacts:
    """The few facts that are watched: links over netlink, RDMA from sysfs. Raises Unread after LOOK_S."""
    try:
        async with asyncio.timeout(LOOK_S):
            links = await read_links()
    except TimeoutError:
        raise Unread(f"waited {LOOK_S:g} s for the links (netlink)") from None
    mtus = {name: link.mtu for name, link in links.items()}
    here = settings.fleet.nodes[node].rails.values()

    def from_sysfs() -> NodeFacts:
        net = roots.sys / "class/net"
        seen = dict(links)
        for rail in here:
            if rail.rdma_device is not None and rail.interface in seen:
                pcie = read_pcie(net / rail.interface / "device")
                seen[rail.interface] = seen[rail.interface].model_copy(update={"pcie": pcie})
        wanted = {rail.rdma_device for rail in here if rail.rdma_device is not None}
        return NodeFacts(node=node, at_s=time.time(), links=seen, rdma=read_rdma(roots, mtus, wanted))

    return await (reads or BoundedReads()).read("the rails in /sys", from_sysfs, LOOK_S)


class FabricWatch:
    """Compares the rails with how they were at launch. `changed` is called when the answer changes."""

    def __init__(self, settings: Settings, node: str, changed: Callable[[], None], roots: Roots | None = None) -> None:
        self._settings = settings
        self._node = node
        self._changed = changed
        self._roots = roots or Roots()
        self._baseline: dict[tuple[str, str], str] | None = None
        self._reads = BoundedReads()
        self._wake = asyncio.Event()
        self._listening = False
        self._last: NodeFacts | None = None
        self.changes: tuple[Change, ...] = ()
        self.looked_at_s: float | None = None

    @property
    def degraded(self) -> bool:
        return bool(self.changes)

    def start(self, facts: NodeFacts) -> None:
        """From now on the rails are compared with these facts: those the rank was launched with."""
        self.start_from(view(self._settings, self._node, facts))

    def start_from(self, baseline: View) -> None:
        """As `start`, with a view that was written down at the launch."""
        self._baseline = dict(baseline)
        self._settle(())
        self._wake.set()

    def stop(self) -> None:
        """The rank is gone; nothing is compared until the next launch."""
        self._baseline = None
        self._settle(())

    def to_json(self) -> dict[str, Any]:
        watching = self._baseline is not None
        return {
            "state": "degraded" if self.changes else "as launched" if watching else "not watched",
            "changes": [change.to_json() for change in self.changes],
            "sentences": [str(change) for change in self.changes],
        }

    async def run(self) -> None:
        """Watch until cancelled."""
        if not self._settings.fleet.nodes[self._node].rails:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._compare())

    async def _listen(self) -> None:
        """Wake up at every event of a link or an address. Without events there is still the period."""
        from pyroute2 import AsyncIPRoute

        while True:
            try:
                async with AsyncIPRoute() as ipr:
                    await ipr.bind(groups=_EVENT_GROUPS)
                    self._listening = True
                    self._wake.set()
                    while True:
                        async for _ in ipr.get():
                            self._wake.set()
            except Exception as error:
                self._listening = False
                log.warning("no netlink events about the rails (%r); looking every %g s", error, PERIOD_S)
                await asyncio.sleep(10 * PERIOD_S)

    async def _compare(self) -> None:
        whole_at_s = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()
                await asyncio.sleep(SETTLE_S)
            woken = self._wake.is_set()
            self._wake.clear()
            if self._baseline is None:
                continue
            now = time.monotonic()
            if woken or not self._listening or now >= whole_at_s or not await self._tables_stand():
                whole_at_s = now + WHOLE_S
                await self.compare()

    async def _tables_stand(self) -> bool:
        """Whether every GID entry, port state and PCIe error count that the last look saw is still there."""
        last = self._last
        if last is None:
            return False
        if not last.rdma:
            return True

        def stand() -> bool:
            net = self._roots.sys / "class/net"
            return still_as_read(self._roots, last.rdma) and all(
                fatal_errors(net / link.name / "device") == link.pcie.aer_fatal
                for link in last.links.values()
                if link.pcie is not None
            )

        try:
            as_before = await self._reads.read("the watched entries in /sys", stand, LOOK_S)
        except Unread:
            return False  # The whole look says it.
        self.looked_at_s = time.monotonic()
        return as_before

    async def compare(self) -> None:
        """One look. What cannot be read is no change: the next look will tell."""
        try:
            facts = await look(self._settings, self._node, self._roots, self._reads)
        except Exception as error:
            log.warning("the rails cannot be read: %s", error if isinstance(error, Unread) else repr(error))
            return
        self.looked_at_s = time.monotonic()
        self._last = facts
        if self._baseline is None:
            return
        known = {(change.rail, change.what, change.after): change.at_s for change in self.changes}
        found = differences(self._baseline, view(self._settings, self._node, facts), time.time())
        bad = []
        for change in found:
            if repaired(self._settings, self._node, change):
                # From now on this is what must not change.
                self._baseline[change.rail, change.what] = change.after
                event(
                    Event.FABRIC_CHANGED,
                    f"rail {change.rail}: {change.what} is {change.after}, as the settings want it; at launch it was "
                    f"{change.before}", stage=Stage.FABRIC, rail=change.rail,
                )  # fmt: skip
            else:
                bad.append(replace(change, at_s=known.get((change.rail, change.what, change.after), change.at_s)))
        self._settle(tuple(bad))

    def _settle(self, changes: tuple[Change, ...]) -> None:
        before, self.changes = self.changes, changes
        if [str(c) for c in before] == [str(c) for c in changes]:
            return
        for change in changes:
            if str(change) not in {str(c) for c in before}:
                event(Event.FABRIC_CHANGED, f"{change}; the next connection may fail", logging.WARNING,
                      stage=Stage.FABRIC, rail=change.rail)  # fmt: skip
        if before and not changes and self._baseline is not None:
            event(Event.FABRIC_CHANGED, "the rails are as they were at launch again, or as wanted", stage=Stage.FABRIC)
        self._changed()
