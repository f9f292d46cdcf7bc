"""See core.pxd for the life of a job. Everything here runs on the caller's thread, without the GIL and without a lock
except for the moment a miss is published."""
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from dsv41_rowstore.atomics cimport (
    rs_acquire32, rs_add32, rs_count64, rs_futex_wait, rs_futex_wake, rs_load32, rs_swap32,
)
from dsv41_rowstore.cache cimport (
    NO_WAY, SCALE_BYTES, WEIGHT_BYTES, cache_begin, cache_find, cache_prefetch_keys, cache_prefetch_row, cache_row,
    cache_set, cache_still, cache_touch, rs_cache,
)
from dsv41_rowstore.core cimport (
    LIST_END, NOT_OWNED, RS_CANCELLED, RS_CLOSED, RS_FORKED, RS_NO_MEMORY, RS_OK, RS_OUT_OF_RANGE, RS_RUNNING,
    SPAN_BUCKETS, pthread_mutex_t, rs_fault, rs_job, rs_layer, rs_miss, rs_span, rs_status, rs_store, rs_want,
)
from dsv41_rowstore.jobs cimport job_release, job_room, job_take
from dsv41_rowstore.reader cimport reader_cancel, reader_publish, reader_seal

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*before)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil) noexcept
    int pthread_mutex_lock(pthread_mutex_t *lock) noexcept
    int pthread_mutex_unlock(pthread_mutex_t *lock) noexcept
cdef extern from "<sys/eventfd.h>" nogil:
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK
    int eventfd(unsigned start, int flags) noexcept

cdef enum:
    BLOCK = 64  # rows probed, published and copied at a time: their lines (20 KiB) fit the first-level cache

cdef uint32_t _forks = 0


cdef void count_fork() noexcept nogil:
    global _forks
    _forks += 1


cdef int gather_watch_forks() noexcept nogil:
    return pthread_atfork(NULL, NULL, count_fork)


cdef unsigned int gather_fork_generation() noexcept nogil:
    return _forks


# ---- ids to local rows ------------------------------------------------------------------------------------


cdef void layer_spans(rs_layer *layer) noexcept nogil:
    """Fill the shortcut from an id's high bits to the first span that can hold it."""
    cdef uint32_t i, span = 0
    layer.shift = 0
    while (layer.table_rows >> layer.shift) >= SPAN_BUCKETS:
        layer.shift += 1
    for i in range(SPAN_BUCKETS):
        while layer.spans[span].stop <= (<int64_t>i << layer.shift):
            span += 1
        layer.bucket[i] = span


cdef inline uint32_t to_local(const rs_layer *layer, int64_t row) noexcept nogil:
    cdef const rs_span *span = &layer.spans[layer.bucket[row >> layer.shift]]
    while row >= span.stop:
        span += 1
    return <uint32_t>(span.local + row - span.start) if row >= span.start else <uint32_t>NOT_OWNED


cdef size_t translate(rs_job *job, rs_fault *fault) noexcept nogil:
    """job.next[i] = local row or NOT_OWNED; the number owned. Stops at an id out of range, before any output."""
    cdef size_t i, owned = 0
    cdef int64_t row
    cdef uint32_t local
    for i in range(job.n_ids):
        row = job.ids[i]
        if <uint64_t>row >= <uint64_t>job.layer.table_rows:
            fault.status, fault.row, fault.position = RS_OUT_OF_RANGE, row, i
            return 0
        local = to_local(job.layer, row)
        job.next[i] = local
        owned += local != NOT_OWNED
    return owned


cdef size_t join_equal(rs_job *job, size_t n_owned) noexcept nogil:
    """One want for each distinct row; job.next becomes the chain of the positions that share it."""
    cdef size_t i, size = 16, n_wants = 0
    cdef uint32_t local, first, slot, mask, shift = 28, found
    cdef rs_want *wants = job.wants
    cdef uint32_t *table = job.table
    while size < 2 * n_owned:
        size *= 2
        shift -= 1
    mask = <uint32_t>(size - 1)
    memset(table, 0, size * sizeof(uint32_t))
    for i in range(job.n_ids):
        local = job.next[i]
        if local == NOT_OWNED:
            continue
        slot = local * <uint32_t>0x9E3779B1 >> shift
        while True:
            found = table[slot]
            if found == 0:
                wants[n_wants].local, wants[n_wants].first = local, <uint32_t>i
                n_wants += 1
                table[slot] = <uint32_t>n_wants
                job.next[i] = LIST_END
                break
            if wants[found - 1].local == local:
                first = wants[found - 1].first
                job.next[i] = job.next[first]
                job.next[first] = <uint32_t>i
                break
            slot = (slot + 1) & mask
    return n_wants


# ---- hits and misses --------------------------------------------------------------------------------------


cdef inline void copy_out(const rs_job *job, const rs_want *want, const uint8_t *row) noexcept nogil:
    cdef uint32_t at = want.first
    while at != LIST_END:
        memcpy(job.weight + <size_t>at * WEIGHT_BYTES, row, WEIGHT_BYTES)
        memcpy(job.scale + <size_t>at * SCALE_BYTES, row + WEIGHT_BYTES, SCALE_BYTES)
        at = job.next[at]


cdef inline void add_miss(rs_job *job, uint32_t n, const rs_want *want) noexcept nogil:
    cdef rs_miss *miss = &job.misses[n]
    miss.local, miss.first, miss.job, miss.chain = want.local, want.first, job, NULL


cdef uint32_t copy_hits(rs_job *job, size_t n_wants) noexcept nogil:
    """Copy what is cached and publish what is not, block by block; the number of misses."""
    cdef rs_cache *cache = &job.layer.cache
    cdef rs_want *want
    cdef uint32_t where[BLOCK]
    cdef uint32_t sequence[BLOCK]
    cdef int way[BLOCK]
    cdef size_t begin, n, i
    cdef uint32_t n_misses = 0, before
    begin = 0
    while begin < n_wants:
        n = min(<size_t>BLOCK, n_wants - begin)
        want = &job.wants[begin]
        begin += n
        before = n_misses
        if cache.n_sets == 0:
            for i in range(n):
                add_miss(job, n_misses, &want[i])
                n_misses += 1
            reader_publish(&job.store.reader, job, n_misses)
            continue
        for i in range(n):
            where[i] = cache_set(cache, want[i].local)
            cache_prefetch_keys(cache, where[i])
        for i in range(n):
            way[i] = NO_WAY
            if cache_begin(cache, where[i], &sequence[i]):
                way[i] = cache_find(cache, where[i], want[i].local)
            if way[i] != NO_WAY:
                cache_prefetch_row(cache, where[i], way[i])
            else:
                add_miss(job, n_misses, &want[i])
                n_misses += 1
        if n_misses != before:  # the device works while we copy
            reader_publish(&job.store.reader, job, n_misses)
        before = n_misses
        for i in range(n):
            if way[i] == NO_WAY:
                continue
            cache_touch(cache, where[i], way[i], want[i].local)
            copy_out(job, &want[i], cache_row(cache, where[i], way[i]))
            if not cache_still(cache, where[i], sequence[i]):
                # The writer was in this set meanwhile: what was copied may be two rows. Read it instead.
                add_miss(job, n_misses, &want[i])
                n_misses += 1
        if n_misses != before:
            reader_publish(&job.store.reader, job, n_misses)
    return n_misses


cdef void clear_foreign(rs_job *job) noexcept nogil:
    cdef size_t i
    for i in range(job.n_ids):
        if job.next[i] == NOT_OWNED:
            memset(job.weight + i * WEIGHT_BYTES, 0, WEIGHT_BYTES)
            memset(job.scale + i * SCALE_BYTES, 0, SCALE_BYTES)


cdef rs_status plan(rs_job *job, rs_fault *fault) noexcept nogil:
    cdef rs_store *store = job.store
    cdef size_t n_owned, n_wants = 0
    cdef uint32_t n_misses = 0
    n_owned = translate(job, fault)
    if fault.status != RS_OK:
        return fault.status
    if n_owned:
        if not job_room(job, n_owned):
            return RS_NO_MEMORY
        n_wants = join_equal(job, n_owned)
        n_misses = copy_hits(job, n_wants)
    if n_owned != job.n_ids:
        clear_foreign(job)
    rs_count64(&store.counts.jobs, 1)
    rs_count64(&store.counts.lookups, job.n_ids)
    rs_count64(&store.counts.owned_rows, n_owned)
    rs_count64(&store.counts.duplicates, n_owned - n_wants)
    rs_count64(&store.counts.hits, n_wants - n_misses)
    rs_count64(&store.counts.misses, n_misses)
    if n_misses:
        reader_seal(&store.reader, job)
    else:
        job.finished = True
        job.done = 1
    return RS_OK


cdef void leave(rs_store *store) noexcept nogil:
    if rs_add32(&store.users, <uint32_t>-1) == 0 and rs_load32(&store.closing):
        rs_futex_wake(&store.users)


cdef rs_status gather_begin(rs_store *store, rs_layer *layer, const int64_t *ids, size_t n_ids, uint8_t *weight,
                            uint8_t *scale, rs_job **job, rs_fault *fault) noexcept nogil:
    """Start a gather. RS_OK: `job` is running or done, and ids and outputs must stay until it is done."""
    cdef rs_status status
    job[0] = NULL
    memset(fault, 0, sizeof(rs_fault))
    if store.fork_generation != _forks:
        return RS_FORKED
    rs_add32(&store.users, 1)
    if rs_acquire32(&store.closing):
        leave(store)
        return RS_CLOSED
    job[0] = job_take(store, n_ids)
    if job[0] == NULL:
        leave(store)
        return RS_NO_MEMORY
    job[0].layer, job[0].ids, job[0].weight, job[0].scale = layer, ids, weight, scale
    status = plan(job[0], fault)
    if status != RS_OK:
        job_release(job[0])
        job[0] = NULL
    leave(store)
    return status


cdef int64_t now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec


cdef rs_status gather_wait(rs_job *job, int64_t timeout_ns, bint *interrupted) noexcept nogil:
    """RS_RUNNING when the time is over, or with interrupted[0] set when a signal arrived; else how the job ended."""
    cdef int64_t until = now_ns() + timeout_ns if timeout_ns >= 0 else 0
    cdef int64_t left = -1
    cdef int problem
    if interrupted != NULL:
        interrupted[0] = False
    while rs_acquire32(&job.done) == 0:
        if job.store.fork_generation != _forks:
            return RS_FORKED  # the thread that would finish it is the parent's
        if timeout_ns >= 0:
            left = until - now_ns()
            if left <= 0:
                return RS_RUNNING
        problem = rs_futex_wait(&job.done, 0, left)
        if problem == EINTR and interrupted != NULL:
            interrupted[0] = True
            return RS_RUNNING
    if job.fault.status != RS_OK:
        return job.fault.status
    return RS_CANCELLED if job.cancelled else RS_OK


cdef void gather_cancel(rs_job *job) noexcept nogil:
    reader_cancel(&job.store.reader, job)


cdef int gather_event_fd(rs_job *job) noexcept nogil:
    cdef int fd
    pthread_mutex_lock(&job.store.reader.lock)
    if job.event_fd < 0:
        # finished: whoever finished it no longer looks at event_fd, so the descriptor is born readable
        fd = eventfd(1 if job.finished else 0, EFD_CLOEXEC | EFD_NONBLOCK)
        if fd < 0:
            fd = -errno
        else:
            job.event_fd = fd
    else:
        fd = job.event_fd
    pthread_mutex_unlock(&job.store.reader.lock)
    return fd


cdef void gather_drain(rs_store *store) noexcept nogil:
    cdef uint32_t inside
    rs_swap32(&store.closing, 1)
    while True:
        inside = rs_acquire32(&store.users)
        if inside == 0:
            return
        rs_futex_wait(&store.users, inside, 1000000000)
