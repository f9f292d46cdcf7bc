from cpython.buffer cimport Py_buffer

from dsv41_rowstore.core cimport rs_fault, rs_job, rs_layer, rs_status, rs_store


cdef class RowStore:
    cdef rs_store *_store
    cdef int *_fds
    cdef dict _index
    cdef dict _paths
    cdef dict _sizes
    cdef dict _checked  # layer -> (descriptor, header) of what was checked; while opening only
    cdef dict _report
    cdef bint _is_open
    cdef rs_layer *layer_of(self, object layer) except NULL
    cdef void _close_files(self) noexcept
    cdef object error(self, object layer, rs_status status, const rs_fault *fault)

cdef class Buffers:
    """The three buffers of a gather, held while the reader may touch them."""
    cdef Py_buffer views[3]
    cdef int held
    cdef size_t n_ids
    cdef int hold(self, object ids, object out_weight, object out_scale) except -1
    cdef void drop(self) noexcept

cdef class Job:
    cdef RowStore _store
    cdef Buffers _buffers
    cdef rs_job *_job
    cdef object _layer
    cdef rs_job *made(self) except NULL
