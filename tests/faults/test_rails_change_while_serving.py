"""Fault: a rail changes under a fleet: MTU lowered, address removed, carrier lost; before a boot, and while serving.

What the user sees: `dsv41 up` refuses and names node, rail and the next step, or starts when told to override the
check. While serving nothing breaks, and status says what is not as it was at launch.
What the operator sees: FABRIC_CHANGED with before and after; every override in the audit log.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dsv41_supervisor.demo.network import Mode, mode
from dsv41_supervisor.errors import Dsv41Error

from tests.harness.fleet import FleetUnderTest, running_fleet


@pytest.fixture
async def fleet(tmp_path: Path, demo_checkpoint: Path) -> AsyncIterator[FleetUnderTest]:
    if mode().mode is not Mode.NAMESPACES:
        pytest.skip(f"no network namespaces: {mode().reason}")
    async with running_fleet(tmp_path, demo_checkpoint, gateway=False) as fleet:
        yield fleet


def _on(fleet: FleetUnderTest, node: str, *argv: str) -> None:
    done = subprocess.run(fleet.demo.network.argv_in(node, list(argv)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (node, argv, done.stderr)


def _rail(fleet: FleetUnderTest, node: str) -> tuple[str, Any]:
    """Its first rail: name and settings."""
    return next(iter(fleet.settings.fleet.nodes[node].rails.items()))


def _changes(status: dict[str, Any], node: str) -> list[str]:
    return [str(s) for s in status["nodes"][node].get("fabric", {}).get("sentences", [])]


async def test_a_boot_is_refused_by_name_and_starts_when_told_to(fleet: FleetUnderTest) -> None:
    name, rail = _rail(fleet, "spark2")
    want = fleet.settings.fleet.mtu
    _on(fleet, "spark2", "ip", "link", "set", rail.interface, "mtu", "1400")
    status = await fleet.up()
    assert status["state"] == "failed"
    (refusal,) = status["refusals"]
    assert (refusal["node"], refusal["check"]) == ("spark2", "rail-mtu")
    assert refusal["what"] == f"rail {name} ({rail.interface}) has MTU 1400, expected {want}."
    assert f"mtu {want} on spark2" in refusal["hint"]

    with pytest.raises(Dsv41Error, match="no check is called rail-mut"):
        await fleet.head.call("POST", "/fleet/up", {"override": ["rail-mut"]})

    # The other end is only seen by the head, which compares both.
    await fleet.head.call("POST", "/fleet/up", {"by": "a test", "override": ["rail-mtu"]})
    status = await fleet.until(lambda s: s["state"] in ("serving", "failed"), "up", 60)
    assert status["state"] == "failed"
    assert {r["check"] for r in status["refusals"]} == {"ends-mtu"}
    assert f"and {rail.peer} at the other end {want}" in status["refusals"][0]["what"]

    await fleet.head.call("POST", "/fleet/up", {"by": "a test", "override": ["rail-mtu", "ends-mtu"]})
    status = await fleet.until(lambda s: s["state"] in ("serving", "failed"), "up", 60)
    assert status["state"] == "serving", status["reason"]
    assert status["override"] == ["ends-mtu", "rail-mtu"]
    assert {f["check"] for f in status["findings"] if f["overridden"]} == {"ends-mtu", "rail-mtu"}
    audit = (fleet.settings.state_dir("spark1") / "audit.log").read_text()
    assert "up was asked for by a test, overriding rail-mtu, ends-mtu" in audit
    assert f"check rail-mtu was overridden: spark2: rail {name}" in audit


async def test_what_changes_while_serving_is_told_and_nothing_is_stopped(fleet: FleetUnderTest) -> None:
    assert (await fleet.up())["state"] == "serving"
    name, rail = _rail(fleet, "spark2")
    want = fleet.settings.fleet.mtu

    _on(fleet, "spark2", "ip", "link", "set", rail.interface, "mtu", "1400")
    lowered = [f"rail {name}: MTU was {want}, is 1400"]
    status = await fleet.until(lambda s: _changes(s, "spark2") == lowered, f"{lowered}")
    assert status["nodes"]["spark2"]["fabric"]["state"] == "degraded"
    assert status["state"] == "serving"
    _on(fleet, "spark2", "ip", "link", "set", rail.interface, "mtu", str(want))
    await fleet.until(lambda s: _changes(s, "spark2") == [], "the MTU as it was")

    _on(fleet, "spark2", "ip", "addr", "del", str(rail.address), "dev", rail.interface)
    removed = [f"rail {name}: addresses was {rail.address}, is none"]
    await fleet.until(lambda s: _changes(s, "spark2") == removed, f"{removed}")
    _on(fleet, "spark2", "ip", "addr", "add", str(rail.address), "dev", rail.interface)
    await fleet.until(lambda s: _changes(s, "spark2") == [], "the address back")

    # The peer's end goes down: this one loses its carrier, and the peer its state.
    other = fleet.settings.fleet.nodes[rail.peer].rails[name].interface
    _on(fleet, rail.peer, "ip", "link", "set", other, "down")
    here, there = f"rail {name}: carrier was there, is lost", f"rail {name}: state was up, is down"
    status = await fleet.until(
        lambda s: here in _changes(s, "spark2") and there in _changes(s, rail.peer), "the lost carrier at both ends"
    )
    assert status["state"] == "serving"
    assert (await fleet.status())["recoveries"] == 0
