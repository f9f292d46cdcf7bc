"""Read faults and files that change: each engine meets them where a drive would put them, through FUSE."""

from __future__ import annotations

import errno
import os
from array import array

import pytest
from dsv41_rowstore import Partition, RowStore, StoreCorrupt, verify_rows

from tests.rowstore.bad_drive import ENGINES, expected, fetch, needs_fuse, open_store, outputs

# ---- the drive ---------------------------------------------------------------------------------------------


@needs_fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_a_read_that_fails_once_is_tried_again(checkpoint, drive, engine):
    tell, paths = drive
    with open_store(paths, engine=engine) as store:
        tell(f"fail {errno.EIO} 1")
        assert fetch(store, 1, [4, 9, 400]) == expected(checkpoint, 1, [4, 9, 400])
        counters = store.counters()
        assert (counters["retries"], counters["failed_reads"], counters["device_reads"]) == (1, 0, 3)


@needs_fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_sector_fails_the_job_by_name_and_leaves_the_store_usable(checkpoint, drive, engine):
    tell, paths = drive
    with open_store(paths, engine=engine, cache_bytes=1 << 20) as store:
        tell(f"fail {errno.EIO} -1")
        job = store.submit(14, array("q", [77, 77]), *outputs(2))
        for _ in range(2):  # the same answer however often it is asked
            with pytest.raises(
                StoreCorrupt, match=r"reading row 77 of .*engram-l14-r0of1.bin at byte \d+ failed: Input"
            ):
                job.wait()
        with pytest.raises(StoreCorrupt) as error:
            fetch(store, 14, [77])
        at = 4096 + 264 * 77
        assert (error.value.row, error.value.offset_bytes, error.value.errno) == (77, at, errno.EIO)
        assert error.value.path == str(paths[14])
        tell("fail 0 0")
        assert fetch(store, 14, [77, 3]) == expected(checkpoint, 14, [77, 3])


@needs_fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_one_bad_row_among_many_fails_the_job_and_only_it(checkpoint, drive, engine):
    tell, paths = drive
    ids = list(range(0, 1200, 5))
    with open_store(paths, engine=engine, cache_bytes=1 << 20) as store:
        tell("skip 100")
        tell(f"fail {errno.EIO} -1")
        bad = store.submit(1, array("q", ids), *outputs(len(ids)))
        with pytest.raises(StoreCorrupt):
            bad.wait()
        tell("fail 0 0")
        assert fetch(store, 1, ids) == expected(checkpoint, 1, ids)
        assert fetch(store, 14, ids) == expected(checkpoint, 14, ids)


@needs_fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_a_short_read_is_completed_or_refused_never_passed_on(checkpoint, drive, engine):
    tell, paths = drive
    ids = [0, 1, 2, 500, 501, 900]
    with open_store(paths, engine=engine) as store:
        for n_bytes in (0, 100, 263, 500):
            tell(f"short {n_bytes} 1")
            assert fetch(store, 1, ids) == expected(checkpoint, 1, ids)
        tell("short 0 -1")
        with pytest.raises(StoreCorrupt, match="the file ends there"):
            fetch(store, 1, ids)
        tell("short 0 0")
        assert fetch(store, 1, ids) == expected(checkpoint, 1, ids)


@needs_fuse
def test_a_segment_that_cannot_be_read_is_not_verified(drive):
    tell, paths = drive
    tell("skip 2")  # the header and the table
    tell(f"fail {errno.EIO} -1")
    with pytest.raises(StoreCorrupt, match="segment 0 of .* failed|cannot be read|Input/output"):
        verify_rows(paths[1])
    tell("fail 0 0")


# ---- the file changes under us -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_cut_short_after_open_is_an_error_not_a_signal(checkpoint, tmp_path, engine):
    paths = checkpoint.pack(tmp_path, 0, 1, Partition.BALANCED)
    n_rows = checkpoint.geometry[1].n_rows
    with open_store(paths, engine=engine) as store:
        os.truncate(paths[1], 8192)
        assert fetch(store, 1, [0, 3]) == expected(checkpoint, 1, [0, 3])
        with pytest.raises(StoreCorrupt, match=r"it is 8192 bytes long, it was \d+ when it was opened"):
            fetch(store, 1, [n_rows - 1])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_replaced_or_removed_file_goes_on_being_read(checkpoint, checkpoint_maker, tmp_path, engine):
    """The packer renames a new file into place: a running rank keeps the rows it was started with."""
    paths = checkpoint.pack(tmp_path, 0, 1, Partition.BALANCED)
    other = checkpoint_maker(tmp_path / "other", seed=99)
    with open_store(paths, engine=engine) as store:
        other.pack(tmp_path, 0, 1, Partition.BALANCED)
        assert fetch(store, 1, [5, 800]) == expected(checkpoint, 1, [5, 800])
        paths[1].unlink()
        assert fetch(store, 1, [6, 801]) == expected(checkpoint, 1, [6, 801])
    with open_store({14: paths[14]}, engine=engine) as store:
        assert fetch(store, 14, [5]) == other.expected(14, [5], 0, 1, Partition.BALANCED)


def test_open_refuses_a_damaged_segment(checkpoint, tmp_path):
    paths = checkpoint.pack(tmp_path, 0, 1, Partition.BALANCED)
    with open(paths[1], "r+b") as file:
        file.seek(4096 + 264 * 9)
        file.write(b"?")
    with pytest.raises(StoreCorrupt, match="segment 0 of .* does not match its checksum"):
        RowStore.open(paths, rank=0, world_size=1, partition=Partition.BALANCED, cache_bytes=0)
