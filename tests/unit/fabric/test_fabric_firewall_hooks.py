"""Packet filters as iptables-nft makes them and nft prints them: targets by name only, and hooks beside input."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import pytest
from dsv41_supervisor.fabric.firewall import Packet, judge

PEER = IPv4Address("192.0.2.7")
COUNTER = {"counter": {"packets": 0, "bytes": 0}}
LOCAL_ONLY = {"match": {"op": "==", "left": {"fib": {"result": "type"}}, "right": "local"}}


def _match(key: str, right: Any) -> dict[str, Any]:
    return {"match": {"op": "==", "left": {"meta": {"key": key}}, "right": right}}


def _filter(hook: str, *rules: list[Any], kind: str = "filter", family: str = "ip", **more: Any) -> dict[str, Any]:
    at = {"family": family, "table": "t"}
    chain = {**at, "name": "C", "type": kind, "hook": hook, "prio": 0, "policy": "accept", **more}
    return {"nftables": [
        {"table": {"family": family, "name": "t"}}, {"chain": chain},
        *({"rule": {**at, "chain": "C", "expr": rule}} for rule in rules),
    ]}  # fmt: skip


def _target(name: str) -> dict[str, Any]:
    """`iptables -j NAME`, as nft 1.0.6 -j printed REJECT on a real machine."""
    return {"xt": {"type": "target", "name": name}}


@pytest.mark.parametrize(
    ("rules", "verdict"),
    [
        ([[_match("iifname", "rail0"), COUNTER, _target("REJECT")]], "drop"),
        ([[_match("iifname", "rail1"), COUNTER, _target("REJECT")]], "accept"),
        ([[_match("iifname", "rail0"), {"xt": {"type": "match", "name": "conntrack"}}, _target("REJECT")]], "unknown"),
        ([[_match("iifname", "rail0"), _target("LOG")]], "accept"),
        ([[_match("iifname", "rail0"), _target("LOG"), {"drop": None}]], "drop"),
        ([[_match("iifname", "rail0"), _target("SYNPROXY")]], "unknown"),
    ],
)
def test_a_target_of_iptables_is_known_by_its_name(rules: list[Any], verdict: str) -> None:
    assert judge(_filter("input", *rules), [Packet("rail0", PEER)], []).incoming == {"rail0": verdict}


@pytest.mark.parametrize(
    ("shown", "verdict"),
    [
        (_filter("prerouting", [_match("iifname", "rail0"), {"drop": None}], prio=-300), "drop"),
        (_filter("prerouting", [_match("iifname", "rail1"), {"drop": None}], prio=-300), "accept"),
        # As NixOS filters by reverse path: doubt about that must not hide an input hook that is understood.
        (_filter("prerouting", [LOCAL_ONLY, {"accept": None}], policy="drop"), "accept"),
        (_filter("ingress", [{"drop": None}], family="netdev", dev="rail0"), "drop"),
        (_filter("ingress", [{"drop": None}], family="netdev", dev=["rail1", "rail2"]), "accept"),
    ],
)
def test_what_is_dropped_before_the_input_hook_does_not_come_in(shown: Any, verdict: str) -> None:
    assert judge(shown, [Packet("rail0", PEER)], []).incoming == {"rail0": verdict}


@pytest.mark.parametrize("kind", ["filter", "route"])
def test_connections_to_peers_that_are_dropped_are_seen_by_interface(kind: str) -> None:
    to_peer = {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": str(PEER)}}
    shown = _filter("output", [_match("oifname", "rail0"), to_peer, _target("REJECT")], kind=kind)
    seen = judge(shown, [Packet("rail0", PEER), Packet("rail1", PEER)], [])
    assert seen.outgoing == {"rail0": "drop"}
    assert seen.incoming == {"rail0": "accept", "rail1": "accept"}
    doubtful = _filter("output", [LOCAL_ONLY, {"drop": None}], kind=kind)
    assert judge(doubtful, [Packet("rail0", PEER)], []).outgoing == {}
