"""Where jobs and their scratch memory come from. A job has two owners at most: its caller and the reader."""
from dsv41_rowstore.core cimport rs_job, rs_store

cdef rs_job *job_take(rs_store *store, size_t n_ids) noexcept nogil  # NULL: no memory. One reference, room for n_ids
cdef bint job_room(rs_job *job, size_t n_wants) noexcept nogil  # room for n_wants; False: no memory
cdef void job_release(rs_job *job) noexcept nogil
cdef void jobs_open(rs_store *store) noexcept nogil
cdef void jobs_close(rs_store *store) noexcept nogil
