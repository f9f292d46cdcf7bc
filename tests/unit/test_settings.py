"""Stage 1: what is refused, in which words, with the path that can be pasted into the fleet file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dsv41_supervisor.errors import Dsv41Error, Exit, Refused
from dsv41_supervisor.settings import parse

from tests.unit.fleets import good, with_value


def refusals(document: dict[str, Any]) -> str:
    with pytest.raises(Refused) as caught:
        parse(json.dumps(document), "fleet.json")
    assert caught.value.exit_status is Exit.REFUSED
    return str(caught.value)


def test_a_good_fleet_is_read_and_its_hash_does_not_depend_on_the_order_of_keys() -> None:
    document = good()
    turned = dict(reversed(list(document.items())))
    assert parse(json.dumps(document)).hash == parse(json.dumps(turned)).hash
    assert parse(json.dumps(document)).fleet.head == "spark1"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("engine.sped", 1, "fleet.json: engine.sped: there is no such setting."),
        ("engine.context_length", 100, "engine.context_length: 100 is not allowed; allowed is a whole number from 256"),
        ("fleet.nodes.spark3.rank", 3, "fleet.nodes.*.rank are [0, 1, 3], expected [0, 1, 2]"),
        ("fleet.nodes.spark3.rank", 1, "fleet.nodes.*.rank are [0, 1, 1], expected [0, 1, 2]"),
        ("engine.parallelism.tp_size", 4, "engine.parallelism.tp_size is 4, but fleet.nodes has 3"),
        ("engine.device", "cuda", "fleet.nodes.spark1.rails.ab.rdma_device is null, but engine.device is cuda"),
        ("fleet.nodes.spark2.rails.ab.address", "198.51.101.2/30", "are in different subnets"),
        ("fleet.nodes.spark2.rails.ab.peer", "spark3", "fleet.nodes.spark1.rails.ab.peer is spark2, but spark2 has no"),
        ("fleet.nodes.spark2.rails.ab.interface", "an-interface-too-long", "fleet.nodes.spark2.rails.ab.interface"),
        ("fleet.nodes.spark2.management_address", "192.0.2.1", "192.0.2.1:7141 is used by 2 nodes"),
        (
            "gateway",
            {"require_key": False, "address": "192.0.2.1"},
            "without keys the gateway listens on loopback only",
        ),
        ("checkpoint.path", "models/demo", "checkpoint.path"),
        ("adapters", {"warp_drive": {}}, "adapters.warp_drive: there is no such setting."),
        ("engine.parallelism.ep_size", 2, "engine.parallelism.ep_size 2 does not divide tp_size 3"),
    ],
)
def test_a_wrong_value_is_refused_by_its_path(path: str, value: Any, words: str) -> None:
    assert words in refusals(with_value(path, value))


def test_twins_in_one_subnet_are_refused() -> None:
    document = good()
    for node, last in (("spark1", 3), ("spark2", 4)):
        rail = document["fleet"]["nodes"][node]["rails"]["ab"]
        rail["address"] = rail["address"].replace("/30", "/29")
        document["fleet"]["nodes"][node]["rails"]["ab-twin"] = rail | {
            "interface": "twin0",
            "address": f"198.51.100.{last}/29",
        }
    assert (
        "fleet.nodes.spark1.rails.ab-twin.address and fleet.nodes.spark1.rails.ab.address share the subnet"
        in refusals(document)
    )


def test_all_refusals_are_shown_together() -> None:
    document = with_value("engine.sped", 1)
    document["engine"]["context_length"] = 1
    document["checkpoint"]["revision"] = "main"
    text = refusals(document)
    assert all(word in text for word in ("engine.sped", "engine.context_length", "checkpoint.revision"))


def test_text_that_is_not_json_is_refused_with_its_source() -> None:
    with pytest.raises(Dsv41Error, match="fleet.json is not JSON"):
        parse("{", "fleet.json")
