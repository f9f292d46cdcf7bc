"""A gather as plain C functions, for a stream that can call `void fn(void *)` (cudaLaunchHostFunc) and nothing else.

The functions run on the driver's thread: no Python, no GIL, no CUDA. They cannot raise either, so an error is kept
in the call ("sticky") until `take` collects it, and the outputs are filled with FP8 NaN: a step that nobody checked
shows it at once, where zeros or stale rows would look like an answer.
"""
cimport cython
from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from dsv41_rowstore.atomics cimport rs_acquire32, rs_cas32, rs_count64, rs_counted64, rs_release32
from dsv41_rowstore.cache cimport SCALE_BYTES, WEIGHT_BYTES
from dsv41_rowstore.core cimport RS_OK, rs_fault, rs_job, rs_layer, rs_status, rs_store
from dsv41_rowstore.gather cimport gather_begin, gather_fork_generation, gather_wait
from dsv41_rowstore.jobs cimport job_release
from dsv41_rowstore.store cimport Buffers, RowStore

cdef enum:
    FP8_NAN = 0x7F

cdef struct rs_call:
    rs_store *store
    rs_layer *layer
    const int64_t *ids
    size_t n_ids
    uint8_t *weight
    uint8_t *scale
    rs_job *job  # between submit and wait; these run in stream order, never at once
    uint32_t status  # the first error, kept
    uint32_t claimed  # who writes fault
    rs_fault fault
    uint64_t n_calls

cdef const char *FUNCTION = "void (*)(void *)"


cdef uint64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000000 + <uint64_t>t.tv_nsec


cdef void fail(rs_call *call, rs_status status, const rs_fault *fault) noexcept nogil:
    memset(call.weight, FP8_NAN, call.n_ids * WEIGHT_BYTES)
    memset(call.scale, FP8_NAN, call.n_ids * SCALE_BYTES)
    if rs_cas32(&call.claimed, 0, 1):
        call.fault = fault[0]
        rs_release32(&call.status, status)


cdef void call_wait(void *argument) noexcept nogil:
    cdef rs_call *call = <rs_call *>argument
    cdef rs_job *job = call.job
    cdef rs_status status
    cdef uint64_t before
    if job == NULL:
        return
    if rs_acquire32(&job.done) != 0:
        status = gather_wait(job, -1, NULL)
    else:
        before = now_ns()
        status = gather_wait(job, -1, NULL)
        rs_count64(&call.store.counts.call_waits, 1)
        rs_count64(&call.store.counts.call_wait_ns, now_ns() - before)
    if status != RS_OK:
        fail(call, status, &job.fault)
    call.job = NULL
    job_release(job)


cdef void call_submit(void *argument) noexcept nogil:
    cdef rs_call *call = <rs_call *>argument
    cdef rs_fault fault
    cdef rs_status status
    call_wait(argument)  # a submit without its wait: the outputs are ours to reuse only now
    rs_count64(&call.n_calls, 1)
    status = gather_begin(call.store, call.layer, call.ids, call.n_ids, call.weight, call.scale, &call.job, &fault)
    if status != RS_OK:
        fail(call, status, &fault)


cdef void call_gather(void *argument) noexcept nogil:
    call_submit(argument)
    call_wait(argument)


@cython.no_gc_clear
cdef class HostCall:
    """One gather with fixed buffers, to be launched any number of times; ids are read when it runs.

    `submit`, `wait` and `gather` are PyCapsules named "void (*)(void *)"; `argument` is the address to pass. Launch
    submit where the ids are known and wait where the rows are needed, on streams ordered after one another.
    Keep the HostCall until the stream has run its last launch. `check` raises what went wrong since it was made.
    """
    cdef RowStore _store
    cdef Buffers _buffers
    cdef object _layer
    cdef rs_call *_call

    def __init__(self, RowStore store not None, layer, ids, out_weight, out_scale):
        cdef rs_layer *where = store.layer_of(layer)
        cdef Buffers buffers = Buffers.__new__(Buffers)
        cdef rs_call *call
        if self._call != NULL:
            raise TypeError("a HostCall keeps the buffers it was made with; make another one")
        buffers.hold(ids, out_weight, out_scale)
        call = <rs_call *>calloc(1, sizeof(rs_call))
        if call == NULL:
            raise MemoryError
        call.store, call.layer = store._store, where
        self._store, self._layer, self._buffers, self._call = store, layer, buffers, call  # whole, or not at all
        self._call.ids, self._call.n_ids = <int64_t *>self._buffers.views[0].buf, self._buffers.n_ids
        self._call.weight = <uint8_t *>self._buffers.views[1].buf
        self._call.scale = <uint8_t *>self._buffers.views[2].buf

    cdef rs_call *made(self) except NULL:
        if self._call == NULL:
            raise TypeError("this HostCall has no rows: its __init__ did not run to its end")
        return self._call

    @property
    def submit(self):
        return PyCapsule_New(<void *>call_submit, FUNCTION, NULL)

    @property
    def wait(self):
        return PyCapsule_New(<void *>call_wait, FUNCTION, NULL)

    @property
    def gather(self):
        return PyCapsule_New(<void *>call_gather, FUNCTION, NULL)

    @property
    def argument(self):
        return <size_t>self.made()

    @property
    def n_calls(self):
        return rs_counted64(&self.made().n_calls)

    def check(self):
        """Raise the first error of any launch so far; the outputs of that launch hold NaN. Sticky: raises again."""
        cdef uint32_t status = rs_acquire32(&self.made().status)
        if status != RS_OK:
            raise self._store.error(self._layer, <rs_status>status, &self._call.fault)

    def take(self):
        """The first error since the last `take`, or None; after it the next launch that fails is noted again."""
        cdef uint32_t status = rs_acquire32(&self.made().status)
        if status == RS_OK:
            return None
        error = self._store.error(self._layer, <rs_status>status, &self._call.fault)
        rs_release32(&self._call.status, RS_OK)
        rs_release32(&self._call.claimed, 0)  # last: the fault is ours until here
        return error

    def __dealloc__(self):
        if self._call == NULL:
            return
        if gather_fork_generation() == self._call.store.fork_generation:
            with nogil:
                call_wait(self._call)
        free(self._call)
