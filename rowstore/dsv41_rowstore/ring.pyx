"""Asynchronous reads by raw system calls. See ring.pxd for what a ring promises."""
from libc.errno cimport EAGAIN, EBUSY, EINTR, EINVAL, ENOMEM, ENOSYS, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.unistd cimport close, read

from dsv41_rowstore.atomics cimport rs_acquire32, rs_release32

cdef extern from "ring.h" nogil:
    enum:
        RS_SETUP_SINGLE_ISSUER
        RS_SETUP_DEFER_TASKRUN
        RS_FEAT_SINGLE_MMAP
        RS_FEAT_NODROP
        RS_IOCB_CMD_POLL
        IORING_OFF_SQ_RING
        IORING_OFF_CQ_RING
        IORING_OFF_SQES
        IORING_ENTER_GETEVENTS
        IORING_OP_READ
        IORING_OP_READ_FIXED
        IORING_OP_POLL_ADD
        IORING_REGISTER_BUFFERS
        IORING_REGISTER_FILES
        IOSQE_FIXED_FILE
        IOCB_CMD_PREAD
        POLLIN
    cdef struct io_sqring_offsets:
        uint32_t head, tail, ring_mask, array
    cdef struct io_cqring_offsets:
        uint32_t head, tail, ring_mask, cqes
    cdef struct io_uring_params:
        uint32_t sq_entries, cq_entries, flags, features
        io_sqring_offsets sq_off
        io_cqring_offsets cq_off
    cdef struct io_uring_sqe:
        uint8_t opcode, flags
        int32_t fd
        uint64_t off, addr, user_data
        uint32_t len, poll32_events
    cdef struct io_uring_cqe:
        uint64_t user_data
        int32_t res
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    ctypedef unsigned long aio_context_t
    cdef struct iocb:
        uint64_t aio_data, aio_buf, aio_nbytes
        int64_t aio_offset
        uint32_t aio_fildes
        unsigned short aio_lio_opcode
    cdef struct io_event:
        uint64_t data
        int64_t res
    int rs_uring_setup(unsigned entries, io_uring_params *p) noexcept
    int rs_uring_enter(int fd, unsigned submit, unsigned wait, unsigned flags) noexcept
    int rs_uring_register(int fd, unsigned op, void *arg, unsigned n) noexcept
    int rs_aio_setup(unsigned n, aio_context_t *ctx) noexcept
    int rs_aio_destroy(aio_context_t ctx) noexcept
    int rs_aio_submit(aio_context_t ctx, long n, iocb **iocbs) noexcept
    int rs_aio_getevents(aio_context_t ctx, long low, long high, io_event *events) noexcept

cdef extern from "sys/mman.h" nogil:
    enum:
        MAP_POPULATE
        MAP_SHARED
        PROT_READ
        PROT_WRITE
    void *MAP_FAILED
    void *mmap(void *at, size_t n, int prot, int flags, int fd, long offset) noexcept
    int munmap(void *at, size_t n) noexcept


# ---- io_uring ---------------------------------------------------------------------------------------------


cdef int uring_open(rs_ring *ring, uint32_t n_files, bint register_all) noexcept nogil:
    cdef io_uring_params p
    cdef iovec pool
    cdef uint8_t *sq
    cdef uint8_t *cq
    memset(&p, 0, sizeof(p))
    # One thread submits and reaps: the kernel may leave completions to that thread's own next call (Linux 6.1).
    p.flags = RS_SETUP_SINGLE_ISSUER | RS_SETUP_DEFER_TASKRUN
    ring.fd = rs_uring_setup(ring.depth + 1, &p)
    if ring.fd < 0 and errno == EINVAL:
        memset(&p, 0, sizeof(p))
        ring.fd = rs_uring_setup(ring.depth + 1, &p)
    if ring.fd < 0:
        return errno
    if not (p.features & RS_FEAT_NODROP):  # before 5.5 a full completion queue loses results: not for us
        return ENOSYS
    ring.map_rings_bytes = p.sq_off.array + p.sq_entries * sizeof(uint32_t)
    ring.map_cqes_bytes = p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe)
    if p.features & RS_FEAT_SINGLE_MMAP and ring.map_cqes_bytes > ring.map_rings_bytes:
        ring.map_rings_bytes = ring.map_cqes_bytes
    ring.map_rings = mmap(NULL, ring.map_rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd,
                          IORING_OFF_SQ_RING)
    if ring.map_rings == MAP_FAILED:
        ring.map_rings = NULL
        return errno
    sq = cq = <uint8_t *>ring.map_rings
    if not (p.features & RS_FEAT_SINGLE_MMAP):
        ring.map_cqes = mmap(NULL, ring.map_cqes_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd,
                             IORING_OFF_CQ_RING)
        if ring.map_cqes == MAP_FAILED:
            ring.map_cqes = NULL
            return errno
        cq = <uint8_t *>ring.map_cqes
    ring.map_sqes_bytes = p.sq_entries * sizeof(io_uring_sqe)
    ring.map_sqes = mmap(NULL, ring.map_sqes_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd,
                         IORING_OFF_SQES)
    if ring.map_sqes == MAP_FAILED:
        ring.map_sqes = NULL
        return errno
    ring.sq_head = <uint32_t *>(sq + p.sq_off.head)
    ring.sq_tail = <uint32_t *>(sq + p.sq_off.tail)
    ring.sq_mask = (<uint32_t *>(sq + p.sq_off.ring_mask))[0]
    ring.sq_array = <uint32_t *>(sq + p.sq_off.array)
    ring.cq_head = <uint32_t *>(cq + p.cq_off.head)
    ring.cq_tail = <uint32_t *>(cq + p.cq_off.tail)
    ring.cq_mask = (<uint32_t *>(cq + p.cq_off.ring_mask))[0]
    ring.cqes = cq + p.cq_off.cqes
    # Both registrations only save time. A small RLIMIT_MEMLOCK refuses the buffer: it then costs about 1.2x CPU.
    if not register_all:
        return 0
    ring.fixed_files = rs_uring_register(ring.fd, IORING_REGISTER_FILES, <void *>ring.fds, n_files) == 0
    pool.iov_base, pool.iov_len = ring.pool, ring.pool_bytes
    ring.fixed_buffer = rs_uring_register(ring.fd, IORING_REGISTER_BUFFERS, &pool, 1) == 0
    return 0


cdef io_uring_sqe *uring_slot(rs_ring *ring) noexcept nogil:
    """The next submission entry. There is always room: at most `depth` reads and one wake are out."""
    cdef uint32_t at = ring.sq_tail[0] & ring.sq_mask
    cdef io_uring_sqe *sqe = &(<io_uring_sqe *>ring.map_sqes)[at]
    memset(sqe, 0, sizeof(io_uring_sqe))
    ring.sq_array[at] = at
    return sqe


cdef void uring_commit(rs_ring *ring) noexcept nogil:
    rs_release32(ring.sq_tail, ring.sq_tail[0] + 1)
    ring.pushed += 1


cdef uint32_t uring_reap(rs_ring *ring, rs_result *results, uint32_t room) noexcept nogil:
    cdef uint32_t head = ring.cq_head[0]
    cdef uint32_t tail = rs_acquire32(ring.cq_tail)
    cdef uint32_t n = 0
    cdef io_uring_cqe *cqe
    while head != tail and n < room:
        cqe = &(<io_uring_cqe *>ring.cqes)[head & ring.cq_mask]
        results[n].tag, results[n].n_bytes = <uint32_t>cqe.user_data, cqe.res
        head += 1
        n += 1
    rs_release32(ring.cq_head, head)
    return n


cdef int uring_wait(rs_ring *ring, uint32_t at_least, rs_result *results, uint32_t room,
                    uint32_t *n_results) noexcept nogil:
    cdef int submitted
    submitted = rs_uring_enter(ring.fd, ring.pushed, at_least, IORING_ENTER_GETEVENTS)
    if submitted >= 0:
        ring.pushed -= submitted
    elif errno not in (EINTR, EAGAIN, EBUSY):  # EAGAIN, EBUSY: reap first, then submit the rest
        return errno
    n_results[0] = uring_reap(ring, results, room)
    return 0


# ---- aio --------------------------------------------------------------------------------------------------


cdef int aio_open(rs_ring *ring) noexcept nogil:
    cdef aio_context_t context = 0
    ring.iocbs = calloc(ring.depth + 1, sizeof(iocb))
    ring.queue = <void **>calloc(ring.depth + 1, sizeof(void *))
    ring.events = calloc(ring.depth + 1, sizeof(io_event))
    if ring.iocbs == NULL or ring.queue == NULL or ring.events == NULL:
        return ENOMEM
    if rs_aio_setup(ring.depth + 1, &context) != 0:
        return errno
    ring.context = context
    return 0


cdef int aio_wait(rs_ring *ring, uint32_t at_least, rs_result *results, uint32_t room,
                  uint32_t *n_results) noexcept nogil:
    cdef io_event *events = <io_event *>ring.events
    cdef uint32_t i, done = 0
    cdef int n
    while done < ring.pushed:
        n = rs_aio_submit(ring.context, ring.pushed - done, <iocb **>ring.queue + done)
        if n <= 0:
            if n < 0 and errno != EAGAIN:
                return errno
            break  # the device queue is full: reap first
        done += n
    for i in range(ring.pushed - done):
        ring.queue[i] = ring.queue[done + i]
    ring.pushed -= done
    if ring.pushed != 0:
        at_least = 0  # a refusal for want of memory may leave nothing under way to sleep on
    n = rs_aio_getevents(ring.context, at_least, min(room, ring.depth + 1), events)
    n_results[0] = 0
    if n < 0:
        return 0 if errno == EINTR else errno
    for i in range(<uint32_t>n):
        results[i].tag, results[i].n_bytes = <uint32_t>events[i].data, <int32_t>events[i].res
    n_results[0] = n
    return 0


# ---- either -----------------------------------------------------------------------------------------------


cdef void arm_wake(rs_ring *ring) noexcept nogil:
    cdef io_uring_sqe *sqe
    cdef iocb *poll
    if ring.engine == RS_URING:
        sqe = uring_slot(ring)
        sqe.opcode, sqe.fd, sqe.poll32_events, sqe.user_data = IORING_OP_POLL_ADD, ring.wake_fd, POLLIN, WAKE_TAG
        uring_commit(ring)
    else:
        poll = &(<iocb *>ring.iocbs)[ring.depth]
        memset(poll, 0, sizeof(iocb))
        poll.aio_lio_opcode, poll.aio_fildes, poll.aio_buf, poll.aio_data = (
            RS_IOCB_CMD_POLL, ring.wake_fd, POLLIN, WAKE_TAG
        )
        ring.queue[ring.pushed] = poll
        ring.pushed += 1


cdef int ring_open(rs_ring *ring, rs_engine engine, const int *fds, uint32_t n_files, uint8_t *pool, size_t pool_bytes,
                   uint32_t depth, int wake_fd, bint register_all) noexcept nogil:
    cdef int problem
    cdef uint32_t none = 0
    cdef rs_result result
    memset(ring, 0, sizeof(rs_ring))
    ring.engine, ring.fds, ring.pool, ring.pool_bytes = engine, fds, pool, pool_bytes
    ring.depth, ring.wake_fd, ring.fd = depth, wake_fd, -1
    problem = uring_open(ring, n_files, register_all) if engine == RS_URING else aio_open(ring)
    if problem == 0:
        arm_wake(ring)
        # Submitting shows whether the kernel can poll this way (AIO: Linux 4.18).
        problem = ring_wait(ring, 0, &result, 0, &none)
    if problem != 0:
        ring_close(ring)
    return problem


cdef void ring_close(rs_ring *ring) noexcept nogil:
    if ring.map_sqes != NULL:
        munmap(ring.map_sqes, ring.map_sqes_bytes)
    if ring.map_cqes != NULL:
        munmap(ring.map_cqes, ring.map_cqes_bytes)
    if ring.map_rings != NULL:
        munmap(ring.map_rings, ring.map_rings_bytes)
    if ring.fd >= 0:
        close(ring.fd)
    if ring.context != 0:
        rs_aio_destroy(ring.context)
    free(ring.iocbs)
    free(ring.queue)
    free(ring.events)
    memset(ring, 0, sizeof(rs_ring))
    ring.fd = -1


cdef void ring_push(rs_ring *ring, uint32_t tag, uint32_t file, uint8_t *into, uint32_t n_bytes,
                    int64_t offset) noexcept nogil:
    cdef io_uring_sqe *sqe
    cdef iocb *cb
    if ring.engine == RS_URING:
        sqe = uring_slot(ring)
        sqe.opcode = IORING_OP_READ_FIXED if ring.fixed_buffer else IORING_OP_READ
        sqe.flags = IOSQE_FIXED_FILE if ring.fixed_files else 0
        sqe.fd = <int32_t>file if ring.fixed_files else ring.fds[file]
        sqe.addr, sqe.len, sqe.off, sqe.user_data = <uint64_t><size_t>into, n_bytes, <uint64_t>offset, tag
        uring_commit(ring)
    else:
        cb = &(<iocb *>ring.iocbs)[tag]
        memset(cb, 0, sizeof(iocb))
        cb.aio_lio_opcode, cb.aio_fildes, cb.aio_data = IOCB_CMD_PREAD, ring.fds[file], tag
        cb.aio_buf, cb.aio_nbytes, cb.aio_offset = <uint64_t><size_t>into, n_bytes, offset
        ring.queue[ring.pushed] = cb
        ring.pushed += 1


cdef int ring_wait(rs_ring *ring, uint32_t at_least, rs_result *results, uint32_t room,
                   uint32_t *n_results) noexcept nogil:
    if ring.engine == RS_URING:
        return uring_wait(ring, at_least, results, room, n_results)
    return aio_wait(ring, at_least, results, room, n_results)


cdef void ring_read_wake(rs_ring *ring) noexcept nogil:
    cdef uint64_t count
    read(ring.wake_fd, &count, sizeof(count))
    arm_wake(ring)
