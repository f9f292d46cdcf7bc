"""RowStore: owns the files, drops the GIL, turns a status into an exception."""
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.types cimport off_t

import os

from dsv41_rowstore.errors import RowFileRefused, RowOutOfRange, RowStoreError, StoreCorrupt
from dsv41_rowstore.layout import Partition, read_header

cdef extern from "unistd.h" nogil:
    ssize_t pread(int fd, void *buffer, size_t n, off_t offset) noexcept
cdef extern from "stdlib.h" nogil:
    int posix_memalign(void **p, size_t alignment, size_t n) noexcept

cdef enum:
    ROW = 264
    WEIGHT = 256
    SCALE = 8
    PAGE = 4096

cdef enum rs_status:
    RS_OK = 0
    RS_OUT_OF_RANGE = 1
    RS_IO = 2
    RS_SHORT = 3
    RS_NO_MEMORY = 4

cdef struct rs_span:
    int64_t start
    int64_t stop
    int64_t local

cdef struct rs_layer:
    int fd
    int n_spans
    int64_t table_rows
    rs_span spans[64]

cdef struct rs_fault:
    rs_status status
    int64_t position
    int64_t row
    int64_t offset
    int error

cdef struct rs_counts:
    uint64_t lookups
    uint64_t owned
    uint64_t duplicates
    uint64_t reads
    uint64_t bytes


cdef int64_t to_local(const rs_layer *layer, int64_t row) noexcept nogil:
    cdef int i
    for i in range(layer.n_spans):
        if row < layer.spans[i].start:
            return -1
        if row < layer.spans[i].stop:
            return layer.spans[i].local + row - layer.spans[i].start
    return -1


cdef rs_status read_row(int fd, int64_t local, uint8_t *pages, rs_fault *fault, rs_counts *counts) noexcept nogil:
    """One aligned read of the one or two pages that hold the row; the file is padded, so never short."""
    cdef int64_t at = PAGE + local * ROW
    cdef int64_t low = at & ~<int64_t>(PAGE - 1)
    cdef int64_t high = (at + ROW + PAGE - 1) & ~<int64_t>(PAGE - 1)
    cdef ssize_t got
    cdef int tries = 0
    while True:
        got = pread(fd, pages, high - low, low)
        if got == high - low:
            counts.reads += 1
            counts.bytes += high - low
            return RS_OK
        if got < 0 and errno == EINTR:
            continue
        tries += 1
        if tries == 2:
            fault.offset = at
            fault.error = errno if got < 0 else 0
            return RS_IO if got < 0 else RS_SHORT


cdef rs_status gather_rows(const rs_layer *layer, const int64_t *ids, size_t n, uint8_t *weight, uint8_t *scale,
                           rs_fault *fault, rs_counts *counts) noexcept nogil:
    cdef size_t i, slot, first, size = 16
    cdef int64_t local
    cdef uint32_t *table = NULL
    cdef uint8_t *pages = NULL
    cdef uint8_t *row
    cdef rs_status status = RS_OK
    for i in range(n):
        if ids[i] < 0 or ids[i] >= layer.table_rows:
            fault.position = i
            fault.row = ids[i]
            return RS_OUT_OF_RANGE
    while size < 2 * n:
        size *= 2
    table = <uint32_t *>calloc(size, sizeof(uint32_t))
    if table == NULL or posix_memalign(<void **>&pages, PAGE, 2 * PAGE) != 0:
        free(table)
        return RS_NO_MEMORY
    counts.lookups += n
    for i in range(n):
        local = to_local(layer, ids[i])
        if local < 0:
            memset(weight + i * WEIGHT, 0, WEIGHT)
            memset(scale + i * SCALE, 0, SCALE)
            continue
        counts.owned += 1
        slot = (<uint64_t>local * <uint64_t>0x9E3779B97F4A7C15) >> 20 & (size - 1)
        while table[slot] != 0 and ids[table[slot] - 1] != ids[i]:
            slot = (slot + 1) & (size - 1)
        if table[slot] != 0:
            first = table[slot] - 1
            memcpy(weight + i * WEIGHT, weight + first * WEIGHT, WEIGHT)
            memcpy(scale + i * SCALE, scale + first * SCALE, SCALE)
            counts.duplicates += 1
            continue
        status = read_row(layer.fd, local, pages, fault, counts)
        if status != RS_OK:
            fault.position = i
            fault.row = ids[i]
            break
        table[slot] = i + 1
        row = pages + ((PAGE + local * ROW) & (PAGE - 1))
        memcpy(weight + i * WEIGHT, row, WEIGHT)
        memcpy(scale + i * SCALE, row + WEIGHT, SCALE)
    free(table)
    free(pages)
    return status


cdef class Job:
    """A submitted gather. In this version it is finished when `submit` returns."""
    cdef object _error
    cdef int _fd

    def __cinit__(self):
        self._fd = -1

    def __init__(self):
        raise TypeError("a Job is made by RowStore.submit")

    def wait(self, timeout_s=None):
        if self._error is not None:
            raise self._error

    def done(self):
        return True

    def fileno(self):
        if self._fd < 0:
            self._fd = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self._fd

    def __dealloc__(self):
        if self._fd >= 0:
            os.close(self._fd)


cdef class RowStore:
    """This rank's rows of every Engram layer, by global id."""
    cdef rs_layer *_layers
    cdef dict _index
    cdef dict _paths
    cdef rs_counts _counts
    cdef bint _open

    def __init__(self):
        raise TypeError("use RowStore.open")

    @staticmethod
    def open(paths, *, rank, world_size, partition, revision=None, cache_bytes=0, ways=16, engine="auto"):
        """Open packed files (layer → path) of one rank; refuses files of anything else, naming both values."""
        cdef RowStore self = RowStore.__new__(RowStore)
        wanted = Partition(partition)
        self._index, self._paths = {}, {}
        self._open = True
        self._layers = <rs_layer *>calloc(max(1, len(paths)), sizeof(rs_layer))
        if self._layers == NULL:
            raise MemoryError
        cdef int i = 0
        for layer, path in paths.items():
            header = read_header(path)
            for what, got, want in (
                ("layer", header.layer, layer),
                ("rank", header.rank, rank),
                ("world size", header.world_size, world_size),
                ("partition", str(header.partition), str(wanted)),
                ("revision", header.revision, header.revision if revision is None else revision),
            ):
                if got != want:
                    raise RowFileRefused(
                        f"{os.fspath(path)} is for {what} {got}, expected {what} {want}",
                        hint="Pack this rank's rows again (dsv41 pack), or correct the settings.",
                    )
            try:
                self._layers[i].fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            except OSError:
                self._layers[i].fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._layers[i].table_rows = header.table_rows
            for span in header.spans:
                self._layers[i].spans[self._layers[i].n_spans] = rs_span(span.start, span.stop, span.local)
                self._layers[i].n_spans += 1
            self._index[layer] = i
            self._paths[layer] = os.fspath(path)
            i += 1
        return self

    def gather(self, layer, ids, out_weight, out_scale):
        """Copy the rows of `ids` (int64 [n]) into out_weight [n, 256] and out_scale [n, 8], in order."""
        self.submit(layer, ids, out_weight, out_scale).wait()

    def submit(self, layer, ids, out_weight, out_scale):
        cdef Job job = Job.__new__(Job)
        cdef rs_fault fault
        cdef rs_counts counts
        cdef rs_status status
        cdef Py_buffer views[3]
        cdef int held = 0
        cdef rs_layer *where
        memset(&counts, 0, sizeof(counts))
        memset(&fault, 0, sizeof(fault))
        if not self._open:
            raise RowStoreError("the row store is closed", hint="Open it again with RowStore.open.")
        if layer not in self._index:
            raise RowStoreError(
                f"layer {layer} is not open (open layers: {sorted(self._index)})", hint="Open its packed file too."
            )
        where = &self._layers[<int>self._index[layer]]
        try:
            PyObject_GetBuffer(ids, &views[0], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
            held = 1
            PyObject_GetBuffer(out_weight, &views[1], PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
            held = 2
            PyObject_GetBuffer(out_scale, &views[2], PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
            held = 3
            n = views[0].len // 8
            if views[0].itemsize != 8 or (views[0].format or b"B") not in (b"q", b"l", b"<q", b"=q"):
                raise TypeError("ids must be int64")
            if views[1].len != n * WEIGHT or views[2].len != n * SCALE:
                raise ValueError(
                    f"for {n} ids out_weight needs {n * WEIGHT} bytes and out_scale {n * SCALE}, "
                    f"got {views[1].len} and {views[2].len}"
                )
            with nogil:
                status = gather_rows(where, <int64_t *>views[0].buf, views[0].len // 8, <uint8_t *>views[1].buf,
                                     <uint8_t *>views[2].buf, &fault, &counts)
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
        self._counts.lookups += counts.lookups
        self._counts.owned += counts.owned
        self._counts.duplicates += counts.duplicates
        self._counts.reads += counts.reads
        self._counts.bytes += counts.bytes
        if status == RS_OUT_OF_RANGE:
            raise RowOutOfRange(layer, fault.row, fault.position, where.table_rows)
        if status == RS_NO_MEMORY:
            raise MemoryError
        if status != RS_OK:
            reason = os.strerror(fault.error) if status == RS_IO else "the file ends there"
            job._error = StoreCorrupt(
                f"reading row {fault.row} of {self._paths[layer]} at byte {fault.offset} failed: {reason}",
                hint="Check the drive (dmesg, smartctl), then pack again (dsv41 pack).",
                path=self._paths[layer], row=fault.row, offset_bytes=fault.offset, errno=fault.error,
            )
        return job

    def counters(self):
        return {
            "lookups": self._counts.lookups,
            "owned_rows": self._counts.owned,
            "duplicates": self._counts.duplicates,
            "hits": 0,
            "device_reads": self._counts.reads,
            "device_bytes": self._counts.bytes,
        }

    def close(self):
        if self._open:
            self._open = False
            for i in self._index.values():
                os.close(self._layers[<int>i].fd)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __dealloc__(self):
        free(self._layers)
