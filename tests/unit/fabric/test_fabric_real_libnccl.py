"""Against the libnccl that the pinned engine brings: what we read from it, and that it knows what the plan writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dsv41_supervisor.errors import Refused
from dsv41_supervisor.fabric.nccl_library import planned_library, read_library
from dsv41_supervisor.fabric.roots import Unreadable
from dsv41_supervisor.rank.nccl import RING_VARIABLES, SUBNET_AWARE, denied, nccl_environment
from dsv41_supervisor.settings import parse

from tests.fixtures.fabric.fleets import FLEETS, at, gid_table, healthy

GID_VARIABLES = ("NCCL_IB_GID_INDEX", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE")


@pytest.fixture(scope="module")
def library(repo_root: Path) -> Path:
    try:
        return planned_library(str(repo_root / ".venv-engine/bin/python"), None)
    except Unreadable as error:
        pytest.skip(f"no engine with a libnccl here: {error}")


def test_the_pinned_libnccl_is_fit_for_a_triangle_and_not_denied(library: Path) -> None:
    read = read_library(library)
    assert read.version is not None and tuple(map(int, read.version.split("."))) >= (2, 30, 7)
    assert read.build_id is not None and len(read.build_id) == 40
    assert read.patches == (SUBNET_AWARE,)
    assert denied(read.version, read.build_id) is None


def test_the_pinned_libnccl_knows_every_variable_of_the_plan(library: Path) -> None:
    content = library.read_bytes()
    written: set[str] = set(GID_VARIABLES)
    for topology in FLEETS:
        document = FLEETS[topology]()
        tuned = {"buffer_bytes": 1 << 20, "protocol": "^LL128", "min_channels": 1, "max_channels": 8}
        document["engine"].setdefault("nccl", {}).update(tuned, traffic_class=106)
        settings = parse(json.dumps(document))
        for node, facts in healthy(settings).items():
            written |= set(nccl_environment(settings, node, facts))
    ours = {name for name in written if name.startswith("NCCL_")} - (set(RING_VARIABLES) - {"NCCL_ALGO"})
    assert len(ours) > 15
    assert [name for name in sorted(ours) if name.encode() not in content] == []


def test_gid_variables_are_written_together() -> None:
    """Minus one without the three others would let NCCL take any address of the interface."""
    settings = parse(json.dumps(FLEETS["triangle"]()))
    rail = settings.fleet.nodes["ada"].rails["cable0-twin"]
    twin = gid_table(rail.interface, "fe80::9", rail.address.ip, 7)
    facts = at(healthy(settings), "ada", f"rdma.{rail.rdma_device}.ports.0.gids", twin)["ada"]
    assert set(GID_VARIABLES) <= set(nccl_environment(settings, "ada", facts))
    with pytest.raises(Refused):
        nccl_environment(settings, "ada", None)
