"""The bytes of a packed row file, used by the writer and the reader alike. FORMAT.md says the same in prose.

All of it is arithmetic on frozen values, except `read_header`, which reads a page and the segment table.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .errors import RowFileRefused, StoreCorrupt

WEIGHT_BYTES = 256  # FP8 e4m3
SCALE_BYTES = 8  # E8M0, one per 32 weights
ROW_BYTES = WEIGHT_BYTES + SCALE_BYTES
PAGE_BYTES = 4096  # of the header, and what every section of the file is padded to
SEGMENT_ROWS = 65536  # 65536 * 264 = 4224 * 4096: a segment is whole rows and whole pages (16.5 MiB)
MAX_HEADS = 64
REVISION_BYTES = 127  # and a zero after them
MAX_FILE_ROWS = 1 << 29  # the cache's keys hold 29 bits of local id; all of one layer fits (384 M)
FORMAT_VERSION = 1
MAGIC = b"DSV41ROW"
MAGIC_UNFINISHED = b"DSV41TMP"  # first bytes of a file that is still being packed; no reader accepts it

# magic, version, crc, row, weight, scale bytes, layer, rank, world, partition, heads, segment rows, segments,
# done segments, segment table crc, rows here, rows of the table, segment table offset, file bytes,
# source digest, revision.  FORMAT.md lists the offsets.
_HEAD = struct.Struct("<8sIIIIIIIIIIIIIIQQQQ32s128s")
_SIZES_AT = 512
assert _HEAD.size <= _SIZES_AT and _SIZES_AT + 8 * MAX_HEADS == 1024

_REPACK = "Pack this rank's rows again (dsv41 pack)."


class Partition(StrEnum):
    """How a layer's rows are dealt to the ranks. The lookup is a sum over ranks: any partition is exact."""

    BALANCED = "balanced"  # head h belongs to rank h % world_size: heads of every n-gram order
    CONTIGUOUS = "contiguous"  # consecutive rows, as SGLang's shard_range: rank 2 of 3 gets all four-grams


_PARTITION_CODE = {Partition.BALANCED: 0, Partition.CONTIGUOUS: 1}
_PARTITION_OF = {code: partition for partition, code in _PARTITION_CODE.items()}


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """One Engram layer's table: its sub-tables (heads), order-major, and how many rows they sum to."""

    layer: int
    head_sizes: tuple[int, ...]
    n_rows: int


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive global ids [start, stop) stored at local row `local` onwards; never crosses a head."""

    start: int
    stop: int
    local: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a packed file says about itself. `n_rows` is this file's, `table_rows` the whole layer's."""

    version: int
    revision: str
    layer: int
    rank: int
    world_size: int
    partition: Partition
    head_sizes: tuple[int, ...]
    row_bytes: int
    n_rows: int
    table_rows: int
    segment_rows: int
    segment_crcs: tuple[int, ...]
    source_digest: str
    file_bytes: int

    @property
    def spans(self) -> tuple[Span, ...]:
        return owned_spans(self.head_sizes, self.rank, self.world_size, self.partition)


def rows_path(directory: str | os.PathLike[str], layer: int, rank: int, world_size: int) -> Path:
    return Path(directory) / f"engram-l{layer}-r{rank}of{world_size}.bin"


# ---- geometry ---------------------------------------------------------------------------------------------


def _is_prime(n: int) -> bool:
    """Miller-Rabin; exact below 3.3e24 with these witnesses (Sorenson and Webster, 2015)."""
    witnesses = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if n < 2:
        return False
    for p in witnesses:
        if n % p == 0:
            return n == p
    d, r = n - 1, 0
    while d % 2 == 0:
        d, r = d // 2, r + 1
    for a in witnesses:
        x = pow(a, d, n)
        if x in (1, n - 1):
            continue
        for _ in range(r - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that holds the `engram_*` keys: itself, or its `text_config`."""
    if "engram_layer_ids" in config:
        return config
    nested = config.get("text_config")
    if isinstance(nested, Mapping) and "engram_layer_ids" in nested:
        return nested
    raise RowFileRefused(
        "config.json has no engram_layer_ids, so this checkpoint has no Engram tables",
        hint="Point `checkpoint.path` at a DeepSeek-V4.1 checkpoint.",
    )


def engram_geometry(config: Mapping[str, Any]) -> tuple[LayerGeometry, ...]:
    """Sub-table sizes of every Engram layer, from a parsed config.json.

    Sizes are primes drawn in (layer, order, head) order from one ascending set that starts at
    engram_vocab_size; within an order each is the next prime after the one before that nobody took.
    Raises: RowFileRefused when keys are missing or engram_num_embeddings disagrees with the primes.
    Source: sglang 0.5.23 srt/layers/engram.py EngramLayout.from_config; sums checked against the release.
    """
    text = text_config(config)
    try:
        layers = [int(layer) for layer in text["engram_layer_ids"]]
        n_orders = int(text["engram_max_ngram_size"]) - 1
        n_heads = int(text["engram_n_heads"])
        vocab = int(text["engram_vocab_size"])
        claimed = [int(rows) for rows in text["engram_num_embeddings"]]
        head_dim = int(text["engram_head_dim"])
    except KeyError as missing:
        raise RowFileRefused(
            f"config.json has no {missing.args[0]}", hint="Fetch config.json of the pinned revision again."
        ) from None
    if head_dim != WEIGHT_BYTES:
        raise RowFileRefused(
            f"engram_head_dim is {head_dim}, this row store holds rows of {WEIGHT_BYTES} weights",
            hint="Use a checkpoint whose Engram rows are 256 FP8 weights and 8 scales.",
        )
    if not 1 <= n_orders * n_heads <= MAX_HEADS or vocab < 2:
        raise RowFileRefused(
            f"config.json asks for {n_orders} n-gram orders of {n_heads} heads over {vocab} rows",
            hint=f"Expected 1 to {MAX_HEADS} heads in all and at least 2 rows each.",
        )
    taken: set[int] = set()
    found: list[LayerGeometry] = []
    for layer in layers:
        sizes: list[int] = []
        for _ in range(n_orders):
            size = vocab - 1
            for _ in range(n_heads):
                size += 1
                while size in taken or not _is_prime(size):
                    size += 1
                taken.add(size)
                sizes.append(size)
        found.append(LayerGeometry(layer, tuple(sizes), sum(sizes)))
    expected = [geometry.n_rows for geometry in found]
    if claimed != expected:
        raise RowFileRefused(
            f"engram_num_embeddings is {claimed}, the primes of this config sum to {expected}",
            hint="config.json and the tables are from different revisions; fetch the pinned revision again.",
        )
    return tuple(found)


def owned_spans(
    head_sizes: Sequence[int], rank: int, world_size: int, partition: Partition
) -> tuple[Span, ...]:
    """The global ids a rank owns, in the order they lie in its file.

    Contiguous follows SGLang's shard_range: whole heads when they divide evenly, else equal rows.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in a world of {world_size}")
    starts = [0]
    for size in head_sizes:
        starts.append(starts[-1] + size)
    total, n_heads = starts[-1], len(head_sizes)
    if partition is Partition.BALANCED:
        ranges = [(starts[h], starts[h + 1]) for h in range(rank, n_heads, world_size)]
    else:
        if n_heads % world_size == 0:
            each = n_heads // world_size
            low, high = starts[rank * each], starts[(rank + 1) * each]
        else:
            low, high = total * rank // world_size, total * (rank + 1) // world_size
        ranges = [(max(starts[h], low), min(starts[h + 1], high)) for h in range(n_heads)]
    spans: list[Span] = []
    local = 0
    for start, stop in ranges:
        if start < stop:
            spans.append(Span(start, stop, local))
            local += stop - start
    return tuple(spans)


# ---- the file ---------------------------------------------------------------------------------------------


def pad_to_page(n_bytes: int) -> int:
    return -(-n_bytes // PAGE_BYTES) * PAGE_BYTES


def n_segments(n_rows: int) -> int:
    return -(-n_rows // SEGMENT_ROWS)


def segment_table_offset(n_rows: int) -> int:
    return PAGE_BYTES + pad_to_page(n_rows * ROW_BYTES)


def file_bytes(n_rows: int) -> int:
    """Header page, rows and segment table, each padded to a page: O_DIRECT reads never meet the end."""
    return segment_table_offset(n_rows) + pad_to_page(4 * n_segments(n_rows))


def revision_bytes(revision: str) -> bytes:
    """The revision as the header holds it.

    Raises: RowFileRefused when it does not fit there or would read back as another one.
    """
    why = None
    name = b""
    if not isinstance(revision, str):
        why = f"is {revision!r:.60}, of type {type(revision).__name__}"
    else:
        try:
            name = revision.encode()
        except UnicodeEncodeError:
            why = f"{revision[:60]!r} has characters that are not text"
        if b"\0" in name:
            why = f"{revision[:60]!r} has a zero byte"
        elif len(name) > REVISION_BYTES:
            why = f"name is {len(name)} bytes long"
    if why:
        raise RowFileRefused(
            f"the revision {why}; the header has room for text of at most {REVISION_BYTES} bytes without zeros",
            hint="Use the commit hash.",
        )
    return name


def encode_header(
    *,
    finished: bool,
    done_segments: int,
    table: bytes,
    layer: int,
    rank: int,
    world_size: int,
    partition: Partition,
    head_sizes: Sequence[int],
    n_rows: int,
    source_digest: bytes,
    revision: str,
) -> bytes:
    """The first page of a file whose segment table is `table` (without its padding)."""
    from .rowbytes import crc32c

    name = revision_bytes(revision)
    page = bytearray(PAGE_BYTES)

    def fill(crc: int) -> None:
        _HEAD.pack_into(
            page, 0,
            MAGIC if finished else MAGIC_UNFINISHED, FORMAT_VERSION, crc,
            ROW_BYTES, WEIGHT_BYTES, SCALE_BYTES,
            layer, rank, world_size, _PARTITION_CODE[partition], len(head_sizes), SEGMENT_ROWS,
            n_segments(n_rows), done_segments, crc32c(table),
            n_rows, sum(head_sizes), segment_table_offset(n_rows), file_bytes(n_rows),
            source_digest, name,
        )  # fmt: skip
        struct.pack_into(f"<{len(head_sizes)}Q", page, _SIZES_AT, *head_sizes)

    fill(0)
    fill(crc32c(page))
    return bytes(page)


def decode_header(page: bytes, path: str, *, finished: bool = True) -> tuple[Header, int, int, int]:
    """(header without CRCs, done segments, segment table CRC, its offset)."""
    from .rowbytes import crc32c

    if len(page) < PAGE_BYTES:
        raise RowFileRefused(f"{path} is {len(page)} bytes long, shorter than its header", hint=_REPACK)
    (
        magic, version, crc, row, weight, scale,
        layer, rank, world, partition, heads, seg_rows, segments, done,
        table_crc, n_rows, table_rows, table_at, size, digest, revision,
    ) = _HEAD.unpack_from(page)  # fmt: skip
    if magic == MAGIC_UNFINISHED and finished:
        raise RowFileRefused(f"{path} was never finished packing", hint=_REPACK)
    if magic != (MAGIC if finished else MAGIC_UNFINISHED):
        raise RowFileRefused(
            f"{path} is not a packed row file (it starts with {magic!r}, expected {MAGIC!r})", hint=_REPACK
        )
    if version != FORMAT_VERSION:
        raise RowFileRefused(
            f"{path} has format version {version}, this row store reads {FORMAT_VERSION}",
            hint="Pack again with this version (dsv41 pack), or run the version that wrote it.",
        )
    blank = bytearray(page[:PAGE_BYTES])
    struct.pack_into("<I", blank, 12, 0)
    if crc32c(blank) != crc:
        raise StoreCorrupt(f"the header of {path} does not match its checksum", hint=_REPACK, path=path)
    if (row, weight, scale, seg_rows) != (ROW_BYTES, WEIGHT_BYTES, SCALE_BYTES, SEGMENT_ROWS):
        raise RowFileRefused(
            f"{path} has rows of {row} bytes ({weight} + {scale}) in segments of {seg_rows} rows, "
            f"expected {ROW_BYTES} ({WEIGHT_BYTES} + {SCALE_BYTES}) in {SEGMENT_ROWS}",
            hint=_REPACK,
        )
    known = partition in _PARTITION_OF and 1 <= heads <= MAX_HEADS and rank < world
    sizes = struct.unpack_from(f"<{heads}Q", page, _SIZES_AT) if known else ()
    if known:
        owned = owned_spans(sizes, rank, world, _PARTITION_OF[partition])
        rows_here = sum(span.stop - span.start for span in owned)
        known = (sum(sizes), rows_here, n_segments(n_rows)) == (table_rows, n_rows, segments)
        known = known and (table_at, size) == (segment_table_offset(n_rows), file_bytes(n_rows))
        known = known and done <= segments and n_rows < MAX_FILE_ROWS
    if not known:
        raise RowFileRefused(f"the header of {path} contradicts itself", hint=_REPACK)
    header = Header(
        version=version,
        revision=revision.rstrip(b"\0").decode(errors="replace"),
        layer=layer,
        rank=rank,
        world_size=world,
        partition=_PARTITION_OF[partition],
        head_sizes=tuple(sizes),
        row_bytes=row,
        n_rows=n_rows,
        table_rows=table_rows,
        segment_rows=seg_rows,
        segment_crcs=(),
        source_digest=digest.hex(),
        file_bytes=size,
    )
    return header, done, table_crc, table_at


def open_rows(path: str | os.PathLike[str]) -> int:
    """A descriptor of a packed file, for the caller to close; never waits, whatever has that name.

    Raises: RowFileRefused.
    """
    name = os.fspath(path)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would wait for its writer
    except FileNotFoundError:
        raise RowFileRefused(f"{name} does not exist", hint=_REPACK) from None
    except OSError as error:
        raise RowFileRefused(
            f"{name} cannot be read: {error.strerror}", hint="Check its mount and mode."
        ) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RowFileRefused(f"{name} is not a regular file", hint=f"Move it away. {_REPACK}")
    return fd


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header page, the segment table and the file's length; the rows are not read.

    Raises: RowFileRefused (not a finished file of this version), StoreCorrupt (checksum, length).
    """
    fd = open_rows(path)
    try:
        return read_header_from(fd, os.fspath(path))
    finally:
        os.close(fd)


def read_header_from(fd: int, name: str) -> Header:
    """As `read_header`, of a file that is open; `name` is for messages."""
    try:
        with open(fd, "rb", closefd=False) as file:
            file.seek(0)
            size = os.fstat(file.fileno()).st_size
            header, _, table_crc, table_at = decode_header(file.read(PAGE_BYTES), name)
            if size != header.file_bytes:
                raise StoreCorrupt(
                    f"{name} is {size} bytes long, its header says {header.file_bytes}",
                    hint=_REPACK,
                    path=name,
                )
            file.seek(table_at)
            table = file.read(4 * n_segments(header.n_rows))
    except OSError as error:
        raise RowFileRefused(
            f"{name} cannot be read: {error.strerror}", hint="Check its mount and mode."
        ) from error
    from .rowbytes import crc32c

    if crc32c(table) != table_crc:
        raise StoreCorrupt(
            f"the segment table of {name} does not match its checksum", hint=_REPACK, path=name
        )
    crcs = struct.unpack(f"<{len(table) // 4}I", table)
    fields = {slot: getattr(header, slot) for slot in Header.__dataclass_fields__}
    return Header(**{**fields, "segment_crcs": crcs})
