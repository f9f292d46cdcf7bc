"""One boot is one lease: no message of another boot starts or keeps a rank. The rules one by one; all together, under
every fault, in test_lease_machine.py."""

from __future__ import annotations

import pytest
from dsv41_supervisor.fleet.lease import (
    RAN_OUT,
    Failed,
    Gone,
    Grant,
    Happening,
    Hold,
    LeaseBook,
    Looked,
    RankLease,
    Refuse,
    Renew,
    Save,
    Stamp,
    Start,
    StartRank,
    Stop,
    StopRank,
    Tick,
)  # fmt: skip
from dsv41_supervisor.rank.plan import Boot

TTL_S = 10.0
LIFE = "life"


def boot(generation: int, name: str = "boot") -> Boot:
    return Boot(f"{name}-{generation}", generation, 20000 + generation)


def walk(*steps: tuple[float, Happening], book: LeaseBook | None = None) -> tuple[LeaseBook, list[object]]:
    """The book after all steps, and everything that was to be done, in order."""
    book, done = book or LeaseBook(LIFE, hold=Hold.NONE), []
    for now_s, what in steps:
        book, actions = book.step(what, now_s, TTL_S)
        done += actions
    return book, done


def grant(generation: int, at_s: float = 0.0, name: str = "boot") -> Grant:
    return Grant(boot(generation, name), Stamp(LIFE, at_s))


def refused(*steps: tuple[float, Happening], book: LeaseBook | None = None) -> str:
    """Why the last step was refused; fails when it was not."""
    _, done = walk(*steps, book=book)
    assert isinstance(done[-1], Refuse), done
    return done[-1].why


def test_a_lease_runs_from_what_the_node_said_and_not_from_when_the_grant_came() -> None:
    book, done = walk((4, grant(1, at_s=0)))
    assert done == [Save()]
    assert book.left_s(4) == 6
    assert book.live(9.9) == boot(1)
    assert book.live(10.0) is None


def test_renewing_never_makes_a_lease_shorter_and_a_late_one_not_longer_than_its_stamp() -> None:
    book, _ = walk((0, grant(1)), (5, Renew("boot-1", Stamp(LIFE, 5))), (6, Renew("boot-1", Stamp(LIFE, 1))))
    assert book.expires_at_s == 15


def test_a_renewal_that_was_held_up_keeps_no_lease() -> None:
    late = Renew("boot-1", Stamp(LIFE, 0.5))
    book, done = walk((0, grant(1)), (9.9, late), (10.6, Tick()))
    assert book.boot is None
    assert done[-1] == Save()


def test_a_lease_that_ran_out_cannot_be_renewed() -> None:
    assert "ran out 1.0 s ago" in refused((0, grant(1)), (11, Renew("boot-1", Stamp(LIFE, 10.5))))


def test_a_message_meant_for_the_supervisor_before_is_refused() -> None:
    old = Stamp("another life", 0)
    assert "too old" in refused((0, Grant(boot(1), old)))
    assert "meant for a supervisor before" in refused((0, grant(1)), (1, Renew("boot-1", old)))


def test_a_delayed_message_of_an_older_boot_is_refused_and_named() -> None:
    why = refused((0, grant(5)), (1, Stop(5)), (2, grant(4, at_s=2)))
    assert why == "boot boot-4 has generation 4, but this node has seen 5"


def test_two_heads_cannot_both_hold_one_generation() -> None:
    assert "has seen 3" in refused((0, grant(3, name="head-a")), (1, grant(3, at_s=1, name="head-b")))
    assert "not this node's boot" in refused((0, grant(3, name="head-a")), (1, Renew("head-b-3", Stamp(LIFE, 1))))


def test_a_stop_of_an_older_boot_does_not_stop_a_newer_one_and_says_who_started_it() -> None:
    why = refused((0, grant(6)), (1, Start("boot-6")), (2, Stop(5)))
    assert why == "a stop up to generation 5 came, but boot boot-6 is 6: another head started it"


def test_a_stop_forbids_every_boot_up_to_it() -> None:
    assert "has seen 7" in refused((0, Stop(7)), (1, grant(7, at_s=1)))


def test_a_boot_starts_its_rank_once() -> None:
    _, done = walk((0, grant(1)), (1, Start("boot-1")), (1, Start("boot-1")))
    assert [a for a in done if isinstance(a, StartRank)] == [StartRank(boot(1))]
    why = refused((0, grant(1)), (1, Start("boot-1")), (2, Failed()), (3, Gone()), (4, Start("boot-1")))
    assert why == "the rank of boot boot-1 has ended here already"


def test_no_lease_is_taken_beside_a_rank_that_was_not_seen_gone() -> None:
    running = (0, grant(1)), (1, Start("boot-1"))
    assert "a rank is running here" in refused(*running, (2, grant(2, at_s=2)))
    assert "a rank is stopping here" in refused(*running, (2, Stop(1)), (3, grant(2, at_s=3)))
    book, _ = walk(*running, (2, Stop(1)), (3, Gone()), (4, grant(2, at_s=4)))
    assert book.boot == boot(2)


def test_a_rank_without_a_lease_is_stopped() -> None:
    book, done = walk((0, grant(1)), (1, Start("boot-1")), (10, Tick()))
    assert done[-2:] == [Save(), StopRank(RAN_OUT)]
    assert book.hold is Hold.STOPPING


@pytest.mark.parametrize(
    ("remembered", "running", "hold", "n_stops"),
    [
        (boot(4), "boot-4", Hold.RUNNING, 0),
        (boot(4), None, Hold.NONE, 0),
        (boot(4), "boot-3", Hold.STOPPING, 1),
        (None, "boot-4", Hold.STOPPING, 1),
    ],
)
def test_a_supervisor_that_starts_keeps_only_the_rank_of_the_lease_it_remembers(
    remembered: Boot | None, running: str | None, hold: Hold, n_stops: int
) -> None:
    book, done = walk((100, Looked(running)), book=LeaseBook("new", 4, remembered))
    assert book.hold is hold
    assert sum(isinstance(a, StopRank) for a in done) == n_stops
    assert (book.boot is not None) == (hold is Hold.RUNNING)


def test_a_supervisor_that_has_not_looked_takes_and_starts_nothing() -> None:
    fresh = LeaseBook("new", 4, boot(4))
    assert "a rank is unknown here" in refused((100, Grant(boot(5), Stamp("new", 100))), book=fresh)
    assert "no live lease" in refused((100, Start("boot-4")), book=fresh)


def test_a_lease_taken_over_is_not_passed_on_to_the_rank_until_the_head_has_spoken() -> None:
    book, _ = walk((100, Looked("boot-4")), book=LeaseBook("new", 4, boot(4)))
    assert not book.confirmed
    rank = RankLease(until_s=103).heard(101, None)
    assert rank.may_run(102.9)
    assert not rank.may_run(103)
    book, _ = walk((101, Renew("boot-4", Stamp("new", 100.5))), book=book)
    assert book.confirmed
    assert RankLease(103).heard(101, book.left_s(101)).until_s == 110.5


def test_a_stamp_survives_the_way_there_and_back() -> None:
    stamp = Stamp("a1b2", 1234.5)
    assert Stamp.parse(str(stamp)) == stamp
    for text in ("", "12", ".12", "life.x"):
        with pytest.raises(ValueError):
            Stamp.parse(text)
