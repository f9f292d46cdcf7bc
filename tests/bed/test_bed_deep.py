"""`dsv41 doctor --deep` over the kernel's own RDMA devices (rdma_rxe): perftest writes on every rail, each way.

Instructions are emulated: no figure here says anything about a machine. That there is one says that data was written.
"""

from __future__ import annotations

import pytest
from bed import rdma_device
from dsv41_supervisor.doctor.deep.serve import RDMA_SECONDS
from fleet import BedFleet, Visit

pytestmark = pytest.mark.timeout(1500)

DIRECTIONS = {("a", "spark1"), ("a", "spark2"), ("b", "spark2"), ("b", "spark3"), ("c", "spark3"), ("c", "spark1")}
PACKET_BYTES = 4096


def test_deep_writes_over_every_rail_in_each_direction(bed_fleet: BedFleet, mended: Visit) -> None:
    before = {(rail, node): bed_fleet.sent_packets(node, rail) for rail, node in DIRECTIONS}
    visit = bed_fleet.visit("--deep")
    assert {check for check, _, _ in visit.beyond(mended)} == {"deep-rdma"}, visit.sentences()
    written = visit.traffic("rdma-write")
    assert written.keys() == DIRECTIONS
    for (rail, node), one in written.items():
        assert (one["problem"], one["skipped"], one["verdict"]) == (None, None, "slow"), one
        assert one["mtu"] == PACKET_BYTES and one["figure"] > 0, one
        packets = one["figure"] * 1e9 / 8 * RDMA_SECONDS / PACKET_BYTES
        # perftest rounds its figure to hundredths: the smallest that it shows as one could be half of it.
        assert bed_fleet.sent_packets(node, rail) - before[rail, node] >= 0.5 * packets, (one, before)
    named = {(f["rail"], f["node"]): f["what"] for f in visit.of("deep-rdma")}
    assert named.keys() == DIRECTIONS
    for (rail, node), what in named.items():
        assert f"{rdma_device(bed_fleet.rail(node, rail))} writes " in what and "expected 90" in what, what


def _held(bed_fleet: BedFleet, node: str, rail: str, how: str) -> tuple[str, str, str]:
    """Arguments of `changed`: what leaves by that end of a rail is held back or lost."""
    dev = bed_fleet.rail(node, rail)
    return node, f"tc qdisc add dev {dev} root netem {how}", f"tc qdisc del dev {dev} root"


def _rails(visit: Visit, healthy: Visit) -> dict[str, set[str | None]]:
    """Rails by what was said of them beside their RDMA figures, which are low on all."""
    said: dict[str, set[str | None]] = {}
    for check, _, rail in visit.beyond(healthy) - {one for one in visit.bad if one[0] == "deep-rdma"}:
        said.setdefault(check, set()).add(rail)
    return said


def test_deep_names_a_rail_that_loses_everything_and_one_that_holds_it_for_seconds(
    bed_fleet: BedFleet, mended: Visit
) -> None:
    with (
        bed_fleet.changed(*_held(bed_fleet, "spark2", "b", "loss 100%")),
        bed_fleet.changed(*_held(bed_fleet, "spark1", "c", "delay 4s")),
    ):
        visit = bed_fleet.visit("--deep")
    assert visit.status == 69
    silent = {(rail, node) for check, node, rail in visit.bad if check == "deep-neighbour"}
    assert silent == {(rail, node) for rail, node in DIRECTIONS if rail in ("b", "c")}, visit.sentences()
    assert "no reply from 10.41.23.3 within 1 s" in visit.sentence("deep-neighbour", "spark2")
    assert visit.traffic("rdma-write").keys() == {("a", "spark1"), ("a", "spark2")}
    assert all(rails <= {"b", "c"} for rails in _rails(visit, mended).values()), visit.sentences()


def test_deep_names_a_rail_that_loses_half_and_one_that_answers_late(bed_fleet: BedFleet, mended: Visit) -> None:
    with (
        bed_fleet.changed(*_held(bed_fleet, "spark2", "b", "loss 50%")),
        bed_fleet.changed(*_held(bed_fleet, "spark1", "c", "delay 300ms")),
    ):
        visit = bed_fleet.visit("--deep")
    said = _rails(visit, mended)
    # Of loss, chance decides which step meets it first: pings and a megabyte over TCP.
    lost = {check for check, rails in said.items() if "b" in rails}
    assert lost & {"deep-neighbour", "deep-mtu", "deep-tcp"}, visit.sentences()
    late = {f["node"]: f["what"] for f in visit.of("deep-neighbour") if f["rail"] == "c"}
    assert late.keys() == {"spark1", "spark3"} and all(" ms, expected less than 1" in what for what in late.values())
    assert all(rails <= {"b", "c"} for rails in said.values()), visit.sentences()
