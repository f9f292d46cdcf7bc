"""Stage 2: rules on made-up machines."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import IPv4Interface

import pytest
from dsv41_supervisor.fabric.check import check_rails
from dsv41_supervisor.fabric.links import Link, read_links
from dsv41_supervisor.settings import parse

from tests.unit.fleets import good

SETTINGS = parse(json.dumps(good()))
MACHINE = {
    "lo": Link("lo", True, True, 65536, (IPv4Interface("127.0.0.1/8"),)),
    "eth0": Link("eth0", True, True, 1500, (IPv4Interface("192.0.2.1/24"),)),
    "rail0": Link("rail0", True, True, 9000, (IPv4Interface("198.51.100.1/30"),)),
    "rail1": Link("rail1", True, True, 9000, (IPv4Interface("198.51.100.9/30"),)),
}


def test_a_machine_as_set_passes() -> None:
    assert check_rails(SETTINGS, "spark1", MACHINE).refusals == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"up": False}, "spark1 rank 0, fabric: rail ab (rail0) is down. Run ip link set rail0 up on spark1."),
        ({"carrier": False}, "rail ab (rail0) has no carrier. Check the cable to spark2 and the other end."),
        ({"mtu": 1500}, "rail ab (rail0) has MTU 1500, expected 9000. Run ip link set rail0 mtu 9000 on spark1"),
        ({"addresses": ()}, "rail ab (rail0) has the addresses none, expected 198.51.100.1/30."),
        (
            {"addresses": (IPv4Interface("198.51.100.1/24"),)},
            "rail ab (rail0) has the addresses 198.51.100.1/24, expected 198.51.100.1/30.",
        ),
    ],
)
def test_a_rail_that_is_not_as_set_is_refused_by_name(change: dict[str, object], words: str) -> None:
    machine = MACHINE | {"rail0": replace(MACHINE["rail0"], **change)}  # type: ignore[arg-type]
    (refusal,) = check_rails(SETTINGS, "spark1", machine).refusals
    assert words in str(refusal)


def test_a_rail_that_does_not_exist_names_the_interfaces_there_are() -> None:
    machine = {name: link for name, link in MACHINE.items() if name != "rail1"}
    (refusal,) = check_rails(SETTINGS, "spark1", machine).refusals
    assert "rail ca (rail1) does not exist." in str(refusal)
    assert "eth0, lo, rail0" in refusal.hint


def test_a_moved_management_address_is_refused() -> None:
    machine = MACHINE | {"eth0": replace(MACHINE["eth0"], addresses=())}
    (refusal,) = check_rails(SETTINGS, "spark1", machine).refusals
    assert "eth0 does not hold the management address 192.0.2.1." in str(refusal)


async def test_the_links_of_this_machine_can_be_read() -> None:
    links = await read_links()
    assert IPv4Interface("127.0.0.1/8") in links["lo"].addresses
