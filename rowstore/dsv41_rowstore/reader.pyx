"""Taking misses from jobs, reading them, delivering rows. See core.pxd for the life of a job.

One lock guards the job lists, the slots and every cache insert; it is held for a row copy at most, never for a read.
"""
from libc.errno cimport EAGAIN, EINTR, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.unistd cimport close, write

from dsv41_rowstore.atomics cimport rs_acquire32, rs_add32, rs_futex_wait, rs_futex_wake, rs_release32
from dsv41_rowstore.cache cimport (
    NO_WAY, ROW_BYTES, SCALE_BYTES, WEIGHT_BYTES, cache_find, cache_insert, cache_row, cache_set,
)
from dsv41_rowstore.core cimport (
    HEADER_BYTES, LIST_END, MAX_THREADS, MERGE_BUCKETS, NO_SLOT, RS_BROKEN, RS_IO, RS_OK, RS_SHORT, pthread_cond_t,
    pthread_mutex_t, pthread_t, rs_job, rs_layer, rs_miss, rs_reader, rs_slot,
)
from dsv41_rowstore.jobs cimport job_release
from dsv41_rowstore.ring cimport (
    RS_THREADS, WAKE_TAG, ring_close, ring_open, ring_push, ring_read_wake, ring_wait, rs_engine, rs_result, rs_ring,
)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_attr_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *lock, void *attributes) noexcept
    int pthread_mutex_lock(pthread_mutex_t *lock) noexcept
    int pthread_mutex_unlock(pthread_mutex_t *lock) noexcept
    int pthread_cond_init(pthread_cond_t *cond, void *attributes) noexcept
    int pthread_cond_destroy(pthread_cond_t *cond) noexcept
    int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock) noexcept
    int pthread_cond_signal(pthread_cond_t *cond) noexcept
    int pthread_cond_broadcast(pthread_cond_t *cond) noexcept
    int pthread_attr_init(pthread_attr_t *attributes) noexcept
    int pthread_attr_setstacksize(pthread_attr_t *attributes, size_t n) noexcept
    int pthread_attr_destroy(pthread_attr_t *attributes) noexcept
    int pthread_create(pthread_t *thread, pthread_attr_t *attributes, void *(*run)(void *) noexcept nogil,
                       void *argument) noexcept
    int pthread_join(pthread_t thread, void **result) noexcept
    int pthread_sigmask(int how, const sigset_t *now, sigset_t *was) noexcept
cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    enum:
        SIG_SETMASK
    int sigfillset(sigset_t *signals) noexcept
cdef extern from "<sys/eventfd.h>" nogil:
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK
    int eventfd(unsigned start, int flags) noexcept
cdef extern from "<sys/mman.h>" nogil:
    enum:
        MADV_DONTFORK
        MAP_ANONYMOUS
        MAP_PRIVATE
        PROT_READ
        PROT_WRITE
    void *MAP_FAILED
    void *mmap(void *at, size_t n, int prot, int flags, int fd, long offset) noexcept
    int munmap(void *at, size_t n) noexcept
    int madvise(void *at, size_t n, int advice) noexcept
cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *buffer, size_t n, int64_t offset) noexcept

cdef enum:
    POOL_BYTES = 1 << 20  # stays inside a default RLIMIT_MEMLOCK of 8 MiB
    STACK_BYTES = 128 << 10
    # An idle drive gets its first reads while the rest of a batch is still being prepared: p50 of 32 rows 811 -> 643 us,
    # of 96 1512 -> 1426 us, same CPU (interleaved, 2 cores, virtio, 2026-11-30); 4 and 16 gained less.
    HEAD_START = 8
    MAX_EAGAIN = 1000


# ---- lists; all under the lock ----------------------------------------------------------------------------


cdef void queue_job(rs_reader *reader, rs_job *job) noexcept nogil:
    job.queued = True
    rs_add32(&job.refs, 1)
    if reader.active == NULL:
        job.before = job.after = job
        reader.active = job
    else:
        job.after = reader.active.after
        job.before = reader.active
        job.after.before = job
        reader.active.after = job
    reader.n_active += 1


cdef bint settle_job(rs_reader *reader, rs_job *job) noexcept nogil:
    """Take a job that has nothing left off the active ring; run_finished tells its owner."""
    if not job.sealed or job.n_flying != 0 or job.n_taken != job.n_published or job.finished:
        return False
    if job.after == job:
        reader.active = NULL
    else:
        job.before.after = job.after
        job.after.before = job.before
        if reader.active == job:
            reader.active = job.before
    reader.n_active -= 1
    job.finished = True
    job.link = reader.finished
    reader.finished = job
    return True


cdef void run_finished(rs_job *job) noexcept nogil:
    """Without the lock: system calls, and the owner may free the job the moment our reference is gone."""
    cdef rs_job *link
    cdef uint64_t one = 1
    while job != NULL:
        link = job.link
        rs_release32(&job.done, 1)
        rs_futex_wake(&job.done)
        if job.event_fd >= 0:
            write(job.event_fd, &one, sizeof(one))
        job_release(job)
        job = link


cdef void unlock(rs_reader *reader) noexcept nogil:
    cdef rs_job *finished = reader.finished
    reader.finished = NULL
    pthread_mutex_unlock(&reader.lock)
    if finished != NULL:
        run_finished(finished)


cdef inline uint32_t merge_bucket(const rs_layer *layer, uint32_t local) noexcept nogil:
    return (local * <uint32_t>0x9E3779B1 >> 24 ^ layer.file) & (MERGE_BUCKETS - 1)


# ---- one read ---------------------------------------------------------------------------------------------


cdef void deliver(const rs_miss *miss, const uint8_t *row) noexcept nogil:
    cdef rs_job *job = miss.job
    cdef uint32_t at = miss.first
    while at != LIST_END:
        memcpy(job.weight + <size_t>at * WEIGHT_BYTES, row, WEIGHT_BYTES)
        memcpy(job.scale + <size_t>at * SCALE_BYTES, row + WEIGHT_BYTES, SCALE_BYTES)
        at = job.next[at]


cdef uint32_t take_read(rs_reader *reader) noexcept nogil:
    """The next read to start, as a slot, or NO_SLOT. Jobs take turns, so a long one does not hold up a short one."""
    cdef rs_job *job
    cdef rs_miss *miss
    cdef rs_layer *layer
    cdef rs_slot *slot
    cdef uint32_t idle = 0, where, index
    cdef int64_t at
    cdef int way
    while reader.active != NULL and idle < reader.n_active and reader.free_slot != NO_SLOT:
        job = reader.active.after
        if job.cancelled or job.fault.status != RS_OK:
            job.n_taken = job.n_published
        if settle_job(reader, job):
            continue
        reader.active = job
        if job.n_taken == job.n_published:
            idle += 1
            continue
        idle = 0
        miss = &job.misses[job.n_taken]
        job.n_taken += 1
        layer = job.layer
        if layer.cache.n_sets != 0:  # another job may have brought it in since this one looked
            where = cache_set(&layer.cache, miss.local)
            way = cache_find(&layer.cache, where, miss.local)
            if way != NO_WAY:
                deliver(miss, cache_row(&layer.cache, where, way))
                reader.counts.late_hits += 1
                continue
        where = merge_bucket(layer, miss.local)
        index = reader.merge[where]
        while index != NO_SLOT and (reader.slots[index].local != miss.local or reader.slots[index].layer != layer):
            index = reader.slots[index].next
        job.n_flying += 1
        if index != NO_SLOT:
            miss.chain = reader.slots[index].waiters
            reader.slots[index].waiters = miss
            reader.counts.merged += 1
            continue
        index = reader.free_slot
        slot = &reader.slots[index]
        reader.free_slot = slot.next
        reader.n_busy += 1
        slot.next = reader.merge[where]
        reader.merge[where] = index
        at = HEADER_BYTES + <int64_t>miss.local * ROW_BYTES
        slot.layer, slot.local, slot.tries = layer, miss.local, 0
        slot.offset = at - at % reader.read_bytes
        slot.n_bytes = <uint32_t>((at + ROW_BYTES - slot.offset + reader.read_bytes - 1) // reader.read_bytes
                                  * reader.read_bytes)
        miss.chain = NULL
        slot.waiters = miss
        reader.counts.device_reads += 1
        return index
    return NO_SLOT


cdef bint end_read(rs_reader *reader, uint32_t index, int64_t result) noexcept nogil:
    """Take in a read's result (bytes or -errno). True: it must be started again."""
    cdef rs_slot *slot = &reader.slots[index]
    cdef rs_layer *layer = slot.layer
    cdef rs_miss *miss = slot.waiters
    cdef rs_miss *chain
    cdef rs_job *job
    cdef uint32_t *link
    cdef int64_t at = HEADER_BYTES + <int64_t>slot.local * ROW_BYTES
    cdef const uint8_t *row = reader.pool + <size_t>index * reader.slot_bytes + (at - slot.offset)
    cdef bint whole = result >= at - slot.offset + ROW_BYTES
    cdef int inserted
    if not whole:
        slot.tries += 1
        # A read that fails is tried once more; one that was only interrupted does not count as tried.
        if slot.tries < (MAX_EAGAIN if result == -EAGAIN or result == -EINTR else 2):
            reader.counts.retries += 1
            return True
        reader.counts.failed_reads += 1
    else:
        reader.counts.device_bytes += result
    link = &reader.merge[merge_bucket(layer, slot.local)]
    while link[0] != index:
        link = &reader.slots[link[0]].next
    link[0] = slot.next
    while miss != NULL:
        chain = miss.chain
        job = miss.job
        if whole:
            deliver(miss, row)
        elif job.fault.status == RS_OK:
            job.fault.status = RS_IO if result < 0 else RS_SHORT
            job.fault.error = <int>-result if result < 0 else 0
            job.fault.position, job.fault.row, job.fault.offset_bytes = miss.first, job.ids[miss.first], at
            job.n_taken = job.n_published
        job.n_flying -= 1
        settle_job(reader, job)
        miss = chain
    if whole:
        inserted = cache_insert(&layer.cache, slot.local, row)
        reader.counts.inserted += inserted >= 0
        reader.counts.evicted += inserted > 0
    slot.next = reader.free_slot
    reader.free_slot = index
    reader.n_busy -= 1
    return False


cdef void fail_everything(rs_reader *reader, int error) noexcept nogil:
    """The ring itself broke. The kernel may still write into the pool, so slots stay busy for good."""
    cdef rs_job *job
    reader.broken = error
    while reader.active != NULL:
        job = reader.active
        if job.fault.status == RS_OK:
            job.fault.status, job.fault.error = RS_BROKEN, error
        job.n_taken, job.n_flying, job.sealed = job.n_published, 0, True
        settle_job(reader, job)


# ---- the threads ------------------------------------------------------------------------------------------


cdef void start_read(rs_reader *reader, rs_ring *ring, uint32_t index) noexcept nogil:
    cdef rs_slot *slot = &reader.slots[index]
    ring_push(ring, index, slot.layer.file, reader.pool + <size_t>index * reader.slot_bytes, slot.n_bytes, slot.offset)


cdef void *ring_main(void *argument) noexcept nogil:
    cdef rs_reader *reader = <rs_reader *>argument
    cdef rs_ring ring
    cdef rs_result results[128]
    cdef uint32_t n_results = 0, index, i
    cdef bint woken
    cdef int problem
    problem = ring_open(&ring, reader.engine, reader.fds, reader.n_files, reader.pool, reader.pool_bytes,
                        reader.n_slots, reader.wake_fd, reader.register_all)
    reader.fixed_files, reader.fixed_buffer = ring.fixed_files, ring.fixed_buffer
    reader.start_error = problem
    rs_release32(&reader.started, 1)
    rs_futex_wake(&reader.started)
    if problem != 0:
        return NULL
    pthread_mutex_lock(&reader.lock)
    while True:
        while True:
            index = take_read(reader)
            if index == NO_SLOT:
                break
            start_read(reader, &ring, index)
            if reader.n_busy == HEAD_START and ring.pushed == HEAD_START:
                unlock(reader)
                ring_wait(&ring, 0, results, 0, &n_results)
                pthread_mutex_lock(&reader.lock)
        if reader.closing and reader.active == NULL and reader.n_busy == 0:
            break
        reader.sleeping = reader.free_slot != NO_SLOT  # with every slot out, a wake could not start anything
        unlock(reader)
        # Waiting for more than one saves nothing: a drive that is busy completes several at a time anyway (16, 32, half
        # or all of those under way, each with a bound of 0.2 to 2 ms: within 5 % of this, 2 cores, virtio, 2026-11-30).
        problem = ring_wait(&ring, 1, results, 128, &n_results)
        woken = False
        pthread_mutex_lock(&reader.lock)
        reader.sleeping = False
        if problem != 0:
            fail_everything(reader, problem)
            break
        for i in range(n_results):
            if results[i].tag == WAKE_TAG:
                woken = True
            elif end_read(reader, results[i].tag, results[i].n_bytes):
                start_read(reader, &ring, results[i].tag)
        if woken:
            ring_read_wake(&ring)
    unlock(reader)
    ring_close(&ring)
    return NULL


cdef void *thread_main(void *argument) noexcept nogil:
    cdef rs_reader *reader = <rs_reader *>argument
    cdef rs_slot *slot
    cdef uint32_t index
    cdef ssize_t got
    pthread_mutex_lock(&reader.lock)
    while True:
        index = take_read(reader)
        if index == NO_SLOT:
            if reader.finished != NULL:
                unlock(reader)
                pthread_mutex_lock(&reader.lock)
                continue
            if reader.closing and reader.active == NULL:
                break
            reader.sleeping = True
            pthread_cond_wait(&reader.work, &reader.lock)
            continue
        slot = &reader.slots[index]
        while True:
            unlock(reader)
            got = pread(slot.layer.fd, reader.pool + <size_t>index * reader.slot_bytes, slot.n_bytes, slot.offset)
            if got < 0:
                got = -errno
            pthread_mutex_lock(&reader.lock)
            if not end_read(reader, index, got):
                break
    pthread_cond_broadcast(&reader.work)
    unlock(reader)
    return NULL


cdef void free_memory(rs_reader *reader) noexcept nogil:
    if reader.pool != NULL and not reader.broken:
        munmap(reader.pool, reader.pool_bytes)
    if reader.wake_fd >= 0:
        close(reader.wake_fd)
    free(reader.slots)
    reader.pool, reader.slots, reader.wake_fd, reader.n_threads = NULL, NULL, -1, 0


cdef int reader_open(rs_reader *reader, rs_engine engine, const int *fds, uint32_t n_files, uint32_t read_bytes,
                     uint32_t depth, uint32_t n_threads, bint register_all) noexcept nogil:
    cdef pthread_attr_t attributes
    cdef sigset_t all_signals, before
    cdef uint32_t i
    cdef int problem = 0
    memset(reader, 0, sizeof(rs_reader))
    reader.wake_fd = -1
    reader.engine, reader.fds, reader.n_files, reader.read_bytes = engine, fds, n_files, read_bytes
    reader.register_all = register_all
    reader.slot_bytes = 2 * read_bytes
    if reader.slot_bytes < ROW_BYTES + read_bytes:  # 264 bytes may touch three blocks of less than 264
        reader.slot_bytes = (ROW_BYTES + 2 * read_bytes) // read_bytes * read_bytes
    reader.n_slots = min(depth, <uint32_t>POOL_BYTES // reader.slot_bytes)
    if engine == RS_THREADS:
        reader.n_slots = min(reader.n_slots, min(n_threads, <uint32_t>MAX_THREADS))
    reader.pool_bytes = <size_t>reader.n_slots * reader.slot_bytes
    pthread_mutex_init(&reader.lock, NULL)
    pthread_cond_init(&reader.work, NULL)
    reader.slots = <rs_slot *>calloc(reader.n_slots, sizeof(rs_slot))
    reader.pool = <uint8_t *>mmap(NULL, reader.pool_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    reader.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
    if reader.pool == MAP_FAILED:
        reader.pool = NULL
    if reader.slots == NULL or reader.pool == NULL or reader.wake_fd < 0:
        problem = errno if errno else ENOMEM
        free_memory(reader)
        return problem
    # A fork while the device writes into a page would leave parent and device with different copies of it.
    madvise(reader.pool, reader.pool_bytes, MADV_DONTFORK)
    for i in range(reader.n_slots):
        reader.slots[i].next = i + 1 if i + 1 < reader.n_slots else <uint32_t>NO_SLOT
    for i in range(MERGE_BUCKETS):
        reader.merge[i] = NO_SLOT
    pthread_attr_init(&attributes)
    pthread_attr_setstacksize(&attributes, STACK_BYTES)
    sigfillset(&all_signals)  # signals are for Python's main thread
    pthread_sigmask(SIG_SETMASK, &all_signals, &before)
    for i in range(reader.n_slots if engine == RS_THREADS else 1):
        problem = pthread_create(&reader.threads[i], &attributes, thread_main if engine == RS_THREADS else ring_main,
                                 reader)
        if problem != 0:
            break
        reader.n_threads += 1
    pthread_sigmask(SIG_SETMASK, &before, NULL)
    pthread_attr_destroy(&attributes)
    if problem == 0 and engine != RS_THREADS:
        while rs_acquire32(&reader.started) == 0:
            rs_futex_wait(&reader.started, 0, -1)
        problem = reader.start_error
    if problem != 0:
        reader_close(reader)
    return problem


cdef void reader_close(rs_reader *reader) noexcept nogil:
    cdef uint64_t one = 1
    cdef uint32_t i
    if reader.slots == NULL:
        return
    pthread_mutex_lock(&reader.lock)
    reader.closing = True
    pthread_cond_broadcast(&reader.work)
    pthread_mutex_unlock(&reader.lock)
    write(reader.wake_fd, &one, sizeof(one))
    for i in range(reader.n_threads):
        pthread_join(reader.threads[i], NULL)
    # The lock itself stays usable: a job of a closed store may still be asked for its descriptor or cancelled.
    pthread_cond_destroy(&reader.work)
    free_memory(reader)


cdef void reader_abandon(rs_reader *reader) noexcept nogil:
    """Only the descriptor: the pool was not inherited, and something else may lie at its address by now."""
    if reader.wake_fd >= 0:
        close(reader.wake_fd)
    reader.wake_fd = -1


# ---- for callers ------------------------------------------------------------------------------------------


cdef void unlock_and_wake(rs_reader *reader, bint work) noexcept nogil:
    cdef uint64_t one = 1
    cdef bint wake = work and reader.sleeping
    if wake:
        reader.sleeping = False
        if reader.engine == RS_THREADS:
            pthread_cond_broadcast(&reader.work)
    unlock(reader)
    if wake and reader.engine != RS_THREADS:
        write(reader.wake_fd, &one, sizeof(one))


cdef void reader_publish(rs_reader *reader, rs_job *job, uint32_t n_published) noexcept nogil:
    """The first `n_published` misses of the job are ready; the first call queues it."""
    pthread_mutex_lock(&reader.lock)
    if reader.broken != 0 and job.fault.status == RS_OK:
        job.fault.status, job.fault.error = RS_BROKEN, reader.broken
    if not job.queued:
        queue_job(reader, job)
    job.n_published = n_published
    if reader.broken != 0:
        job.n_taken = n_published
    unlock_and_wake(reader, True)


cdef void reader_seal(rs_reader *reader, rs_job *job) noexcept nogil:
    """Nothing more will be published."""
    pthread_mutex_lock(&reader.lock)
    job.sealed = True
    settle_job(reader, job)
    unlock(reader)


cdef void reader_cancel(rs_reader *reader, rs_job *job) noexcept nogil:
    """Reads that have not started will not be; the job still has to be waited for."""
    pthread_mutex_lock(&reader.lock)
    if not job.finished:
        job.cancelled = True
        job.n_taken = job.n_published
        if job.queued:
            settle_job(reader, job)
    unlock(reader)
