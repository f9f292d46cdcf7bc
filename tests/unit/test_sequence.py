"""The order of a boot: nothing runs anywhere, every node holds the lease, workers, and the head last."""

from __future__ import annotations

import pytest
from dsv41_supervisor.fleet.lease import Hold
from dsv41_supervisor.fleet.sequence import NotYet, Order, Said, Sequence, Stand, What
from hypothesis import given
from hypothesis import strategies as st

NODES = ("head", "w1", "w2")
ALL = dict.fromkeys(NODES, Stand.PASSED)


def empty(sequence: Sequence, generation: int = 0) -> Sequence:
    for node in NODES:
        sequence = sequence.hear(node, Said(generation, None, Hold.NONE))
    return sequence


def opened() -> Sequence:
    return empty(Sequence(NODES)).open("b", 20001)


def granted() -> Sequence:
    sequence = opened()
    for node in NODES:
        sequence = sequence.hear(node, Said(1, "b", Hold.NONE))
    return sequence


def test_a_boot_begins_only_when_every_node_has_said_that_nothing_runs() -> None:
    sequence = Sequence(NODES).hear("head", Said(3, None, Hold.NONE)).hear("w1", Said(3, None, Hold.STOPPING))
    with pytest.raises(NotYet, match="w1, w2: not seen to be stopped"):
        sequence.open("b", 20001)
    assert sequence.due(ALL) == (Order("w1", What.STOP), Order("w2", What.STOP))


def test_what_was_said_about_older_boots_does_not_count_when_a_newer_one_is_heard_of() -> None:
    sequence = empty(Sequence(NODES), 3).hear("w2", Said(9, None, Hold.NONE))
    assert sequence.generation == 9
    assert sequence.empty == {"w2"}


def test_a_boot_is_newer_than_every_other_known_anywhere() -> None:
    sequence = empty(empty(Sequence(NODES, 2), 7), 7).open("b", 20001)
    assert sequence.boot is not None and sequence.boot.generation == 8


def test_orders_come_in_order() -> None:
    assert {o.what for o in opened().due(ALL)} == {What.GRANT}
    assert granted().due(ALL) == ()
    ready = granted().admit()
    workers = ready.due(ALL)
    assert workers == (Order("w1", What.START), Order("w2", What.START))
    for order in workers:
        ready = ready.ordered(order)
    assert ready.due(ALL | {"w1": Stand.WAITING}) == ()
    assert ready.due(ALL | {"w1": Stand.WAITING, "w2": Stand.READY}) == (Order("head", What.START),)


def test_a_fleet_of_one_starts_its_head() -> None:
    alone = Sequence(("head",)).hear("head", Said(0, None, Hold.NONE)).open("b", 20001)
    alone = alone.hear("head", Said(1, "b", Hold.NONE)).admit()
    assert alone.due({"head": Stand.PASSED}) == (Order("head", What.START),)


def test_nothing_is_admitted_before_every_node_holds_the_lease() -> None:
    assert not opened().hear("head", Said(1, "b", Hold.NONE)).admit().admitted


def test_only_nodes_that_took_the_lease_are_renewed_and_none_after_the_boot_is_closed() -> None:
    sequence = opened().hear("w1", Said(1, "b", Hold.NONE))
    assert [sequence.renews(n) for n in NODES] == [None, "b", None]
    assert [granted().close().renews(n) for n in NODES] == [None] * 3


@pytest.mark.parametrize(
    ("said", "overtaken"),
    [
        (Said(1, "b", Hold.RUNNING), False),
        (Said(1, None, Hold.NONE), False),
        (Said(2, None, Hold.NONE), True),
        (Said(1, "another", Hold.NONE), True),
    ],
)
def test_another_head_is_known_by_a_boot_as_new_as_ours_that_is_not_ours(said: Said, overtaken: bool) -> None:
    assert granted().overtaken_by(said) is overtaken


@given(st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(list(Hold)), st.integers(0, 3)), max_size=30))
def test_whatever_is_heard_the_head_never_starts_before_a_worker(heard: list[tuple[str, Hold, int]]) -> None:
    sequence = granted().admit()
    for node, hold, generation in heard:
        sequence = sequence.hear(node, Said(generation, "b", hold))
        orders = sequence.due(ALL)
        assert Order("head", What.START) not in orders
