"""The caller's half: translate ids, join equal ones, copy what the cache has, hand the rest to the reader."""
from libc.stdint cimport int64_t, uint8_t

from dsv41_rowstore.core cimport rs_fault, rs_job, rs_layer, rs_status, rs_store

cdef void layer_spans(rs_layer *layer) noexcept nogil  # after table_rows and spans are filled in
cdef rs_status gather_begin(rs_store *store, rs_layer *layer, const int64_t *ids, size_t n_ids, uint8_t *weight,
                            uint8_t *scale, rs_job **job, rs_fault *fault) noexcept nogil
cdef rs_status gather_wait(rs_job *job, int64_t timeout_ns, bint *interrupted) noexcept nogil
cdef void gather_cancel(rs_job *job) noexcept nogil
cdef int gather_event_fd(rs_job *job) noexcept nogil  # a descriptor that becomes readable, or -errno
cdef void gather_drain(rs_store *store) noexcept nogil  # refuse new callers, wait for those inside
cdef unsigned int gather_fork_generation() noexcept nogil
cdef int gather_watch_forks() noexcept nogil
