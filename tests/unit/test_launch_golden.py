"""Each rank's command line and environment under both profiles, against files that a person can read.

DSV41_UPDATE_GOLDEN=1 writes them anew. `tests/engine/test_engine_launch.py` shows that SGLang accepts them.
"""

from __future__ import annotations

import os

import pytest
from dsv41_supervisor.fabric.facts import NodeFacts, RdmaDevice, RdmaPort
from dsv41_supervisor.rank.plan import Boot, LaunchPlan, launch_plan
from dsv41_supervisor.settings import Settings, parse

from tests.fixtures.fabric.fleets import gid_table
from tests.harness.launch_golden import DIRECTORY, PROFILES, golden_file, read_plan, write_plan

OF_A_NODE = {"SGLANG_HOST_IP", "DSV41_RANK_PLAN", "NCCL_IB_HCA"}
"""Variables that name the node's own address, file and devices."""
BOOT = Boot("20260102T030405-abcd", 7, 20007)


def settings_of(profile: str) -> Settings:
    return parse((DIRECTORY / f"{profile}.settings.json").read_text(), profile)


def facts_of(settings: Settings, node: str) -> NodeFacts:
    """What a launch is told by the node: the GID table of each rail's HCA."""
    devices = {}
    for rail in settings.fleet.nodes[node].rails.values():
        assert rail.rdma_device is not None
        port = RdmaPort(number=1, gids=gid_table(rail.interface, "fe80::1", rail.address.ip))
        devices[rail.rdma_device] = RdmaDevice(name=rail.rdma_device, netdevs=(rail.interface,), ports=(port,))
    return NodeFacts(node=node, rdma=devices)


def plans(profile: str) -> list[LaunchPlan]:
    settings = settings_of(profile)
    return [launch_plan(settings, node, BOOT, facts_of(settings, node)) for node in settings.fleet.in_rank_order]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_rank_is_started_as_in_its_golden_file(profile: str) -> None:
    rendered = {golden_file(profile, plan.rank): write_plan(plan) for plan in plans(profile)}
    if os.environ.get("DSV41_UPDATE_GOLDEN") == "1":
        for file, text in rendered.items():
            file.write_text(text)
    assert set(rendered) == set(DIRECTORY.glob(f"{profile}-rank*.plan"))
    assert {file.name: text for file, text in rendered.items()} == {file.name: file.read_text() for file in rendered}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_golden_file_reads_back_as_the_plan(profile: str) -> None:
    for plan in plans(profile):
        assert read_plan(golden_file(profile, plan.rank).read_text()) == (list(plan.argv), plan.environment)


@pytest.mark.parametrize("profile", PROFILES)
def test_ranks_of_a_fleet_differ_only_in_what_is_theirs(profile: str) -> None:
    """Another flag on one rank is a hang in a collective, or one rank with other arithmetic."""
    seen = []
    for plan in plans(profile):
        argv = list(plan.argv)
        argv[argv.index("--node-rank") + 1] = "of its own"
        shared = {name: value for name, value in plan.environment.items() if name not in OF_A_NODE}
        seen.append((argv, shared))
    assert seen == [seen[0]] * len(seen)
