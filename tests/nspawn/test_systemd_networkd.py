"""What systemd-networkd makes of the rendered rail files: on rails what the fleet file says, elsewhere nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from declared import wait_for
from machine import Machine, why_not
from rails import MANAGEMENT, UNNAMED, Wired, cables, plug, rails_of

WAIT_ONLINE = "/lib/systemd/systemd-networkd-wait-online"
ONLINE_S = 60


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Wired]]:
    """Three cabled machines on which networkd runs; a management network that something else has set up."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no machine with systemd: {reason}")
    wired: list[Wired] = []
    try:
        for number in (1, 2, 3):
            work = tmp_path_factory.mktemp(f"rails{number}")
            (work / "shared").mkdir()
            machine = Machine(f"dsv41r{number}x{work.parent.name.rpartition('-')[2]}", work, work / "shared")
            wired.append(Wired(f"spark{number}", machine, rails_of(f"spark{number}")))
            machine.boot()
            wired[-1].install()
        for name, (one, other) in cables(wired).items():
            plug(one, one.rails[name].interface, other, other.rails[name].interface)
        head, worker, _ = wired
        plug(head, MANAGEMENT, worker, MANAGEMENT)
        plug(head, UNNAMED, worker, UNNAMED)
        for number, node in enumerate((head, worker), start=1):
            node.machine.run("ip", "address", "add", f"192.168.7.{number}/24", "dev", MANAGEMENT)
            node.machine.run("ip", "link", "set", MANAGEMENT, "up")
        head.machine.run("ip", "route", "add", "default", "via", "192.168.7.2")
        for node in wired:
            node.machine.run("systemctl", "restart", "systemd-sysctl")
            node.machine.run("systemctl", "start", "systemd-networkd")
        for node in wired:
            node.machine.run(WAIT_ONLINE, f"--timeout={ONLINE_S}")
        yield wired
    finally:
        for node in reversed(wired):
            node.machine.power_off()


def test_every_rail_has_its_address_and_the_fleets_mtu_and_no_other_address(nodes: list[Wired]) -> None:
    for node in nodes:
        assert len(node.rails) == 4
        for rail in node.rails.values():
            (link,) = node.ip("address", "show", "dev", rail.interface)
            assert link["mtu"] == 9000
            # No link-local one either: each would be an entry of the GID table.
            assert node.addresses(rail.interface) == [str(rail.address)]


def test_rails_are_separate_subnets_and_none_has_a_default_route(nodes: list[Wired]) -> None:
    for node in nodes:
        routes = [route for route in node.ip("route", "show", "table", "main") if route["dev"] != MANAGEMENT]
        expected = {(str(rail.address.network), rail.interface) for rail in node.rails.values()}
        assert len({network for network, _ in expected}) == 4
        assert {(route["dst"], route["dev"]) for route in routes} == expected
        assert node.ip("-6", "route", "show", "default") == []


def test_full_frames_pass_every_cable_between_the_addresses_of_its_ends(nodes: list[Wired]) -> None:
    for name, (one, other) in cables(nodes).items():
        far = other.rails[name].address.ip
        asked = one.ip("route", "get", str(far))
        assert (asked[0]["dev"], asked[0]["prefsrc"]) == (
            one.rails[name].interface, str(one.rails[name].address.ip),
        )  # fmt: skip
        one.ping(one.rails[name], str(far), 9000)


def test_twins_answer_arp_for_their_own_address_only(nodes: list[Wired]) -> None:
    for node in nodes:
        for rail in node.rails.values():
            where = f"/proc/sys/net/ipv4/conf/{rail.interface}"
            read = node.machine.run("cat", f"{where}/arp_ignore", f"{where}/arp_announce").stdout.split()
            assert read == ["1", "2"], rail


def test_the_boot_waits_for_rails_alone(nodes: list[Wired]) -> None:
    head = nodes[0]
    for rail in head.rails.values():
        link = head.link(rail.interface)
        assert link["NetworkFile"] == f"/etc/systemd/network/{rail.file}"
        assert (link["AdministrativeState"], link["OperationalState"]) == ("configured", "routable")
        assert link["RequiredForOnline"] is True
        assert link["RequiredOperationalStateForOnline"][0] == "routable"
    for interface in (MANAGEMENT, UNNAMED):
        assert head.link(interface)["AdministrativeState"] == "unmanaged"
    # The unnamed port is down all the time, and what the fixture waited for came all the same.
    assert head.link(UNNAMED)["OperationalState"] == "off"


def test_a_link_that_is_no_rail_is_left_as_it_was(nodes: list[Wired]) -> None:
    head = nodes[0]
    (management,) = head.ip("address", "show", "dev", MANAGEMENT)
    assert management["mtu"] == 1500
    assert "192.168.7.1/24" in head.addresses(MANAGEMENT)
    (default,) = head.ip("route", "show", "default")
    assert (default["dev"], default["gateway"]) == (MANAGEMENT, "192.168.7.2")
    (unnamed,) = head.ip("address", "show", "dev", UNNAMED)
    assert (unnamed["mtu"], unnamed["operstate"], unnamed["addr_info"]) == (1500, "DOWN", [])


def test_a_rail_that_loses_its_carrier_keeps_its_address(nodes: list[Wired]) -> None:
    """Otherwise its entry would leave the GID table, and might come back at another place."""
    head, worker, _ = nodes
    rail, far = head.rails["one-two"], worker.rails["one-two"]
    with head.addresses_seen() as seen:
        worker.machine.run("ip", "link", "set", far.interface, "down")
        wait_for(lambda: head.link(rail.interface)["OperationalState"] == "no-carrier", "the loss", 60, head)
        worker.machine.run("ip", "link", "set", far.interface, "up")
        wait_for(lambda: head.link(rail.interface)["OperationalState"] == "routable", "the return", 60, head)
    assert "Deleted" not in seen()
    head.ping(rail, str(far.address.ip), 9000)


def test_networkd_started_anew_takes_no_address_away(nodes: list[Wired]) -> None:
    head = nodes[0]
    with head.addresses_seen() as seen:
        head.machine.run("systemctl", "restart", "systemd-networkd")
        head.machine.run(WAIT_ONLINE, f"--timeout={ONLINE_S}")
    assert "Deleted" not in seen()


def test_a_rail_that_comes_late_is_waited_for_and_set_up(nodes: list[Wired]) -> None:
    head, worker, _ = nodes
    rail, far = head.rails["one-two"], worker.rails["one-two"]
    head.machine.run("ip", "link", "delete", rail.interface)
    # A cable that is in here and not there: nothing sets up its far end.
    plug(head, rail.interface, worker, "loose")
    wait_for(lambda: head.link(rail.interface)["AdministrativeState"] == "configuring", "the new link", 60, head)
    done = head.machine.run(WAIT_ONLINE, "--timeout=2", check=False)
    assert "Timeout occurred while waiting for network connectivity" in done.stderr, done
    head.machine.run("ip", "link", "delete", rail.interface)
    plug(head, rail.interface, worker, far.interface)
    for node, end in ((head, rail), (worker, far)):
        node.machine.run(WAIT_ONLINE, f"--timeout={ONLINE_S}")
        assert node.addresses(end.interface) == [str(end.address)]
    head.ping(rail, str(far.address.ip), 9000)
