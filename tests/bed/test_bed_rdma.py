"""RDMA on real devices of the kernel (rdma_rxe): what is read from sysfs, what doctor says of it.

a is the cable of spark1 and spark2, b of spark2 and spark3, c of spark3 and spark1.
"""

from __future__ import annotations

import json

import pytest
from bed import rdma_device
from fleet import BedFleet, Visit

pytestmark = pytest.mark.timeout(1500)

READ = """
import json
from ipaddress import IPv4Interface
from dsv41_supervisor.fabric.gids import find_gid
from dsv41_supervisor.fabric.rdma import read_rdma
from dsv41_supervisor.fabric.roots import Roots
from dsv41_supervisor.settings import load
from pathlib import Path
rails = load(Path("/etc/dsv41/settings.json")).fleet.nodes["{node}"].rails
devices = read_rdma(Roots(), {{rail.interface: 9000 for rail in rails.values()}})
found = {{}}
for name, rail in rails.items():
    port = devices[rail.rdma_device].port()
    gid = find_gid(port, rail.address.ip, rail.interface)
    found[name] = {{"port": port.model_dump(mode="json"), "gid": gid and gid.model_dump(mode="json")}}
print(json.dumps(found))
"""


@pytest.mark.parametrize("node", ["spark1", "spark2", "spark3"])
def test_the_gid_of_a_rail_is_found_in_the_kernels_own_table(bed_fleet: BedFleet, node: str) -> None:
    read = json.loads(bed_fleet.inside(node, READ.format(node=node)))
    rails = bed_fleet.settings.fleet.nodes[node].rails
    assert read.keys() == rails.keys()
    for name, rail in rails.items():
        port, gid = read[name]["port"], read[name]["gid"]
        assert port["state"] == "ACTIVE" and port["physical_state"] == "LinkUp", port
        assert port["link_layer"] == "Ethernet" and port["active_mtu"] == 4096, port
        assert "sent_pkts" in port["hw_counters"], port
        # The link-local address has an entry too, and it is not that one.
        assert gid is not None and gid["type"] == "RoCE v2" and gid["netdev"] == rail.interface, (port, gid)
        assert gid["gid"].endswith(str(rail.address.ip)), gid
        index = f"/sys/class/infiniband/{rail.rdma_device}/ports/1/gids/{gid['index']}"
        shown = bed_fleet.guest(node).run("cat", index).stdout.strip().replace(":", "")
        assert shown == "0" * 20 + "ffff" + rail.address.ip.packed.hex()


def test_nothing_is_wrong_with_healthy_rails(healthy: Visit) -> None:
    # The fixture looked at what is bad. A check that did not look at RDMA found nothing bad either.
    looked = {f["check"] for f in healthy.findings if f["severity"] == "skipped"}
    assert not looked & {"rdma-device", "rdma-port", "rdma-gid", "rdma-path-mtu", "rdma-loss", "firewall"}, looked


def test_an_address_that_was_removed_takes_its_gid_away(bed_fleet: BedFleet, mended: Visit) -> None:
    dev, address = bed_fleet.rail("spark2", "a"), bed_fleet.settings.fleet.nodes["spark2"].rails["a"].address
    with bed_fleet.changed("spark2", f"ip addr del {address} dev {dev}", f"ip addr add {address} dev {dev}"):
        visit = bed_fleet.visit()
    assert visit.status == 69
    new = visit.beyond(mended)
    assert {("rdma-gid", "spark2", "a"), ("rail-address", "spark2", "a")} <= new, visit.sentences()
    assert {one for one in new if one[0].startswith("rdma-")} == {("rdma-gid", "spark2", "a")}, visit.sentences()
    assert {rail for _, _, rail in new} == {"a"}, visit.sentences()
    said = visit.sentence("rdma-gid", "spark2")
    assert f"no RoCE v2 GID for {address.ip}" in said and "fe80::" in said, said


def test_a_cut_cable_is_a_port_that_is_down_at_both_ends(bed_fleet: BedFleet, mended: Visit) -> None:
    with bed_fleet.bed.cut("b"):
        for node in ("spark2", "spark3"):
            bed_fleet.until(lambda node=node: "DOWN" in bed_fleet.port_state(node, "b"), f"{node} b DOWN")
        visit = bed_fleet.visit()
    assert visit.status == 69
    new = visit.beyond(mended)
    for check in ("rdma-port", "rail-carrier"):
        assert {(node, rail) for name, node, rail in new if name == check} == {("spark2", "b"), ("spark3", "b")}, new
    assert {rail for _, _, rail in new} == {"b"}, visit.sentences()
    assert "DOWN" in visit.sentence("rdma-port", "spark2")


def test_a_missing_device_is_named_with_those_that_are_there(bed_fleet: BedFleet, mended: Visit) -> None:
    dev = bed_fleet.rail("spark3", "c")
    device, other = rdma_device(dev), rdma_device(bed_fleet.rail("spark3", "b"))
    back = f"rdma link add {device} type rxe netdev {dev}"
    with bed_fleet.changed("spark3", f"rdma link delete {device}", back):
        visit = bed_fleet.visit()
    assert visit.status == 69
    assert visit.beyond(mended) == {("rdma-device", "spark3", "c")}, visit.sentences()
    said = visit.sentence("rdma-device", "spark3")
    assert f"the RDMA device {device}, which does not exist" in said and f"to one of {other}" in said, said


def test_a_gid_that_moved_is_found_where_it_is_and_not_left_to_nccl(bed_fleet: BedFleet, mended: Visit) -> None:
    rail = bed_fleet.settings.fleet.nodes["spark1"].rails["a"]
    # Another address takes the entry that the rail's had, as a network that is set up anew may do it.
    dev, other = rail.interface, f"{rail.address.network[77]}/{rail.address.network.prefixlen}"
    moved = f"ip addr del {rail.address} dev {dev}; ip addr add {other} dev {dev}; ip addr add {rail.address} dev {dev}"
    back = f"ip -4 addr flush dev {dev}; ip addr add {rail.address} dev {dev}"
    with bed_fleet.changed("spark1", moved, back):
        visit = bed_fleet.visit()
    # Both addresses are in the rail's subnet, so NCCL left to itself would take the other one's entry.
    assert {one for one in visit.beyond(mended) if one[0].startswith("rdma-")} == {("rdma-gid-choice", "spark1", None)}
    said = visit.sentence("rdma-gid-choice", "spark1")
    assert f"{rail.rdma_device} (rail a) needs 2, not 1" in said, said


def test_when_all_is_mended_doctor_says_what_it_said_at_first(bed_fleet: BedFleet, healthy: Visit) -> None:
    visit = bed_fleet.visit()
    assert visit.bad == healthy.bad, visit.sentences()
