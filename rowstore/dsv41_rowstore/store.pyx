"""RowStore: owns the files and the engine, drops the GIL, turns a status into an exception."""
cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.unistd cimport close

import errno
import os
import time
from array import array

from dsv41_rowstore.atomics cimport rs_acquire32, rs_counted64
from dsv41_rowstore.cache cimport SCALE_BYTES, WEIGHT_BYTES, cache_close, cache_open
from dsv41_rowstore.core cimport (
    MAX_THREADS, RS_BROKEN, RS_CANCELLED, RS_CLOSED, RS_FORKED, RS_NO_MEMORY, RS_OK, RS_OUT_OF_RANGE, RS_RUNNING,
    RS_SHORT, rs_fault, rs_io_counts, rs_job, rs_layer, rs_span, rs_status, rs_store,
)
from dsv41_rowstore.gather cimport (
    gather_begin, gather_cancel, gather_drain, gather_event_fd, gather_fork_generation, gather_wait,
    gather_watch_forks, layer_spans,
)
from dsv41_rowstore.jobs cimport job_release, jobs_close, jobs_open
from dsv41_rowstore.reader cimport reader_abandon, reader_close, reader_open
from dsv41_rowstore.ring cimport RS_AIO, RS_THREADS, RS_URING, rs_engine

from dsv41_rowstore.errors import EngineFailed, RowFileRefused, RowOutOfRange, RowStoreError, StoreCorrupt
from dsv41_rowstore.layout import PAGE_BYTES, ROW_BYTES, Partition, open_rows, read_header_from
from dsv41_rowstore.packer import check_sample, verify_segments_of

cdef extern from "ring.h" nogil:
    int rs_dio_align(int fd, unsigned *memory, unsigned *offset) noexcept
    bint rs_is_fuse(int fd) noexcept

cdef dict _ENGINES = {"uring": RS_URING, "aio": RS_AIO, "threads": RS_THREADS}
cdef int64_t _ALL_TIME = -1

if gather_watch_forks() != 0:
    raise ImportError("dsv41_rowstore: pthread_atfork failed; out of memory")


cdef bint _holds_pointers(const char *form) noexcept:
    """Does a buffer's format name Python objects or pointers? Field names stand between colons."""
    cdef bint in_name = False
    if form == NULL:
        return False
    while form[0] != 0:
        if form[0] == b":":
            in_name = not in_name
        elif not in_name and form[0] in (b"O", b"P", b"&", b"X"):
            return True
        form += 1
    return False


cdef int _hold_output(object out, Py_buffer *view, str what) except -1:
    try:
        PyObject_GetBuffer(out, view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE | PyBUF_FORMAT)
    except (BufferError, ValueError):
        # NumPy has no format for some plain types (ml_dtypes' float8), but gives their bytes.
        if getattr(getattr(out, "dtype", None), "hasobject", False):
            raise
        PyObject_GetBuffer(out, view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
    if _holds_pointers(view.format):
        form = view.format.decode(errors="replace")
        PyBuffer_Release(view)
        raise TypeError(f"{what} must be bytes or numbers, got objects or pointers (format {form})")
    return 0


@cython.no_gc_clear
cdef class Buffers:
    cdef int hold(self, object ids, object out_weight, object out_scale) except -1:
        PyObject_GetBuffer(ids, &self.views[0], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
        self.held = 1
        if self.views[0].itemsize != 8 or (self.views[0].format or b"B") not in (b"q", b"l", b"<q", b"<l", b"=q"):
            raise TypeError(f"ids must be int64, got {(self.views[0].format or b'B').decode()}")
        if self.views[0].len and <size_t>self.views[0].buf % 8:
            raise ValueError("ids must lie at a multiple of 8 bytes")
        self.n_ids = self.views[0].len // 8
        if self.n_ids >> 31:
            raise ValueError(f"{self.n_ids} ids in one call, at most {(1 << 31) - 1}")
        _hold_output(out_weight, &self.views[1], "out_weight")
        self.held = 2
        _hold_output(out_scale, &self.views[2], "out_scale")
        self.held = 3
        if self.views[1].len != self.n_ids * WEIGHT_BYTES or self.views[2].len != self.n_ids * SCALE_BYTES:
            raise ValueError(
                f"for {self.n_ids} ids out_weight needs {self.n_ids * WEIGHT_BYTES} bytes and out_scale "
                f"{self.n_ids * SCALE_BYTES}, got {self.views[1].len} and {self.views[2].len}"
            )
        return 0

    cdef void drop(self) noexcept:
        cdef int i, held = self.held
        self.held = 0  # first: a release may run Python code, and another thread may come here meanwhile
        for i in range(held):
            PyBuffer_Release(&self.views[i])

    def __dealloc__(self):
        self.drop()


@cython.no_gc_clear
cdef class Job:
    """A gather in flight. It holds its three buffers until it is done; dropping it cancels it and waits.

    Threads: `wait` and `done` from any, others from one at a time. `fileno` is readable once the job is done, for
    `loop.add_reader` and `select`; do not read from it or close it.
    """

    def __init__(self):
        raise TypeError("a Job is made by RowStore.submit")

    cdef rs_job *made(self) except NULL:
        if self._job == NULL:
            raise TypeError("a Job is made by RowStore.submit")
        return self._job

    def done(self):
        return rs_acquire32(&self.made().done) != 0

    def wait(self, timeout_s=None):
        """Wait until every row is in its place.

        A signal's handler runs meanwhile and does not lengthen `timeout_s`.
        Raises: TimeoutError (the job goes on), StoreCorrupt (row, offset, errno), EngineFailed (for good),
        RowStoreError (cancelled, forked).
        """
        cdef int64_t timeout_ns = -1 if timeout_s is None or timeout_s > 9e9 else max(0, <int64_t>(timeout_s * 1e9))
        cdef int64_t until = 0
        cdef rs_status status
        cdef bint interrupted = False
        self.made()
        if timeout_ns >= 0:
            until = <int64_t>time.monotonic_ns() + timeout_ns
        while True:
            with nogil:
                status = gather_wait(self._job, timeout_ns, &interrupted)
            if status != RS_RUNNING or not interrupted:
                break
            PyErr_CheckSignals()
            if timeout_ns >= 0:
                timeout_ns = max(0, until - <int64_t>time.monotonic_ns())
        if status == RS_RUNNING:
            raise TimeoutError(f"rows of layer {self._layer} did not arrive in {timeout_s} s")
        if status != RS_FORKED:
            self._buffers.drop()
        if status != RS_OK:
            raise self._store.error(self._layer, status, &self._job.fault)

    def cancel(self):
        """Start no more reads for this job and wait for those under way; what the outputs hold then is undefined."""
        if not self.done() and gather_fork_generation() == self._store._store.fork_generation:
            with nogil:
                gather_cancel(self._job)
                gather_wait(self._job, _ALL_TIME, NULL)
        self._buffers.drop()

    def fileno(self):
        cdef int fd = self.made().event_fd
        if gather_fork_generation() != self._store._store.fork_generation:
            raise self._store.error(self._layer, RS_FORKED, NULL)  # the lock may be held by a thread of the parent
        if fd < 0:
            fd = gather_event_fd(self._job)
            if fd < 0:
                raise OSError(-fd, os.strerror(-fd))
        return fd

    def __dealloc__(self):
        cdef rs_job *job = self._job
        if job == NULL or gather_fork_generation() != job.store.fork_generation:
            return
        if rs_acquire32(&job.done) == 0:
            with nogil:
                gather_cancel(job)
                gather_wait(job, _ALL_TIME, NULL)
        job_release(job)


cdef class RowStore:
    """This rank's rows of every Engram layer, by global id: read once, exactly, and kept while there is room.

    One store per process serves all layers: they share one I/O thread, so their misses overlap. `cache_bytes` is
    the whole budget, divided among the layers by their rows; nothing is allocated beyond it but about 3 MiB.
    Threads: any number of callers at once; every read and wait drops the GIL.
    """

    def __init__(self):
        raise TypeError("use RowStore.open")

    @staticmethod
    def open(paths, *, rank, world_size, partition, revision=None, cache_bytes=0, ways=16, engine="auto", direct=None,
             read_bytes=None, queue_depth=128, threads=16, verify_segments=1, register=True):
        """Open packed files (layer → path) of one rank.

        `engine`: uring, aio, threads, or auto: the first of these that reads a row of every file correctly.
        `direct`: True O_DIRECT only, False through the page cache, None whichever works, direct first.
        `read_bytes`: size and alignment of a read; None takes the least that direct reads of these files allow. A
        read of 512 moves 2.9 bytes a byte wanted and one of 4096 16.5; measured 1.1 to 1.2x faster on a virtual
        drive whose physical block is 4096 (2026-11-29), where operations are the limit.
        `register`: False does without the kernel's registered files and buffers (about 1.2x the CPU).
        `verify_segments`: random segments of each file compared with their checksum before anything is served.
        Raises: RowFileRefused (a file of something else, both values named), StoreCorrupt, RowStoreError.
        """
        cdef RowStore self = RowStore.__new__(RowStore)
        if engine != "auto" and engine not in _ENGINES:
            raise ValueError(f"engine is {engine!r}, expected auto, {', '.join(_ENGINES)}")
        if not 1 <= ways <= 16 or cache_bytes < 0 or not 1 <= queue_depth <= 128 or not 1 <= threads <= MAX_THREADS:
            raise ValueError(
                f"ways {ways} (1 to 16), cache_bytes {cache_bytes} (0 or more), queue_depth {queue_depth} (1 to 128), "
                f"threads {threads} (1 to {MAX_THREADS})"
            )
        if not paths:
            raise ValueError("no packed files given")
        check_sample(verify_segments, "verify_segments", 0)
        wanted = Partition(partition)
        self._checked = {}
        try:
            for layer, path in paths.items():
                fd = open_rows(path)
                self._checked[layer] = fd, None
                header = read_header_from(fd, os.fspath(path))
                self._checked[layer] = fd, header
                self._refuse_another(path, header, layer, rank, world_size, wanted, revision)
                if verify_segments:
                    verify_segments_of(fd, os.fspath(path), header, sample=verify_segments)
            self._set_up(paths, {layer: header for layer, (_, header) in self._checked.items()}, cache_bytes, ways)
            self._choose(engine, direct, read_bytes, queue_depth, threads, register)
        finally:
            for fd, _ in self._checked.values():
                os.close(fd)
            self._checked = {}
        return self

    @staticmethod
    def _refuse_another(path, header, layer, rank, world_size, wanted, revision):
        for what, got, want in (
            ("layer", header.layer, layer),
            ("rank", header.rank, rank),
            ("world size", header.world_size, world_size),
            ("partition", str(header.partition), str(wanted)),
            ("revision", header.revision, header.revision if revision is None else revision),
        ):
            if got != want:
                show = repr if str(got) == str(want) else str  # 1 and '1'
                raise RowFileRefused(
                    f"{os.fspath(path)} is for {what} {show(got)}, expected {what} {show(want)}",
                    hint="Pack this rank's rows again (dsv41 pack), or correct the settings.",
                )

    def _set_up(self, paths, headers, size_t cache_bytes, uint32_t ways):
        cdef rs_layer *layer
        cdef uint32_t i = 0, n_spans
        self._index, self._paths, self._report, self._sizes = {}, {}, {}, {}
        self._store = <rs_store *>calloc(1, sizeof(rs_store))
        self._fds = <int *>calloc(len(paths), sizeof(int))
        if self._store == NULL or self._fds == NULL:
            raise MemoryError
        jobs_open(self._store)
        self._store.fork_generation = gather_fork_generation()
        self._store.layers = <rs_layer *>calloc(len(paths), sizeof(rs_layer))
        if self._store.layers == NULL:
            raise MemoryError
        all_rows = sum(header.n_rows for header in headers.values()) or 1
        for number, path in paths.items():
            header = headers[number]
            layer = &self._store.layers[i]
            layer.fd, layer.file, layer.table_rows, n_spans = -1, i, header.table_rows, 0
            for span in header.spans:
                layer.spans[n_spans] = rs_span(span.start, span.stop, span.local)
                n_spans += 1
            layer.spans[n_spans] = rs_span((1 << 63) - 1, (1 << 63) - 1, 0)
            layer_spans(layer)
            self._store.n_layers = i + 1
            if cache_open(&layer.cache, cache_bytes * header.n_rows // all_rows, ways) != 0:
                raise MemoryError(f"no memory for a row cache of {cache_bytes} bytes; lower pack.cache_bytes")
            self._index[number], self._paths[number], self._sizes[number] = i, os.fspath(path), header.file_bytes
            i += 1

    def _choose(self, engine, direct, read_bytes, queue_depth, threads, register):
        """Start the first engine that reads the first and last row of every file as a plain read does."""
        engines = list(_ENGINES) if engine == "auto" else [engine]
        modes = [True, False] if direct is None else [bool(direct)]
        tried = []
        for mode in modes:
            why = self._open_files(mode)
            if why:
                tried.append(f"{'direct' if mode else 'buffered'}: {why}")
                continue
            size = self._read_size(mode, read_bytes)
            for name in engines:
                if name == "uring" and engine == "auto" and any(rs_is_fuse(fd) for fd in self._fds[:self._store.n_layers]):
                    tried.append("uring: not on FUSE, where a short read may be continued at the wrong place")
                    continue
                if name == "aio" and not mode:
                    tried.append("aio buffered: the kernel would make every submission wait")
                    continue
                why = self._start(name, size, queue_depth, threads, register)
                tried.append(f"{name} {'direct' if mode else 'buffered'}: {why or 'ok'}")
                if not why:
                    self._is_open = True
                    self._report = {
                        "engine": name,
                        "direct": mode,
                        "read_bytes": size,
                        "queue_depth": self._store.reader.n_slots,
                        "registered_files": bool(self._store.reader.fixed_files),
                        "registered_buffers": bool(self._store.reader.fixed_buffer),
                        "cache_bytes": sum(self._store.layers[i].cache.block_bytes for i in range(self._store.n_layers)),
                        "tried": tried,
                    }
                    return
        raise RowStoreError(
            f"no engine can read {', '.join(self._paths.values())} ({'; '.join(tried)})",
            hint="Check that the file system is local, and that seccomp allows preadv.",
        )

    def _open_files(self, direct):
        cdef uint32_t i
        self._close_files()
        for number, path in self._paths.items():
            i = self._index[number]
            try:
                self._fds[i] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))
            except OSError as error:
                return error.strerror
            self._store.layers[i].fd = self._fds[i]
            self._refuse_replaced(number, path, self._fds[i])
            if not direct:
                os.posix_fadvise(self._fds[i], 0, 0, os.POSIX_FADV_RANDOM)  # no readahead around a row
        return None

    def _refuse_replaced(self, number, path, fd):
        """The descriptor that was checked is still open, so its inode number cannot have been given away."""
        checked, _ = self._checked[number]
        was, now = os.fstat(checked), os.fstat(fd)
        if (was.st_dev, was.st_ino, was.st_size) != (now.st_dev, now.st_ino, now.st_size):
            raise RowFileRefused(
                f"{path} was replaced while it was being opened", hint="Open it again; a pack of it finished just now."
            )

    cdef void _close_files(self) noexcept:
        cdef uint32_t i
        for i in range(self._store.n_layers):
            if self._store.layers[i].fd >= 0:
                close(self._store.layers[i].fd)
            self._store.layers[i].fd = -1

    def _read_size(self, direct, asked):
        cdef unsigned memory = 0, offset = 0
        needed = 512
        if direct:
            for i in range(self._store.n_layers):
                if rs_dio_align(self._fds[i], &memory, &offset) != 0 or offset == 0:
                    offset = _logical_block(self._fds[i])  # before Linux 6.1, or a file system that does not say
                needed = max(needed, memory, offset)
        if asked is None:
            return needed if direct else PAGE_BYTES
        if asked & (asked - 1) or not needed <= asked <= 65536:
            raise ValueError(f"read_bytes is {asked}, expected a power of two from {needed} to 65536")
        return asked

    def _start(self, name, uint32_t size, uint32_t depth, uint32_t threads, bint register):
        """None, or why this engine does not work here."""
        cdef rs_engine engine = _ENGINES[name]
        cdef int problem
        with nogil:
            problem = reader_open(&self._store.reader, engine, self._fds, self._store.n_layers, size, depth, threads,
                                  register)
        if problem != 0:
            return os.strerror(problem)
        self._is_open = True
        try:
            for number, i in self._index.items():
                self._compare_ends(number, self._paths[number])
        except (StoreCorrupt, EngineFailed) as error:
            refused = error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)
            if isinstance(error, StoreCorrupt) and not refused:
                raise
            with nogil:
                reader_close(&self._store.reader)
            self._is_open = False
            return os.strerror(error.errno)
        memset(&self._store.counts, 0, sizeof(self._store.counts))
        memset(&self._store.reader.counts, 0, sizeof(rs_io_counts))
        return None

    def _compare_ends(self, number, path):
        checked, header = self._checked[number]
        if not header.n_rows:
            return
        ids = [header.spans[0].start, header.spans[-1].stop - 1]
        weight, scale = bytearray(2 * WEIGHT_BYTES), bytearray(2 * SCALE_BYTES)
        self.gather(number, array("q", ids), weight, scale)
        for i, local in enumerate((0, header.n_rows - 1)):
            row = os.pread(checked, ROW_BYTES, PAGE_BYTES + local * ROW_BYTES)
            if row != weight[i * WEIGHT_BYTES:(i + 1) * WEIGHT_BYTES] + scale[i * SCALE_BYTES:(i + 1) * SCALE_BYTES]:
                raise RowStoreError(
                    f"row {local} of {path} differs between a plain read and this engine's",
                    hint="This is a bug in the kernel, the file system or the row store; set pack.engine to threads.",
                )

    @property
    def report(self):
        """What was chosen at open: engine, direct, read_bytes, queue_depth, registered_*, cache_bytes, tried."""
        if self._store == NULL:
            raise TypeError("use RowStore.open")
        return dict(self._report)

    cdef rs_layer *layer_of(self, object layer) except NULL:
        if not self._is_open:
            raise RowStoreError("the row store is closed", hint="Open it again with RowStore.open.")
        index = self._index.get(layer)
        if index is None:
            raise RowStoreError(
                f"layer {layer!r} is not open (open layers: {sorted(self._index)})", hint="Open its packed file too."
            )
        return &self._store.layers[<uint32_t>index]

    cdef object error(self, object layer, rs_status status, const rs_fault *fault):
        if status == RS_OUT_OF_RANGE:
            n_rows = self._store.layers[<uint32_t>self._index[layer]].table_rows
            return RowOutOfRange(layer, fault.row, fault.position, n_rows)
        if status == RS_NO_MEMORY:
            return MemoryError("no memory for a row store job")
        if status == RS_CLOSED:
            return RowStoreError("the row store is closed", hint="Open it again with RowStore.open.")
        if status == RS_FORKED:
            return RowStoreError(
                "the row store was opened before a fork, its I/O thread is the parent's",
                hint="Open it in the process that uses it, after the fork.",
            )
        if status == RS_CANCELLED:
            return RowStoreError(f"the rows of layer {layer} were cancelled", hint="Submit them again.")
        if status == RS_BROKEN:
            return EngineFailed(
                f"the row store's I/O thread stopped: {os.strerror(fault.error)}",
                hint="Restart this rank; if it happens again, set pack.engine to threads.", errno=fault.error,
            )
        path = self._paths[layer]
        why = "the file ends there" if status == RS_SHORT else os.strerror(fault.error)
        return StoreCorrupt(
            f"reading row {fault.row} of {path} at byte {fault.offset_bytes} failed: {why}{self._changed(layer)}",
            hint="Check the drive (dmesg, smartctl), then pack again (dsv41 pack).",
            path=path, row=fault.row, offset_bytes=fault.offset_bytes, errno=fault.error or None,
        )

    def _changed(self, layer):
        """After a failed read: did somebody cut or exchange the file?"""
        try:
            ours = os.fstat(self._fds[<uint32_t>self._index[layer]])
            there = os.stat(self._paths[layer])
        except OSError as error:
            return f" (and {error.strerror.lower()} on looking at it again)"
        if not os.path.samestat(ours, there):
            return " (another file has taken its name since it was opened)"
        if ours.st_size != self._sizes[layer]:
            return f" (it is {ours.st_size} bytes long, it was {self._sizes[layer]} when it was opened)"
        return ""

    def submit(self, layer, ids, out_weight, out_scale):
        """Start copying rows by id into the outputs, in order; repeated ids are read once.

        Shapes: ids [n] int64, global ids of that layer's table; out_weight [n, 256], out_scale [n, 8] bytes. Any
        writable C-contiguous buffers; they may not change or be looked at until the job is done.
        Rows of other ranks are zeros. Returns a Job; hits are in place already, misses arrive while it runs.
        Raises: RowOutOfRange before anything is read or written; RowStoreError.
        """
        cdef rs_layer *where = self.layer_of(layer)
        cdef Buffers buffers = Buffers.__new__(Buffers)
        cdef Job job
        cdef rs_job *started = NULL
        cdef rs_fault fault
        cdef rs_status status
        buffers.hold(ids, out_weight, out_scale)
        with nogil:
            status = gather_begin(self._store, where, <int64_t *>buffers.views[0].buf, buffers.n_ids,
                                  <uint8_t *>buffers.views[1].buf, <uint8_t *>buffers.views[2].buf, &started, &fault)
        if status != RS_OK:
            raise self.error(layer, status, &fault)
        job = Job.__new__(Job)
        job._store, job._buffers, job._layer, job._job = self, buffers, layer, started
        return job

    def gather(self, layer, ids, out_weight, out_scale):
        """submit and wait in one."""
        cdef Job job = self.submit(layer, ids, out_weight, out_scale)
        try:
            job.wait()
        except BaseException:
            job.cancel()
            raise

    def counters(self):
        """What happened since open, as plain numbers; rows are counted once per call, reads once per device read.

        lookups = ids asked; owned_rows of them this rank's; duplicates the repeated ones; hits and misses the
        distinct rest; merged misses joined a read under way; late_hits found in the cache after all; call_waits and
        call_wait_ns the host calls whose rows were not there yet, and how long their streams stood still.
        """
        cdef rs_io_counts *io
        cdef rs_store *store = self._store
        if store == NULL:
            raise TypeError("use RowStore.open")
        io = &store.reader.counts
        return {
            "jobs": rs_counted64(&store.counts.jobs),
            "lookups": rs_counted64(&store.counts.lookups),
            "owned_rows": rs_counted64(&store.counts.owned_rows),
            "duplicates": rs_counted64(&store.counts.duplicates),
            "hits": rs_counted64(&store.counts.hits),
            "misses": rs_counted64(&store.counts.misses),
            "merged": rs_counted64(&io.merged),
            "late_hits": rs_counted64(&io.late_hits),
            "device_reads": rs_counted64(&io.device_reads),
            "device_bytes": rs_counted64(&io.device_bytes),
            "inserted": rs_counted64(&io.inserted),
            "evicted": rs_counted64(&io.evicted),
            "retries": rs_counted64(&io.retries),
            "failed_reads": rs_counted64(&io.failed_reads),
            "call_waits": rs_counted64(&store.counts.call_waits),
            "call_wait_ns": rs_counted64(&store.counts.call_wait_ns),
        }

    def close(self):
        """Refuse new work, serve what is under way, stop the I/O thread. A second close does nothing."""
        if self._is_open:
            self._is_open = False
            _stop(self._store)
            self._close_files()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __dealloc__(self):
        cdef uint32_t i
        if self._store == NULL:
            free(self._fds)
            return
        if self._is_open:
            _stop(self._store)
        self._close_files()
        if gather_fork_generation() == self._store.fork_generation:
            for i in range(self._store.n_layers):
                cache_close(&self._store.layers[i].cache)
            jobs_close(self._store)
        free(self._store.layers)
        free(self._store)
        free(self._fds)


cdef void _stop(rs_store *store) noexcept:
    if gather_fork_generation() != store.fork_generation:
        reader_abandon(&store.reader)  # the thread, the pool and the cache are the parent's
        return
    with nogil:
        gather_drain(store)
        reader_close(&store.reader)


def _logical_block(fd):
    """Of the drive behind a file, from sysfs; a page when it is not a plain block device."""
    device = os.fstat(fd).st_dev
    base = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for place in (f"{base}/queue", f"{base}/../queue"):
        try:
            with open(f"{place}/logical_block_size") as file:
                return min(int(file.read()), 65536)
        except (OSError, ValueError):
            continue
    return PAGE_BYTES
