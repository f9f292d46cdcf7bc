"""The rails change in the kernel while ranks serve: the watch tells, and the next launch finds the GID where it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bed import rdma_device
from fleet import BedFleet, Visit

pytestmark = pytest.mark.timeout(1500)

PROGRAM = (Path(__file__).parent / "inside/watch.py").read_text()


def test_a_gid_that_moves_and_a_device_that_goes_are_told_while_ranks_serve(bed_fleet: BedFleet, mended: Visit) -> None:
    rail = bed_fleet.settings.fleet.nodes["spark1"].rails["a"]
    dev, device = rail.interface, rdma_device(rail.interface)
    other = f"{rail.address.network[77]}/{rail.address.network.prefixlen}"
    # Another address takes the entry that the rail's had, as a network that is set up anew may do it.
    moved = f"ip addr del {rail.address} dev {dev}; ip addr add {other} dev {dev}; ip addr add {rail.address} dev {dev}"
    back = f"ip -4 addr flush dev {dev}; ip addr add {rail.address} dev {dev}"
    steps = [
        (moved, f"2: {rail.address.ip} RoCE v2 on {dev}"),
        (back, ""),
        (f"rdma link delete {device}", "RDMA port was ACTIVE, is missing"),
        (f"rdma link add {device} type rxe netdev {dev}", ""),
    ]
    said = json.loads(bed_fleet.inside("spark1", PROGRAM, "spark1", json.dumps(steps)))
    told = [one["sentences"] for one in said]
    (table,) = [sentence for sentence in told[0] if "GID table" in sentence]
    before, _, after = table.partition(", is ")
    assert f"; 1: {rail.address.ip} " in before and f"; 2: {rail.address.ip} " in after, table
    assert all(sentence.startswith("rail a: ") for sentence in told[0] + told[2]), told
    assert told[1] == [] and told[3] == [], told
    assert "rail a: RDMA port was ACTIVE, is missing" in told[2], told
