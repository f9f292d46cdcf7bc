"""Checkpoint → packed rows of one layer and rank, restartable by segment; and the check of such a file.

A file gets its final name only when its rows, its segment table and its header are on the disk. Until then
it is `<name>.tmp`, whose first page has another magic and says how many segments are done, so a second run
carries on. Every state that a crash or a full disk can leave is refused by `read_header`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .checkpoint import EngramTable, Plane, open_table, read_exactly, source_digest
from .errors import RowFileRefused, RowStoreError, StoreCorrupt
from .layout import (
    PAGE_BYTES,
    ROW_BYTES,
    SCALE_BYTES,
    SEGMENT_ROWS,
    WEIGHT_BYTES,
    Header,
    Partition,
    Span,
    decode_header,
    encode_header,
    file_bytes,
    n_segments,
    open_rows,
    owned_spans,
    read_header,
    read_header_from,
    revision_bytes,
    rows_path,
    segment_table_offset,
)
from .rowbytes import crc32c, interleave

CHECKPOINT_SEGMENTS = 32  # segments between two durable restart points (528 MiB); guess, never measured
SEGMENT_BYTES = SEGMENT_ROWS * ROW_BYTES
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class PackProgress:
    """How far a pack is. `stage` is kept (already there), checking (a restart), packing or syncing."""

    layer: int
    rank: int
    stage: str
    done_bytes: int
    total_bytes: int
    resumed_bytes: int
    elapsed_s: float

    @property
    def rate_bytes_per_s(self) -> float:
        return (self.done_bytes - self.resumed_bytes) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        rate = self.rate_bytes_per_s
        return (self.total_bytes - self.done_bytes) / rate if rate > 0 else None


class _Job:
    """What identifies the file being packed: two runs with equal keys write the same bytes."""

    def __init__(
        self, table: EngramTable, rank: int, world_size: int, partition: Partition, revision: str
    ) -> None:
        self.table = table
        self.spans = owned_spans(table.geometry.head_sizes, rank, world_size, partition)
        self.n_rows = sum(span.stop - span.start for span in self.spans)
        self.n_segments = n_segments(self.n_rows)
        self.digest = source_digest(table, self.spans)
        self.rank, self.world_size, self.partition, self.revision = rank, world_size, partition, revision

    def header_page(self, table: bytes, *, finished: bool) -> bytes:
        return encode_header(
            finished=finished,
            done_segments=len(table) // 4,
            table=table,
            layer=self.table.geometry.layer,
            rank=self.rank,
            world_size=self.world_size,
            partition=self.partition,
            head_sizes=self.table.geometry.head_sizes,
            n_rows=self.n_rows,
            source_digest=self.digest,
            revision=self.revision,
        )

    def is_of(self, header: Header) -> bool:
        return (
            header.layer,
            header.rank,
            header.world_size,
            header.partition,
            header.head_sizes,
            header.revision,
            header.source_digest,
        ) == (
            self.table.geometry.layer,
            self.rank,
            self.world_size,
            self.partition,
            self.table.geometry.head_sizes,
            self.revision,
            self.digest.hex(),
        )

    def segment_rows(self, segment: int) -> int:
        return min(SEGMENT_ROWS, self.n_rows - segment * SEGMENT_ROWS)


def pieces(spans: Sequence[Span], first: int, n_rows: int) -> Iterator[tuple[int, int]]:
    """(global id, count) runs that make up local rows [first, first + n_rows)."""
    for span in spans:
        low = max(first, span.local)
        high = min(first + n_rows, span.local + span.stop - span.start)
        if low < high:
            yield span.start + low - span.local, high - low


class _Source:
    """Reads one segment's planes at a time into its own pair of buffers."""

    def __init__(self, job: _Job) -> None:
        self.job = job
        rows = min(SEGMENT_ROWS, job.n_rows)
        self.buffers = [(bytearray(rows * WEIGHT_BYTES), bytearray(rows * SCALE_BYTES)) for _ in range(2)]
        self.files = {p.path: open(p.path, "rb") for p in (job.table.weight, job.table.scale)}  # noqa: SIM115

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def read(self, segment: int) -> tuple[bytearray, bytearray]:
        weight, scale = self.buffers[segment % 2]
        rows = self.job.segment_rows(segment)
        self._plane(self.job.table.weight, segment, rows, memoryview(weight))
        self._plane(self.job.table.scale, segment, rows, memoryview(scale))
        return weight, scale

    def _plane(self, plane: Plane, segment: int, rows: int, view: memoryview) -> None:
        fd, at = self.files[plane.path].fileno(), 0
        for start, count in pieces(self.job.spans, segment * SEGMENT_ROWS, rows):
            n_bytes, offset = count * plane.row_bytes, plane.offset_bytes + start * plane.row_bytes
            read_exactly(fd, view[at : at + n_bytes], offset, plane.path)
            # The source is read once; on a machine whose memory is the GPU's, do not keep it cached.
            os.posix_fadvise(fd, offset, n_bytes, os.POSIX_FADV_DONTNEED)
            at += n_bytes


def _write(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _resume(fd: int, job: _Job, name: str, report: Callable[[str, int], None]) -> list[int]:
    """Checksums of the segments of an earlier run that are whole on the disk; [] to start afresh."""
    try:
        header, done, table_crc, table_at = decode_header(os.pread(fd, PAGE_BYTES, 0), name, finished=False)
    except RowStoreError:
        return []
    table = os.pread(fd, 4 * done, table_at)
    if not job.is_of(header) or os.fstat(fd).st_size != header.file_bytes or crc32c(table) != table_crc:
        return []
    crcs: list[int] = []
    buffer = memoryview(bytearray(SEGMENT_BYTES))
    for segment, crc in enumerate(struct.unpack(f"<{done}I", table)):
        view = buffer[: job.segment_rows(segment) * ROW_BYTES]
        if os.preadv(fd, [view], PAGE_BYTES + segment * SEGMENT_BYTES) != len(view) or crc32c(view) != crc:
            break
        crcs.append(crc)
        report("checking", (segment + 1) * SEGMENT_BYTES)
    return crcs


def pack_layer(
    checkpoint: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    layer: int,
    rank: int,
    world_size: int,
    partition: Partition,
    revision: str,
    progress: Callable[[PackProgress], None] | None = None,
) -> Header:
    """Write this rank's rows of one layer and return the header of the finished file.

    A finished file of the same key (layer, rank, world size, partition, revision, table) is left alone; an
    unfinished one is carried on. Memory: about 70 MiB, whatever the table's size.
    Raises: RowFileRefused (the checkpoint's table is missing, cut short or of another shape; another pack of
    this file runs; a revision the header cannot hold), RowStoreError (no space left: the unfinished file is
    removed).
    """
    revision_bytes(revision)
    job = _Job(open_table(checkpoint, layer), rank, world_size, Partition(partition), revision)
    directory = Path(out_dir)
    final = rows_path(directory, layer, rank, world_size)
    tmp = final.with_name(final.name + ".tmp")
    begun, resumed = time.monotonic(), 0
    total = job.n_rows * ROW_BYTES

    def report(stage: str, done: int) -> None:
        if progress:
            done = min(done, total)
            progress(PackProgress(layer, rank, stage, done, total, resumed, time.monotonic() - begun))

    with contextlib.suppress(RowStoreError):
        header = read_header(final)
        if job.is_of(header):
            resumed = total
            report("kept", total)
            return header

    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = os.open(tmp, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP and tmp.is_symlink():
            raise _not_ours(tmp, "a symbolic link") from None
        raise RowStoreError(
            f"{tmp} cannot be written: {error.strerror}", hint="Check pack.directory, its mount and its owner."
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _not_ours(tmp, "not a regular file")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RowFileRefused(
                f"{tmp} is being written by another process",
                hint="Wait for it (systemctl status dsv41-pack).",
            ) from None
        # Another process may have finished and renamed it between our open and our lock.
        if not tmp.exists() or not os.path.samestat(os.fstat(fd), os.stat(tmp)):
            raise RowFileRefused(
                f"{tmp} was finished by another process just now", hint="Run the command again."
            )
        with contextlib.suppress(RowStoreError):
            if job.is_of(read_header(tmp)):  # the power went between the last sync and the rename
                os.rename(tmp, final)
                _sync_directory(directory)
                resumed = total
                report("kept", total)
                return read_header(final)
        crcs = _resume(fd, job, os.fspath(tmp), report)
        resumed, begun = len(crcs) * SEGMENT_BYTES, time.monotonic()
        try:
            _fill(fd, job, crcs, report)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise RowStoreError(
                    f"writing {tmp} failed: {error.strerror}",
                    hint="Check the drive (dmesg), then pack again.",
                ) from error
            os.unlink(tmp)
            raise _no_space(directory, final, file_bytes(job.n_rows)) from error
        os.rename(tmp, final)
        _sync_directory(directory)
    finally:
        os.close(fd)
    report("syncing", total)
    return read_header(final)


def _not_ours(tmp: Path, what: str) -> RowFileRefused:
    return RowFileRefused(
        f"{tmp} is {what}, and nothing that packs rows makes one; it was left as it is",
        hint="Find out who put it there, remove it and pack again (dsv41 pack).",
    )


def _no_space(directory: Path, final: Path, needed: int) -> RowStoreError:
    stat = os.statvfs(directory)
    free = stat.f_bavail * stat.f_frsize
    return RowStoreError(
        f"no space left for {final}: it needs {needed / 2**30:.2f} GiB, "
        f"{directory} has {free / 2**30:.2f} GiB free",
        hint="Free space there or point pack.directory at a larger drive; the unfinished file was removed.",
    )


def _fill(fd: int, job: _Job, crcs: list[int], report: Callable[[str, int], None]) -> None:
    """Write everything that is missing and leave a durable, finished file behind `fd`."""
    size, table_at = file_bytes(job.n_rows), segment_table_offset(job.n_rows)
    if not crcs:
        # Nothing an earlier run left may show through, so the file starts as a hole of the right length.
        os.ftruncate(fd, 0)
    if size:
        os.posix_fallocate(fd, 0, size)

    def restart_point(*, finished: bool) -> None:
        os.fdatasync(fd)  # rows before the page that vouches for them
        table = struct.pack(f"<{len(crcs)}I", *crcs)
        _write(fd, memoryview(table), table_at)
        if finished:
            os.fdatasync(fd)
        _write(fd, memoryview(job.header_page(table, finished=finished)), 0)
        os.fsync(fd) if finished else os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def write_rows(view: memoryview, offset: int) -> None:
        _write(fd, view, offset)
        # On Linux this starts the write-back of these pages without waiting for it.
        os.posix_fadvise(fd, offset, len(view), os.POSIX_FADV_DONTNEED)

    # Three stages side by side: reading the next planes, joining this segment's rows, writing the last one's.
    buffers = [memoryview(bytearray(min(SEGMENT_ROWS, job.n_rows) * ROW_BYTES)) for _ in range(2)]
    source = _Source(job)
    with (
        contextlib.closing(source),
        ThreadPoolExecutor(1, "dsv41-pack-read") as reader,
        ThreadPoolExecutor(1, "dsv41-pack-write") as writer,
    ):
        todo = range(len(crcs), job.n_segments)
        ahead = reader.submit(source.read, todo[0]) if todo else None
        behind = None
        for segment in todo:
            weight, scale = ahead.result()
            if segment + 1 < job.n_segments:
                ahead = reader.submit(source.read, segment + 1)
            n_rows = job.segment_rows(segment)
            view = buffers[segment % 2][: n_rows * ROW_BYTES]
            crc = interleave(weight, scale, view, n_rows)
            if behind:
                behind.result()
            crcs.append(crc)
            behind = writer.submit(write_rows, view, PAGE_BYTES + segment * SEGMENT_BYTES)
            if len(crcs) % CHECKPOINT_SEGMENTS == 0 or len(crcs) == job.n_segments:
                behind.result()
                if len(crcs) < job.n_segments:
                    restart_point(finished=False)
            report("packing", (segment + 1) * SEGMENT_BYTES)
    report("syncing", job.n_rows * ROW_BYTES)
    restart_point(finished=True)


def verify_rows(
    path: str | os.PathLike[str],
    *,
    sample: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Check a packed file's segments against their checksums, and rows against the source tables.

    `sample` is a number of segments chosen at random (and as many times 256 rows of the source); None checks
    every segment (and 4096 rows). `progress` gets (segments done, segments in all).
    Raises: StoreCorrupt, RowFileRefused, ValueError (`sample` below 1).
    """
    check_sample(sample, "sample", 1)
    name = os.fspath(path)
    fd = open_rows(path)
    try:
        header = read_header_from(fd, name)
        verify_segments_of(fd, name, header, sample=sample, progress=progress)
        if checkpoint is not None and header.n_rows:
            n_picks = 4096 if sample is None else 256 * sample
            _verify_against(header, fd, name, Path(checkpoint), min(n_picks, header.n_rows))
    finally:
        os.close(fd)


def check_sample(sample: int | None, what: str, least: int) -> None:
    """Raises: ValueError; a check of no segments would pass whatever is in the file."""
    if sample is not None and sample < least:
        raise ValueError(f"{what} is {sample}, expected {least} or more segments")


def verify_segments_of(
    fd: int,
    name: str,
    header: Header,
    *,
    sample: int | None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Compare segments of an open packed file with their checksums; as `verify_rows` without a checkpoint."""
    chosen = list(range(len(header.segment_crcs)))
    if sample is not None:
        chosen = sorted(random.sample(chosen, min(sample, len(chosen))))
    buffer = memoryview(bytearray(min(SEGMENT_ROWS, header.n_rows) * ROW_BYTES))
    for i, segment in enumerate(chosen):
        n_rows = min(SEGMENT_ROWS, header.n_rows - segment * SEGMENT_ROWS)
        offset, view = PAGE_BYTES + segment * SEGMENT_BYTES, buffer[: n_rows * ROW_BYTES]
        at = 0
        try:  # a read stops short of a bad sector; the next one says what is wrong there
            while at < len(view) and (got := os.preadv(fd, [view[at:]], offset + at)):
                at += got
        except OSError as error:
            raise StoreCorrupt(
                f"reading segment {segment} of {name} failed: {error.strerror}",
                hint="Check the drive (dmesg, smartctl), then pack again (dsv41 pack).",
                path=name, offset_bytes=offset + at, errno=error.errno,
            ) from error  # fmt: skip
        if at < len(view) or crc32c(view) != header.segment_crcs[segment]:
            raise StoreCorrupt(
                f"segment {segment} of {name} (rows {segment * SEGMENT_ROWS} to "
                f"{segment * SEGMENT_ROWS + n_rows - 1}) does not match its checksum",
                hint="Remove the file and pack again (dsv41 pack); twice is a sign of a bad drive.",
                path=name, row=segment * SEGMENT_ROWS, offset_bytes=offset,
            )  # fmt: skip
        os.posix_fadvise(fd, offset, len(view), os.POSIX_FADV_DONTNEED)
        if progress:
            progress(i + 1, len(chosen))


def _verify_against(header: Header, fd: int, name: str, checkpoint: Path, n_picks: int) -> None:
    table = open_table(checkpoint, header.layer)
    if table.geometry.head_sizes != header.head_sizes:
        raise RowFileRefused(
            f"{name} was packed from a table of {header.table_rows} rows, "
            f"{checkpoint} has one of {table.geometry.n_rows}",
            hint="Pack again from this checkpoint (dsv41 pack).",
        )
    got, want = bytearray(ROW_BYTES), memoryview(bytearray(ROW_BYTES))
    with open(table.weight.path, "rb") as weight, open(table.scale.path, "rb") as scale:
        for local in sorted(random.sample(range(header.n_rows), n_picks)):
            ((row, _),) = pieces(header.spans, local, 1)
            offset = PAGE_BYTES + local * ROW_BYTES
            read_exactly(fd, memoryview(got), offset, Path(name))
            for file, plane, part in (
                (weight, table.weight, want[:WEIGHT_BYTES]),
                (scale, table.scale, want[WEIGHT_BYTES:]),
            ):
                read_exactly(file.fileno(), part, plane.offset_bytes + row * plane.row_bytes, plane.path)
            if got != want:
                raise StoreCorrupt(
                    f"row {local} of {name} (id {row}) differs from the checkpoint ({plane.path.name})",
                    hint="The checkpoint changed since it was packed, or one of them is damaged: "
                    "compare the checkpoint's files with the publisher's checksums, then pack again (dsv41 pack).",
                    path=name, row=row, offset_bytes=offset,
                )  # fmt: skip
