"""RDMA on real devices of the kernel (rdma_rxe): what is read from sysfs, what doctor says of it.

a is the cable of spark1 and spark2, b of spark2 and spark3, c of spark3 and spark1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
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


def _new(visit: Visit, healthy: Visit) -> set[tuple[str, str | None, str | None]]:
    return visit.bad - healthy.bad


@pytest.fixture
def repaired(bed_fleet: BedFleet) -> Iterator[None]:
    """Wait until every port is ACTIVE again: the next test starts from there."""
    yield
    for node, here in bed_fleet.settings.fleet.nodes.items():
        for rail in here.rails:
            bed_fleet.until(
                lambda node=node, rail=rail: "ACTIVE" in bed_fleet.port_state(node, rail), f"{node} {rail} ACTIVE"
            )


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


@pytest.mark.usefixtures("repaired")
def test_an_address_that_was_removed_takes_its_gid_away(bed_fleet: BedFleet, healthy: Visit) -> None:
    dev, address = bed_fleet.rail("spark2", "a"), bed_fleet.settings.fleet.nodes["spark2"].rails["a"].address
    with bed_fleet.changed("spark2", f"ip addr del {address} dev {dev}", f"ip addr add {address} dev {dev}"):
        visit = bed_fleet.visit()
    assert visit.status == 69
    assert {("rdma-gid", "spark2", "a"), ("rail-address", "spark2", "a")} <= _new(visit, healthy), visit.bad
    assert not [one for one in visit.bad if one[0] == "rdma-gid" and one[1:] != ("spark2", "a")]
    said = visit.sentence("rdma-gid", "spark2")
    assert f"no RoCE v2 GID for {address.ip}" in said and "fe80::" in said, said
