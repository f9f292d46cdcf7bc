"""Properties over damaged fleets: no check breaks, whatever is missing; what the checks let through can be planned."""

from __future__ import annotations

import functools
import json
import random

from dsv41_supervisor.checks import FABRIC, run
from dsv41_supervisor.errors import Refused
from dsv41_supervisor.fabric.facts import Gid, NodeFacts
from dsv41_supervisor.fabric.watch import differences, view
from dsv41_supervisor.rank.nccl import nccl_environment
from dsv41_supervisor.settings import parse
from hypothesis import given
from hypothesis import settings as tuned
from hypothesis import strategies as st

from tests.fixtures.fabric.fleets import FLEETS, LAN, healthy, with_changed

SETTINGS = {name: parse(json.dumps(make())) for name, make in FLEETS.items()}
HEALTHY = {name: healthy(settings) for name, settings in SETTINGS.items()}
INTERFACES = ["fab0a", "fab0b", "fab1a", "fab1b"]


def _shuffled(gids: tuple[Gid, ...], chance: random.Random) -> tuple[Gid, ...]:
    """The same entries at other indices: what a table looks like after interfaces came and went."""
    indices = sorted(chance.sample(range(16), len(gids)))
    entries = list(gids)
    chance.shuffle(entries)
    return tuple(gid.model_copy(update={"index": index}) for index, gid in zip(indices, entries, strict=True))


DAMAGES = {
    "links.{i}": lambda old, chance: None,
    "links.{i}.addresses": lambda old, chance: (),
    "links.{i}.mtu": lambda old, chance: chance.choice([1500, 9000, 0]),
    "links.{i}.carrier": lambda old, chance: False,
    "links.{i}.up": lambda old, chance: False,
    "links.{i}.mac": lambda old, chance: None,
    "links.{i}.pcie": lambda old, chance: None,
    "links.{i}.speed_mbit": lambda old, chance: chance.choice([None, 100000]),
    "links.{i}.phys_switch_id": lambda old, chance: None,
    "links.{i}.network_file": lambda old, chance: chance.choice([None, "", "/run/x"]),
    "links.{i}.pfc_priorities": lambda old, chance: chance.choice([None, (), (0,), (3,)]),
    "links.{i}.counters": lambda old, chance: {},
    "rdma.roce-{i}": lambda old, chance: None,
    "rdma.roce-{i}.netdevs": lambda old, chance: (),
    "rdma.roce-{i}.ports": lambda old, chance: (),
    "rdma.roce-{i}.ports.0.gids": lambda old, chance: _shuffled(old, chance),
    "rdma.roce-{i}.ports.0.state": lambda old, chance: chance.choice([None, "DOWN", "INIT"]),
    "rdma.roce-{i}.ports.0.active_mtu": lambda old, chance: chance.choice([None, 1024]),
    "rdma.roce-{i}.ports.0.counters": lambda old, chance: chance.choice([{}, {"port_xmit_data": 1 << 40}]),
    "rdma.roce-{i}.ports.0.hw_counters": lambda old, chance: {},
    "ways": lambda old, chance: tuple(w for w in old if chance.random() < 0.5),
    "routes": lambda old, chance: tuple(r for r in old if chance.random() < 0.5),
    "neighbours": lambda old, chance: tuple(n for n in old if chance.random() < 0.5),
    "firewall": lambda old, chance: None,
    "limits": lambda old, chance: None,
    "nccl.planned": lambda old, chance: None,
    "sysctls.arp_ignore": lambda old, chance: {},
    f"links.{LAN}": lambda old, chance: None,
}
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(sorted(DAMAGES)), st.sampled_from(INTERFACES)), max_size=6
)


def _damaged(topology: str, steps: list[tuple[int, str, str]], chance: random.Random) -> dict[str, NodeFacts]:
    fleet = dict(HEALTHY[topology])
    names = sorted(fleet)
    for number, path, interface in steps:
        node = names[number % len(names)]
        where = path.format(i=interface)
        # Some entries of dicts are taken out whole; everything else is computed from what is there.
        whole = where in (f"links.{interface}", f"links.{LAN}", f"rdma.roce-{interface}")
        change = None if whole else functools.partial(DAMAGES[path], chance=chance)
        try:
            fleet[node] = with_changed(fleet[node], where, change)
        except (AttributeError, IndexError, TypeError):
            # An earlier step has already taken what this one would damage.
            continue
    return fleet


@given(st.sampled_from(sorted(FLEETS)), STEPS, st.randoms(use_true_random=False), st.integers(0, 4))
@tuned(max_examples=150, deadline=None)
def test_no_check_breaks_and_what_passes_can_be_planned(
    topology: str, steps: list[tuple[int, str, str]], chance: random.Random, n_silent: int
) -> None:
    settings, fleet = SETTINGS[topology], _damaged(topology, steps, chance)
    for node in sorted(fleet)[:n_silent]:
        del fleet[node]
    findings = run({FABRIC: fleet}, settings)
    assert [f.what for f in findings if "broke" in f.what] == []
    for node, facts in fleet.items():
        refused = {f.check for f in findings if f.refuses and f.node == node}
        try:
            environment = nccl_environment(settings, node, facts)
        except Refused as error:
            assert refused & {"rdma-gid", "rdma-device", "rdma-port", "rdma-gid-choice"}, str(error)
        else:
            assert all(environment.values())
            assert environment["NCCL_IB_GID_INDEX"] != "0"


@given(st.sampled_from(sorted(FLEETS)), st.randoms(use_true_random=False))
@tuned(max_examples=60, deadline=None)
def test_a_permuted_table_changes_the_index_and_never_the_address(topology: str, chance: random.Random) -> None:
    settings = SETTINGS[topology]
    facts = HEALTHY[topology]["ada"]
    rails = settings.fleet.nodes["ada"].rails.values()
    for rail in rails:
        path = f"rdma.{rail.rdma_device}.ports.0.gids"
        facts = with_changed(facts, path, lambda gids: _shuffled(gids, chance))
    try:
        index = nccl_environment(settings, "ada", facts)["NCCL_IB_GID_INDEX"]
    except Refused as error:
        assert {r.check for r in error.refusals} == {"rdma-gid-choice"}
        return
    if index != "-1":
        for rail in rails:
            port = facts.rdma[rail.rdma_device or ""].ports[0]
            (entry,) = (gid for gid in port.gids if gid.index == int(index))
            assert (entry.ipv4, entry.type) == (rail.address.ip, "RoCE v2")


@given(st.sampled_from(sorted(FLEETS)), STEPS, st.randoms(use_true_random=False))
@tuned(max_examples=80, deadline=None)
def test_what_differs_is_symmetric_and_nothing_differs_from_itself(
    topology: str, steps: list[tuple[int, str, str]], chance: random.Random
) -> None:
    settings, before = SETTINGS[topology], HEALTHY[topology]["ada"]
    after = _damaged(topology, steps, chance)["ada"]
    one, other = view(settings, "ada", before), view(settings, "ada", after)
    assert differences(one, one, 0) == ()
    assert {(c.rail, c.what) for c in differences(one, other, 0)} == {
        (c.rail, c.what) for c in differences(other, one, 0)
    }
