from __future__ import annotations

import asyncio
import ctypes
import os
import random
import resource
import subprocess
import sys
from array import array

import pytest
from dsv41_rowstore import HostCall, Partition, RowOutOfRange, RowStore, RowStoreError, engram_geometry

from tests.rowstore.bad_drive import ENGINES, USABLE, having, open_store

WAYS_TO_READ = [
    having(engine, *how)
    for engine, *how in (
        ("uring", True, None), ("uring", True, 512), ("uring", True, 16384), ("uring", False, None),
        ("aio", True, None), ("aio", True, 512), ("threads", True, None), ("threads", True, 512),
        ("threads", False, None),
    )
]  # fmt: skip


@pytest.mark.parametrize(("engine", "direct", "read_bytes"), WAYS_TO_READ)
@pytest.mark.parametrize("cache_bytes", [0, 100_000, 4 << 20])
def test_every_way_to_read_gives_every_row(checkpoint, packed, engine, direct, read_bytes, cache_bytes):
    with open_store(
        packed(0, 1), engine=engine, direct=direct, read_bytes=read_bytes, cache_bytes=cache_bytes
    ) as store:
        assert (store.report["engine"], store.report["direct"]) == (engine, direct)
        rng = random.Random(3)
        for layer, geometry in checkpoint.geometry.items():
            ids = list(range(geometry.n_rows)) + [rng.randrange(geometry.n_rows) for _ in range(300)]
            rng.shuffle(ids)
            for _ in range(2):
                weight, scale = bytearray(256 * len(ids)), bytearray(8 * len(ids))
                store.gather(layer, array("q", ids), weight, scale)
                assert (bytes(weight), bytes(scale)) == checkpoint.expected(
                    layer, ids, 0, 1, Partition.BALANCED
                )


@pytest.mark.parametrize("engine", ENGINES)
def test_each_row_is_read_once_and_then_never_again(checkpoint, packed, engine):
    with open_store(packed(0, 1), engine=engine, cache_bytes=8 << 20) as store:
        ids = [row for row in range(1, 801) for _ in range(2)]  # row 0 is read when the engine is chosen
        for time in range(3):
            store.gather(14, array("q", ids), bytearray(256 * 1600), bytearray(8 * 1600))
            counters = store.counters()
            assert counters["device_reads"] == 800 and counters["hits"] == 800 * time
        assert counters["duplicates"] == 2400 and counters["inserted"] == 800 and counters["evicted"] == 0


def test_the_report_says_what_was_chosen(packed):
    with open_store(packed(0, 1), cache_bytes=1 << 20) as store:
        report = store.report
        assert report["tried"][-1].endswith(": ok") and report["engine"] == USABLE[0]
        assert 0 < report["cache_bytes"] <= 1 << 20
        assert report["read_bytes"] & (report["read_bytes"] - 1) == 0


def test_512_byte_reads_move_less(packed):
    moved = {}
    for size in (512, 4096):
        with open_store(packed(0, 1), read_bytes=size, direct=True) as store:
            store.gather(1, array("q", range(1000)), bytearray(256000), bytearray(8000))
            moved[size] = store.counters()["device_bytes"] / 1000 / 264
    assert moved[512] < 3.0 and 15 < moved[4096] < 18


def test_wrong_options_are_named(packed):
    with pytest.raises(ValueError, match="engine is 'fast', expected auto, uring, aio, threads"):
        open_store(packed(0, 1), engine="fast")
    for wrong in ({"ways": 17}, {"queue_depth": 0}, {"threads": 99}, {"cache_bytes": -1}):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"{name} {wrong[name]} "):
            open_store(packed(0, 1), **wrong)
    with pytest.raises(RowStoreError, match=r"no engine can read .*aio buffered: the kernel would"):
        open_store(packed(0, 1), engine="aio", direct=False)
    with pytest.raises(ValueError, match="no packed files"):
        open_store({})


def test_an_event_loop_can_wait_for_jobs(checkpoint, packed):
    async def main(store):
        loop, outs = asyncio.get_running_loop(), []
        for layer in (1, 14, 1, 14):
            weight, scale, ready = bytearray(256 * 90), bytearray(8 * 90), asyncio.Event()
            job = store.submit(layer, array("q", range(90)), weight, scale)
            loop.add_reader(job, ready.set)
            outs.append((layer, job, ready, weight, scale))
        for layer, job, ready, weight, scale in outs:
            await asyncio.wait_for(ready.wait(), 10)
            loop.remove_reader(job)
            job.wait()
            assert (bytes(weight), bytes(scale)) == checkpoint.expected(
                layer, list(range(90)), 0, 1, Partition.BALANCED
            )

    with open_store(packed(0, 1)) as store:
        asyncio.run(main(store))


@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer's own memory would be counted"
)
def test_memory_beyond_the_cache_budget_is_small(packed):
    """In a process of its own: RSS grows by the budget, 2 % and 4 MiB at most, under prefill-sized calls."""
    code = f"""
import random, resource
from array import array
from dsv41_rowstore import RowStore
paths = { {k: str(v) for k, v in packed(0, 1).items()}!r}
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
ids = array("q", [random.randrange(1500) for _ in range(98304)])
weight, scale = bytearray(256 * len(ids)), bytearray(8 * len(ids))
weight[:] = b"x" * len(weight)
RowStore.open(paths, rank=0, world_size=1, partition="balanced").close()
before, budget = rss(), 32 << 20
store = RowStore.open(paths, rank=0, world_size=1, partition="balanced", cache_bytes=budget)
from dsv41_rowstore.cache import RowCache
for _ in range(5):
    for layer in paths:
        store.gather(layer, ids, weight, scale)
print(rss() - before, store.report["cache_bytes"])
"""
    grown, cache = map(
        int, subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split()
    )
    assert cache <= 32 << 20
    assert grown <= (32 << 20) * 1.02 + (4 << 20)


# ---- host calls --------------------------------------------------------------------------------------------

NAME = b"void (*)(void *)"


def function(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(get(capsule, NAME))  # CFUNCTYPE drops the GIL


def test_a_host_call_reads_its_ids_when_it_runs(checkpoint, packed):
    with open_store(packed(0, 1), cache_bytes=1 << 20) as store:
        ids, weight, scale = array("q", [0] * 48), bytearray(256 * 48), bytearray(8 * 48)
        call = HostCall(store, 14, ids, weight, scale)
        gather, submit, wait = function(call.gather), function(call.submit), function(call.wait)
        rng = random.Random(5)
        for turn in range(20):
            ids[:] = array("q", [rng.randrange(1500) for _ in ids])
            if turn % 2:
                gather(call.argument)
            else:
                submit(call.argument)
                wait(call.argument)
            assert (bytes(weight), bytes(scale)) == checkpoint.expected(
                14, list(ids), 0, 1, Partition.BALANCED
            )
        call.check()
        assert call.n_calls == 20


def test_a_host_call_that_fails_says_so_later_and_leaves_nan(checkpoint, packed):
    store = open_store(packed(0, 1))
    ids, weight, scale = array("q", [4, 1 << 50]), bytearray(512), bytearray(16)
    call = HostCall(store, 1, ids, weight, scale)
    gather = function(call.gather)
    gather(call.argument)
    assert set(weight) == set(scale) == {0x7F}
    for _ in range(2):
        with pytest.raises(RowOutOfRange, match=f"row id {1 << 50} at position 1"):
            call.check()
    ids[1] = 5
    gather(call.argument)  # it goes on working, and the first error stays
    assert (bytes(weight), bytes(scale)) == checkpoint.expected(1, [4, 5], 0, 1, Partition.BALANCED)
    with pytest.raises(RowOutOfRange):
        call.check()
    store.close()
    gather(call.argument)
    assert set(weight) == {0x7F}


def test_an_error_that_was_taken_makes_room_for_the_next(checkpoint, packed):
    with open_store(packed(0, 1)) as store:
        ids = array("q", [4, 1 << 50])
        call = HostCall(store, 1, ids, bytearray(512), bytearray(16))
        assert call.take() is None
        for bad in (1 << 50, 1 << 51):
            ids[1] = bad
            function(call.gather)(call.argument)
            with pytest.raises(RowOutOfRange, match=f"row id {bad} at position 1"):
                raise call.take()
            assert call.take() is None
            call.check()


def test_the_time_a_host_call_waits_is_counted(checkpoint, packed):
    with open_store(packed(0, 1)) as store:  # no cache: every row comes from the file
        call = HostCall(store, 1, array("q", range(1000)), bytearray(256 * 1000), bytearray(8 * 1000))
        for _ in range(20):
            function(call.gather)(call.argument)
        counters = store.counters()
        assert 0 < counters["call_waits"] <= 20
        assert counters["call_wait_ns"] > 0


def test_a_host_call_dropped_between_submit_and_wait_waits_itself(packed):
    with open_store(packed(0, 1)) as store:
        for _ in range(20):
            call = HostCall(store, 1, array("q", range(200)), bytearray(256 * 200), bytearray(8 * 200))
            function(call.submit)(call.argument)
            del call


# ---- the real geometry -------------------------------------------------------------------------------------


def test_ids_of_the_released_geometry_reach_the_right_local_rows(tmp_path):
    """The header of a rank's real file, as a sparse file of 32 GiB with a few rows written into it."""
    from dsv41_rowstore import layout, rows_path

    config = {
        "engram_layer_ids": [1, 14], "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256,
        "engram_vocab_size": 16_000_000, "engram_num_embeddings": [384_006_168, 384_016_682],
    }  # fmt: skip
    geometry = engram_geometry(config)[0]
    spans = layout.owned_spans(geometry.head_sizes, 2, 3, Partition.BALANCED)
    n_rows = spans[-1].local + spans[-1].stop - spans[-1].start
    crcs = bytes(4 * layout.n_segments(n_rows))
    path = rows_path(tmp_path, 1, 2, 3)
    rng = random.Random(11)
    picks = {}
    for span in spans:
        for row in (span.start, span.stop - 1, rng.randrange(span.start, span.stop)):
            picks[row] = (span.local + row - span.start, rng.randbytes(264))
    try:
        with open(path, "wb") as file:
            file.truncate(layout.file_bytes(n_rows))
            for local, raw in picks.values():
                file.seek(4096 + 264 * local)
                file.write(raw)
            file.seek(layout.segment_table_offset(n_rows))
            file.write(crcs)
            file.seek(0)
            file.write(
                layout.encode_header(
                    finished=True,
                    done_segments=len(crcs) // 4,
                    table=crcs,
                    layer=1,
                    rank=2,
                    world_size=3,
                    partition=Partition.BALANCED,
                    head_sizes=geometry.head_sizes,
                    n_rows=n_rows,
                    source_digest=bytes(32),
                    revision="r",
                )  # fmt: skip
            )
    except OSError as error:
        pytest.skip(f"no sparse file of 32 GiB here: {error.strerror}")
    with RowStore.open(
        {1: path}, rank=2, world_size=3, partition=Partition.BALANCED, cache_bytes=1 << 20, verify_segments=0
    ) as store:
        foreign = [0, spans[0].start - 1, spans[0].stop, 384_006_167 - spans[-1].stop + spans[-1].start]
        foreign = [row for row in foreign if not any(s.start <= row < s.stop for s in spans)]
        ids = [*picks, *foreign]
        weight, scale = bytearray(256 * len(ids)), bytearray(8 * len(ids))
        store.gather(1, array("q", ids), weight, scale)
        for i, row in enumerate(ids):
            raw = picks[row][1] if row in picks else bytes(264)
            assert weight[256 * i : 256 * i + 256] + scale[8 * i : 8 * i + 8] == raw
        assert store.counters()["owned_rows"] == len(picks) and len(foreign) >= 3
    assert resource.getpagesize() >= 4096
