from __future__ import annotations

import select
from array import array

import pytest
from dsv41_rowstore import Partition, RowFileRefused, RowOutOfRange, RowStore, RowStoreError
from hypothesis import given, settings
from hypothesis import strategies as st


def open_store(checkpoint, paths, rank=0, world_size=1, partition=Partition.BALANCED, **kwargs):
    kwargs.setdefault("revision", checkpoint.revision)
    kwargs.setdefault("cache_bytes", 1 << 20)
    return RowStore.open(paths, rank=rank, world_size=world_size, partition=partition, **kwargs)


def gather(store, layer, ids):
    weight, scale = bytearray(b"\xaa" * 256 * len(ids)), bytearray(b"\xaa" * 8 * len(ids))
    store.gather(layer, array("q", ids), weight, scale)
    return bytes(weight), bytes(scale)


@pytest.fixture
def store(checkpoint, packed):
    with open_store(checkpoint, packed(0, 1)) as opened:
        yield opened


@pytest.mark.parametrize("partition", Partition)
@pytest.mark.parametrize("world_size", [1, 3, 5])
def test_ranks_give_their_rows_and_zeros_for_the_rest(checkpoint, packed, partition, world_size):
    for rank in range(world_size):
        with open_store(
            checkpoint, packed(rank, world_size, partition), rank, world_size, partition
        ) as store:
            for layer, geometry in checkpoint.geometry.items():
                ids = list(range(geometry.n_rows))
                assert gather(store, layer, ids) == checkpoint.expected(
                    layer, ids, rank, world_size, partition
                )


@settings(deadline=None, max_examples=60)
@given(
    picks=st.lists(st.integers(0, 1000), max_size=80), layer=st.sampled_from([1, 14]), rank=st.integers(0, 2)
)
def test_any_ids_in_any_order_equal_the_planes(checkpoint, packed, picks, layer, rank):
    with open_store(checkpoint, packed(rank, 3), rank, 3) as store:
        for _ in range(2):
            assert gather(store, layer, picks) == checkpoint.expected(
                layer, picks, rank, 3, Partition.BALANCED
            )


def test_repeated_ids_are_read_once(checkpoint, store):
    ids = [5, 9, 5, 5, 9, 700]
    assert gather(store, 1, ids) == checkpoint.expected(1, ids, 0, 1, Partition.BALANCED)
    counters = store.counters()
    assert (counters["lookups"], counters["owned_rows"], counters["duplicates"]) == (6, 6, 3)
    assert counters["device_reads"] <= 3 and counters["device_bytes"] <= 3 * 8192


def test_an_id_out_of_range_is_refused_before_any_read(checkpoint, store):
    n_rows = checkpoint.geometry[1].n_rows
    for bad in (-1, n_rows, -(2**63), 2**63 - 1):
        weight, scale = bytearray(b"\xaa" * 512), bytearray(b"\xaa" * 16)
        with pytest.raises(
            RowOutOfRange, match=rf"row id {bad} at position 1 is outside layer 1's table of {n_rows} rows"
        ):
            store.gather(1, array("q", [3, bad]), weight, scale)
        assert set(weight) == set(scale) == {0xAA}
    assert store.counters()["device_reads"] == 0
    assert gather(store, 1, [3]) == checkpoint.expected(1, [3], 0, 1, Partition.BALANCED)


def test_submit_then_wait_and_fileno(checkpoint, store):
    weight, scale = bytearray(512), bytearray(16)
    job = store.submit(14, array("q", [1, 2]), weight, scale)
    assert select.select([job], [], [], 10)[0] == [job]
    job.wait()
    job.wait(timeout_s=0)
    assert job.done()
    assert (bytes(weight), bytes(scale)) == checkpoint.expected(14, [1, 2], 0, 1, Partition.BALANCED)


def test_no_ids_is_no_work(store):
    assert gather(store, 1, []) == (b"", b"")


def test_buffers_of_the_wrong_size_or_type_are_refused(store):
    ids = array("q", [1, 2])
    with pytest.raises(ValueError, match="out_weight needs 512 bytes and out_scale 16, got 512 and 8"):
        store.gather(1, ids, bytearray(512), bytearray(8))
    with pytest.raises(TypeError, match="ids must be int64"):
        store.gather(1, array("i", [1, 2]), bytearray(512), bytearray(16))
    with pytest.raises((BufferError, TypeError)):
        store.gather(1, ids, bytes(512), bytearray(16))
    with pytest.raises((BufferError, ValueError)):
        store.gather(1, memoryview(array("q", [1, 0, 2, 0]))[::2], bytearray(512), bytearray(16))
    with pytest.raises(ValueError, match="ids must lie at a multiple of 8 bytes"):
        store.gather(1, memoryview(bytearray(24))[1:17].cast("q"), bytearray(512), bytearray(16))


@pytest.mark.parametrize("timeout_s", [None, float("inf"), 1e300])
def test_a_wait_without_end_waits(store, timeout_s):
    job = store.submit(1, array("q", range(400)), bytearray(256 * 400), bytearray(8 * 400))
    job.wait(timeout_s)
    assert job.done()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"rank": 1}, "is for rank 0, expected rank 1"),
        ({"world_size": 4}, "is for world size 3, expected world size 4"),
        ({"partition": Partition.CONTIGUOUS}, "is for partition balanced, expected partition contiguous"),
        ({"revision": "abc"}, "is for revision 0123456789abcdef.*, expected revision abc"),
    ],
)
def test_open_refuses_a_file_for_something_else_and_names_both(checkpoint, packed, asked, sentence):
    with pytest.raises(RowFileRefused, match=sentence):
        open_store(checkpoint, packed(0, 3), **{"rank": 0, "world_size": 3, **asked})


def test_open_refuses_a_file_under_the_wrong_layer(checkpoint, packed):
    paths = packed(0, 3)
    with pytest.raises(RowFileRefused, match="is for layer 14, expected layer 1"):
        open_store(checkpoint, {1: paths[14]}, world_size=3)


def test_a_closed_store_says_so_and_closes_twice(checkpoint, packed):
    store = open_store(checkpoint, packed(0, 1))
    store.close()
    store.close()
    with pytest.raises(RowStoreError, match="is closed"):
        gather(store, 1, [1])


def test_a_layer_that_was_not_opened_is_named(checkpoint, store):
    with pytest.raises(RowStoreError, match=r"layer 2 is not open \(open layers: \[1, 14\]\)"):
        gather(store, 2, [1])
