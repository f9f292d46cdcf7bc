"""The cache against a model of it, and under threads. `get` is what a caller's hit path does for one row."""

from __future__ import annotations

import random
import threading
from array import array

import pytest
from dsv41_rowstore import Partition, RowStore
from dsv41_rowstore.cache import RowCache
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.rowstore.bad_drive import ENGINES

MASK = (1 << 32) - 1


def row_of(local: int, version: int = 0) -> bytes:
    return (local * 31 + version).to_bytes(8, "little") * 33


class ClockModel:
    """Sixteen-way (or fewer) sets with a hand and two-bit counters, as cache.pxd describes them."""

    def __init__(self, n_sets: int, ways: int) -> None:
        self.n_sets, self.ways = n_sets, ways
        self.sets = [[None] * ways for _ in range(n_sets)]  # [local, counter, row]
        self.hands = [0] * n_sets

    def set_of(self, local: int) -> int:
        return (local * 0x9E3779B1 & MASK) * self.n_sets >> 32

    def find(self, local: int):
        return next((e for e in self.sets[self.set_of(local)] if e and e[0] == local), None)

    def get(self, local: int) -> bytes | None:
        entry = self.find(local)
        if entry:
            entry[1] = min(3, entry[1] + 1)
        return entry[2] if entry else None

    def insert(self, local: int, row: bytes) -> int:
        if self.find(local):
            return -1
        where = self.set_of(local)
        entries, way = self.sets[where], self.hands[where]
        while entries[way] and entries[way][1]:
            entries[way][1] -= 1
            way = (way + 1) % self.ways
        result = 1 if entries[way] else 0
        entries[way] = [local, 0, row]
        self.hands[where] = (way + 1) % self.ways
        return result


class CacheMachine(RuleBasedStateMachine):
    """Every answer of the cache, hits, misses and victims included, equals the model's."""

    @initialize(ways=st.integers(1, 16), n_sets=st.integers(1, 4))
    def open(self, ways, n_sets):
        self.cache = RowCache(n_sets * (69 + ways * 264) + 192, ways)
        assert self.cache.n_sets == n_sets
        self.model = ClockModel(n_sets, ways)
        self.told: dict[int, bytes] = {}

    locals_ = st.one_of(st.integers(0, 90), st.integers((1 << 29) - 40, (1 << 29) - 1))

    @rule(local=locals_, version=st.integers(0, 3))
    def insert(self, local, version):
        row = row_of(local, version)
        result = self.cache.insert(local, row)
        assert result == self.model.insert(local, row)
        if result >= 0:
            self.told[local] = row

    @rule(local=locals_)
    def get(self, local):
        got = self.cache.get(local)
        assert got == self.model.get(local)
        assert got is None or got == self.told[local]

    @rule(locals_=st.lists(locals_, max_size=40))
    def replay(self, locals_):
        misses = 0
        for local in locals_:
            if self.model.get(local) is None:
                misses += 1
                self.model.insert(local, bytes(264))
                self.told[local] = bytes(264)
        assert self.cache.replay(array("q", locals_)) == misses

    @invariant()
    def no_set_is_elsewhere(self):
        if hasattr(self, "cache"):
            assert self.cache.set_of(77) == self.model.set_of(77)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("budget", [0, 100, 4292, 4293 + 192, 10_000, 1 << 20, 123_456_789, 1 << 30])
@pytest.mark.parametrize("ways", [1, 7, 16])
def test_the_budget_is_never_exceeded_and_well_used(budget, ways):
    cache = RowCache(budget, ways)
    per_set = 69 + 264 * ways
    assert cache.n_bytes <= budget
    assert budget - cache.n_bytes < per_set + 192
    assert cache.n_sets == 0 or cache.n_bytes >= cache.n_sets * 264 * ways


def test_sets_are_used_evenly():
    cache = RowCache(1000 * 4293 + 192)
    counts = [0] * cache.n_sets
    for local in range(0, 400_000, 7):  # a stride, as consecutive heads give
        counts[cache.set_of(local)] += 1
    mean = 400_000 / 7 / cache.n_sets
    assert max(counts) < 2 * mean and min(counts) > mean / 3


def test_readers_never_see_half_a_row_while_the_writer_evicts():
    cache = RowCache(4293 + 192, 4)  # one set of four ways: every insert of a new row evicts
    stop, torn, seen = threading.Event(), [], [0]

    def read():
        rng = random.Random(threading.get_ident())
        while not stop.is_set():
            local = rng.randrange(12)
            row = cache.get(local)
            if row is not None:
                seen[0] += 1
                if row != row_of(local):
                    torn.append((local, row))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for thread in readers:
        thread.start()
    rng = random.Random(1)
    for _ in range(60_000):
        local = rng.randrange(12)
        cache.insert(local, row_of(local))
    stop.set()
    for thread in readers:
        thread.join()
    assert not torn and seen[0] > 1000


@pytest.mark.parametrize("engine", ENGINES)
def test_callers_of_both_layers_at_once_always_get_their_rows(checkpoint, packed, engine, soak_s):
    """A cache of a few sets under four callers: evictions, merges and late hits happen all the time."""
    import time

    with RowStore.open(
        packed(0, 1), rank=0, world_size=1, partition=Partition.BALANCED, cache_bytes=120_000, engine=engine
    ) as store:
        wrong, until = [], time.monotonic() + soak_s

        def call(seed):
            rng = random.Random(seed)
            while time.monotonic() < until and not wrong:
                layer = rng.choice([1, 14])
                hot = rng.randrange(1000)
                ids = [
                    rng.choice([hot + rng.randrange(60), rng.randrange(1500)])
                    for _ in range(rng.randrange(1, 700))
                ]
                weight, scale = bytearray(256 * len(ids)), bytearray(8 * len(ids))
                job = store.submit(layer, array("q", ids), weight, scale)
                if rng.random() < 0.05:
                    job.cancel()
                    continue
                job.wait(30)
                if (bytes(weight), bytes(scale)) != checkpoint.expected(layer, ids, 0, 1, Partition.BALANCED):
                    wrong.append((layer, ids))

        callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join()
        assert not wrong
        counters = store.counters()
        assert counters["hits"] and counters["evicted"] and counters["device_reads"]
        assert counters["device_reads"] + counters["merged"] + counters["late_hits"] <= counters["misses"]
