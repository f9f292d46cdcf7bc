from __future__ import annotations

import pytest
from dsv41_rowstore import Partition, RowFileRefused, StoreCorrupt, engram_geometry, read_header, rows_path
from dsv41_rowstore.layout import (
    MAX_HEADS,
    PAGE_BYTES,
    ROW_BYTES,
    SEGMENT_ROWS,
    file_bytes,
    owned_spans,
    segment_table_offset,
)
from dsv41_rowstore.rowbytes import crc32c, interleave
from hypothesis import given
from hypothesis import strategies as st

RELEASED = {
    "engram_layer_ids": [1, 14],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_vocab_size": 16_000_000,
    "engram_head_dim": 256,
    "engram_num_embeddings": [384_006_168, 384_016_682],
}


def test_geometry_of_the_release_sums_to_its_published_row_counts():
    first, second = engram_geometry(RELEASED)
    assert (first.layer, first.n_rows, first.head_sizes[0], first.head_sizes[-1]) == (
        1,
        384_006_168,
        16_000_057,
        16_000_463,
    )
    assert (second.layer, second.n_rows, second.head_sizes[0], second.head_sizes[-1]) == (
        14,
        384_016_682,
        16_000_477,
        16_000_889,
    )
    assert engram_geometry({"text_config": RELEASED, "architectures": []}) == (first, second)


def test_geometry_refuses_row_counts_that_disagree_with_the_primes():
    with pytest.raises(RowFileRefused, match=r"is \[384006168, 1\], the primes of this config sum to"):
        engram_geometry({**RELEASED, "engram_num_embeddings": [384_006_168, 1]})


def test_geometry_refuses_a_config_without_engram():
    with pytest.raises(RowFileRefused, match="no engram_layer_ids"):
        engram_geometry({"hidden_size": 1})
    with pytest.raises(RowFileRefused, match="no engram_n_heads"):
        engram_geometry({k: v for k, v in RELEASED.items() if k != "engram_n_heads"})


def test_contiguous_rows_of_three_ranks_are_one_order_each():
    (geometry, _) = engram_geometry(RELEASED)
    counts = [
        sum(s.stop - s.start for s in owned_spans(geometry.head_sizes, r, 3, Partition.CONTIGUOUS))
        for r in range(3)
    ]
    assert counts == [128_000_880, 128_002_054, 128_003_234]


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=MAX_HEADS),
    world_size=st.integers(1, 9),
    partition=st.sampled_from(Partition),
)
def test_every_row_belongs_to_exactly_one_rank(sizes, world_size, partition):
    seen = []
    for rank in range(world_size):
        spans = owned_spans(sizes, rank, world_size, partition)
        local = 0
        for span in spans:
            assert span.local == local and span.start < span.stop
            local += span.stop - span.start
            seen += range(span.start, span.stop)
    assert sorted(seen) == list(range(sum(sizes)))


@given(st.integers(0, 1 << 29))
def test_every_part_of_the_file_ends_on_a_page(n_rows):
    assert segment_table_offset(n_rows) % PAGE_BYTES == 0 == file_bytes(n_rows) % PAGE_BYTES
    assert segment_table_offset(n_rows) >= PAGE_BYTES + n_rows * ROW_BYTES
    assert SEGMENT_ROWS * ROW_BYTES % PAGE_BYTES == 0


def test_crc32c_is_castagnoli():
    assert crc32c(b"123456789") == 0xE3069283 == crc32c(b"123456789", hardware=False)
    assert crc32c(b"") == 0


@given(st.binary(max_size=300), st.integers(0, 300))
def test_crc32c_continues_and_agrees_with_software(raw, cut):
    assert crc32c(raw[cut:], crc32c(raw[:cut])) == crc32c(raw) == crc32c(raw, hardware=False)


def test_interleave_refuses_buffers_that_are_too_short():
    with pytest.raises(ValueError, match="2 rows do not fit"):
        interleave(bytes(512), bytes(16), bytearray(2 * ROW_BYTES - 1), 2)


def damaged(path, tmp_path, at, value=b"\xff"):
    copy = tmp_path / path.name
    raw = bytearray(path.read_bytes())
    raw[at : at + len(value)] = value
    copy.write_bytes(raw)
    return copy


def test_a_header_reads_back_what_was_packed(checkpoint, packed):
    path = packed(1, 3)[14]
    header = read_header(path)
    assert path == rows_path(path.parent, 14, 1, 3)
    assert (header.layer, header.rank, header.world_size, header.partition) == (14, 1, 3, Partition.BALANCED)
    assert header.head_sizes == checkpoint.geometry[14].head_sizes
    assert header.revision == checkpoint.revision
    assert header.file_bytes == path.stat().st_size == file_bytes(header.n_rows)
    assert len(header.segment_crcs) == 1


@pytest.mark.parametrize("at", [8, 12, 16, 28, 40, 44, 60, 64, 88, 96, 128, 512, 4095])
def test_any_damaged_header_byte_is_refused(packed, tmp_path, at):
    path = packed(0, 3)[1]
    old = path.read_bytes()[at]
    with pytest.raises((RowFileRefused, StoreCorrupt)):
        read_header(damaged(path, tmp_path, at, bytes([old ^ 0x40])))


def test_header_refusals_say_what_and_what_next(packed, tmp_path):
    path = packed(0, 3)[1]
    with pytest.raises(RowFileRefused, match=r"is not a packed row file .*dsv41 pack"):
        read_header(damaged(path, tmp_path, 0, b"ELF"))
    with pytest.raises(RowFileRefused, match="was never finished packing"):
        read_header(damaged(path, tmp_path, 0, b"DSV41TMP"))
    with pytest.raises(RowFileRefused, match="format version 2, this row store reads 1"):
        read_header(damaged(path, tmp_path, 8, b"\2"))
    with pytest.raises(RowFileRefused, match="does not exist"):
        read_header(tmp_path / "nowhere.bin")
    with pytest.raises(StoreCorrupt, match="segment table"):
        read_header(damaged(path, tmp_path, segment_table_offset(read_header(path).n_rows)))


@pytest.mark.parametrize("length", [0, 7, 4095, 4096, -4096, -1])
def test_a_file_cut_short_is_refused(packed, tmp_path, length):
    raw = packed(0, 3)[1].read_bytes()
    copy = tmp_path / "short.bin"
    copy.write_bytes(raw[:length])
    with pytest.raises((RowFileRefused, StoreCorrupt), match="short"):
        read_header(copy)
    copy.write_bytes(raw + b"\0")
    with pytest.raises(StoreCorrupt, match="its header says"):
        read_header(copy)
