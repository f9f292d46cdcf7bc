"""Settings documents for tests: a fleet of three on CPU that is good, to be damaged by one value each."""

from __future__ import annotations

import copy
from typing import Any

_GOOD: dict[str, Any] = {
    "fleet": {
        "name": "lab",
        "topology": "triangle",
        "key_file": "/etc/dsv41/fleet-key",
        "nodes": {
            "spark1": {
                "rank": 0,
                "management_address": "192.0.2.1",
                "management_interface": "eth0",
                "rails": {
                    "ab": {"interface": "rail0", "address": "198.51.100.1/30", "peer": "spark2"},
                    "ca": {"interface": "rail1", "address": "198.51.100.9/30", "peer": "spark3"},
                },
            },
            "spark2": {
                "rank": 1,
                "management_address": "192.0.2.2",
                "management_interface": "eth0",
                "rails": {
                    "ab": {"interface": "rail0", "address": "198.51.100.2/30", "peer": "spark1"},
                    "bc": {"interface": "rail1", "address": "198.51.100.5/30", "peer": "spark3"},
                },
            },
            "spark3": {
                "rank": 2,
                "management_address": "192.0.2.3",
                "management_interface": "eth0",
                "rails": {
                    "bc": {"interface": "rail0", "address": "198.51.100.6/30", "peer": "spark2"},
                    "ca": {"interface": "rail1", "address": "198.51.100.10/30", "peer": "spark1"},
                },
            },
        },
    },
    "checkpoint": {"path": "/models/demo", "revision": "0123456789abcdef"},
    "engine": {
        "python": "/opt/engine/bin/python",
        "device": "cpu",
        "parallelism": {"tp_size": 3},
    },
}


def good() -> dict[str, Any]:
    """A fresh copy."""
    return copy.deepcopy(_GOOD)


def with_value(path: str, value: Any) -> dict[str, Any]:
    """The good document with one value changed, by dotted path."""
    document = good()
    *parents, last = path.split(".")
    at = document
    for name in parents:
        at = at.setdefault(name, {})
    at[last] = value
    return document
