"""Asynchronous reads into one buffer pool, by io_uring or by the kernel's older AIO, behind four functions.

A ring belongs to the thread that opened it. `tag` comes back with the result; WAKE_TAG is the result of the wake
descriptor becoming readable, which `ring_read_wake` arms again.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum rs_engine:
    RS_URING = 0
    RS_AIO = 1
    RS_THREADS = 2

cdef enum:
    WAKE_TAG = 0xFFFFFFFF

cdef struct rs_result:
    uint32_t tag
    int32_t n_bytes  # or -errno

cdef struct rs_ring:
    rs_engine engine
    int fd  # of the io_uring
    int wake_fd
    bint fixed_files
    bint fixed_buffer
    const int *fds  # file index → descriptor
    uint8_t *pool
    size_t pool_bytes
    uint32_t depth
    # io_uring
    void *map_rings
    size_t map_rings_bytes
    void *map_cqes  # apart from map_rings on kernels before 5.4
    size_t map_cqes_bytes
    void *map_sqes
    size_t map_sqes_bytes
    uint32_t *sq_head
    uint32_t *sq_tail
    uint32_t sq_mask
    uint32_t *sq_array
    uint32_t *cq_head
    uint32_t *cq_tail
    uint32_t cq_mask
    void *cqes
    uint32_t pushed  # queued, not yet submitted
    # aio
    uint64_t context
    void *iocbs  # [depth + 1]; the last is the wake poll
    void **queue
    void *events

cdef int ring_open(rs_ring *ring, rs_engine engine, const int *fds, uint32_t n_files, uint8_t *pool, size_t pool_bytes,
                   uint32_t depth, int wake_fd, bint register_all) noexcept nogil  # 0 or errno
cdef void ring_close(rs_ring *ring) noexcept nogil
cdef void ring_push(rs_ring *ring, uint32_t tag, uint32_t file, uint8_t *into, uint32_t n_bytes,
                    int64_t offset) noexcept nogil
cdef int ring_wait(rs_ring *ring, uint32_t at_least, rs_result *results, uint32_t room,
                   uint32_t *n_results) noexcept nogil  # 0 or errno; also submits what was pushed
cdef void ring_read_wake(rs_ring *ring) noexcept nogil
