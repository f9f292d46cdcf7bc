"""The store against the planes: any order of submitting, waiting, cancelling, dropping and reopening."""

from __future__ import annotations

import gc
from array import array

import pytest
from dsv41_rowstore import Partition, RowOutOfRange, RowStore, RowStoreError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.rowstore.bad_drive import USABLE

IDS = st.lists(st.one_of(st.integers(0, 1690), st.integers(0, 20)), max_size=300)


@pytest.fixture(autouse=True)
def world(checkpoint, packed):
    StoreMachine.checkpoint, StoreMachine.packed = checkpoint, staticmethod(packed)
    yield
    StoreMachine.checkpoint = StoreMachine.packed = None


class StoreMachine(RuleBasedStateMachine):
    jobs = Bundle("jobs")

    @initialize(
        rank=st.integers(0, 2),
        world_size=st.sampled_from([1, 3]),
        partition=st.sampled_from(Partition),
        cache_bytes=st.sampled_from([0, 5000, 60_000, 2_000_000]),
        ways=st.sampled_from([1, 16]),
        engine=st.sampled_from(USABLE),
        read_bytes=st.sampled_from([None, 512, 8192]),
        queue_depth=st.sampled_from([1, 5, 128]),
    )
    def open(self, rank, world_size, partition, **kwargs):
        self.world = rank % world_size, world_size, partition
        self.kwargs, self.live, self.store = kwargs, set(), None
        self.reopen()

    @rule()
    def reopen(self):
        if self.store is not None:
            self.store.close()
        rank, world_size, partition = self.world
        self.store = RowStore.open(
            self.packed(rank, world_size, partition),
            rank=rank,
            world_size=world_size,
            partition=partition,
            **self.kwargs,
        )
        self.asked = self.owned = 0

    def count(self, layer, ids):
        rank, world_size, partition = self.world
        self.asked += len(ids)
        self.owned += sum(self.checkpoint.owner(layer, row, world_size, partition) == rank for row in ids)

    @rule(target=jobs, layer=st.sampled_from([1, 14]), ids=IDS)
    def submit(self, layer, ids):
        weight, scale = bytearray(b"\xaa" * 256 * len(ids)), bytearray(b"\xaa" * 8 * len(ids))
        self.count(layer, ids)
        return layer, ids, weight, scale, [self.store.submit(layer, array("q", ids), weight, scale)]

    @rule(job=jobs)
    def wait(self, job):
        layer, ids, weight, scale, handle = job
        if handle:
            handle[0].wait(30)
            assert handle[0].done()
            assert (bytes(weight), bytes(scale)) == self.checkpoint.expected(layer, ids, *self.world)

    @rule(job=consumes(jobs))
    def cancel(self, job):
        layer, ids, weight, scale, handle = job
        if handle:
            handle[0].cancel()
            try:
                handle[0].wait()
            except RowStoreError as error:
                assert "cancelled" in str(error)
            else:
                assert (bytes(weight), bytes(scale)) == self.checkpoint.expected(layer, ids, *self.world)
            weight.append(0)

    @rule(job=consumes(jobs))
    def drop(self, job):
        job[4].clear()
        gc.collect(0)
        job[2].append(0)

    @rule(layer=st.sampled_from([1, 14]), ids=IDS, bad=st.sampled_from([-1, 1 << 40, -(1 << 63)]))
    def out_of_range(self, layer, ids, bad):
        before = self.store.counters()
        with pytest.raises(RowOutOfRange, match=f"row id {bad} at position {len(ids)}"):
            self.store.gather(
                layer, array("q", [*ids, bad]), bytearray(256 * len(ids) + 256), bytearray(8 * len(ids) + 8)
            )
        assert self.store.counters()["lookups"] == before["lookups"]

    @invariant()
    def counters_add_up(self):
        if getattr(self, "store", None):
            c = self.store.counters()
            assert (c["lookups"], c["owned_rows"]) == (self.asked, self.owned)
            assert c["hits"] + c["misses"] + c["duplicates"] == c["owned_rows"]
            assert c["failed_reads"] == c["retries"] == 0

    def teardown(self):
        if getattr(self, "store", None):
            self.store.close()


class TestStoreMachine(StoreMachine.TestCase):
    settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
