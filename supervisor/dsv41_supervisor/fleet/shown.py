"""What the head shows of the fleet: to `dsv41 status`, to the gateway, in bundles. Changes nothing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from ..doctor.read_gateway import read_gateway
from ..errors import Dsv41Error
from .members import Member
from .orders import FleetState

if TYPE_CHECKING:
    from .controller import FleetController

MEASURE_SILENT_S = 1.0
GATEWAY_S = 0.5
MEASURE_AGAIN = 3
"""Looks at a fleet that changes its state meanwhile."""


class FleetShown:
    """The fleet's face, as `NodeShown` is a node's."""

    def __init__(self, controller: FleetController) -> None:
        self._fleet = controller

    def readiness(self) -> dict[str, Any]:
        """What the gateway is handed."""
        fleet = self._fleet
        serving = fleet.state is FleetState.SERVING
        port = fleet.settings.fleet.nodes[fleet.settings.fleet.head].engine_port
        return {
            "version": fleet.changes.version,
            "ready": serving,
            "reason": None if serving else fleet.reason or f"the fleet is {fleet.state}",
            "state": str(fleet.state),
            "boot": fleet.record.boot.id if fleet.record.boot else None,
            "upstream": f"http://127.0.0.1:{port}",
            "served_model_name": fleet.settings.engine.served_model_name,
            "retry_after_s": self._retry_after_s(),
            "detail": self.detail(),
        }

    def detail(self) -> str:
        fleet = self._fleet
        detail = fleet.crew.look().detail()
        if not fleet.crew.awaited:
            return detail
        return f"waiting until the rank is gone on {', '.join(sorted(fleet.crew.awaited))}; {detail}"

    async def status(self) -> dict[str, Any]:
        """The whole fleet, for `dsv41 status`."""
        fleet = self._fleet

        async def measured(member: Member) -> dict[str, Any]:
            """Not longer than the node is heard of: a frozen one would hold up everybody who asks."""
            asking = asyncio.ensure_future(member.measure())
            try:
                while not asking.done() and member.silent_s < MEASURE_SILENT_S:
                    await asyncio.wait({asking}, timeout=0.1)
                return asking.result() if asking.done() else {}
            except Dsv41Error:
                return {}
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

        for _ in range(MEASURE_AGAIN):
            state = fleet.state
            gateway, *figures = await asyncio.gather(self._gateway(), *(measured(m) for m in fleet.members.values()))
            if fleet.state is state:  # else these figures are from before: processes that have been stopped since
                break
        return {
            "fleet": fleet.settings.fleet.name,
            "state": str(fleet.state),
            "reason": fleet.reason,
            "refusals": [r.to_json() for r in fleet.refusals],
            "boot": fleet.record.boot.to_json() if fleet.record.boot else None,
            "wanted": "up" if fleet.record.wanted_up else "down",
            "recoveries": len(fleet.record.recoveries),
            "paused_by": fleet.record.paused_by,
            "unwritten": fleet.unwritten,
            "set_aside": fleet.record.set_aside,
            "gateway": gateway,
            "override": sorted({*fleet.record.override, *fleet.settings.checks.override}),
            "findings": [f.to_json() for f in fleet.fabric.told] if fleet.fabric is not None else [],
            "readiness": self.readiness(),
            "timeline": fleet.record.timeline[-60:],
            "desk": fleet.desk.status(),
            "nodes": {
                name: (member.status or _unreachable(member)) | {"measured": m}
                for (name, member), m in zip(fleet.members.items(), figures, strict=True)
            },
        }

    async def _gateway(self) -> dict[str, Any]:
        """It runs here, on the head: the only node that can ask one that listens on loopback. In a thread, bounded."""
        answer = await asyncio.to_thread(read_gateway, self._fleet.settings, GATEWAY_S)
        trouble = answer.problem
        if trouble is None and (not answer.ours or answer.status not in (200, 503)):
            trouble = f"answers {answer.status}, and not as the gateway does"
        return {"where": answer.where.removeprefix("http://").removesuffix("/health"), "trouble": trouble}

    def about(self) -> dict[str, Any]:
        """What a bundle says about the fleet."""
        fleet = self._fleet
        record = fleet.record
        return {
            "boot": record.boot.to_json() if record.boot else None,
            "state": str(fleet.state), "reason": fleet.reason, "refusals": [r.to_json() for r in fleet.refusals],
            "wanted": "up" if record.wanted_up else "down", "recoveries": list(record.recoveries),
            "last_boot_s": record.last_boot_s, "timeline": list(record.timeline),
        }  # fmt: skip

    def _retry_after_s(self) -> float:
        """An estimate from the last boot: what is left of one that takes as long, at least a second."""
        fleet = self._fleet
        if fleet.state is FleetState.SERVING:
            return 0.0
        if fleet.state in (FleetState.STARTING, FleetState.RECOVERING):
            began_s = fleet.boot_began_s
            since_s = 0.0 if began_s is None else time.monotonic() - began_s
            return round(max(1.0, fleet.record.last_boot_s - since_s), 1)
        return 60.0


def _unreachable(member: Member) -> dict[str, Any]:
    return {
        "node": member.name, "unreachable_s": round(member.silent_s, 1), "trouble": member.trouble,
        "lease_left_s": round(member.lease_left_s, 1),
    }  # fmt: skip
