"""The I/O half: one thread with a ring (or a pool of blocking threads) serving the misses of every layer's jobs."""
from libc.stdint cimport uint32_t

from dsv41_rowstore.core cimport rs_job, rs_reader
from dsv41_rowstore.ring cimport rs_engine

cdef int reader_open(rs_reader *reader, rs_engine engine, const int *fds, uint32_t n_files, uint32_t read_bytes,
                     uint32_t depth, uint32_t n_threads, bint register_all) noexcept nogil  # 0 or errno
cdef void reader_close(rs_reader *reader) noexcept nogil  # serves what is queued, then stops
cdef void reader_abandon(rs_reader *reader) noexcept nogil  # in a forked child: there is no thread to stop
cdef void reader_publish(rs_reader *reader, rs_job *job, uint32_t n_published) noexcept nogil
cdef void reader_seal(rs_reader *reader, rs_job *job) noexcept nogil
cdef void reader_cancel(rs_reader *reader, rs_job *job) noexcept nogil
