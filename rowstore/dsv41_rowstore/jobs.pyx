"""Scratch memory is kept between calls, so that a decode step allocates nothing; a prefill's is given back."""
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset
from posix.unistd cimport close

from dsv41_rowstore.atomics cimport rs_add32
from dsv41_rowstore.core cimport pthread_mutex_t, rs_fault, rs_job, rs_miss, rs_store, rs_want

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t *lock, void *attributes) noexcept
    int pthread_mutex_destroy(pthread_mutex_t *lock) noexcept
    int pthread_mutex_lock(pthread_mutex_t *lock) noexcept
    int pthread_mutex_unlock(pthread_mutex_t *lock) noexcept

cdef enum:
    SPARE_BYTES = 2 << 20  # of all kept jobs together; a chunk of 4096 tokens needs 1.7 MiB


cdef size_t scratch_bytes(const rs_job *job) noexcept nogil:
    return job.room_ids * sizeof(uint32_t) + job.room_wants * (sizeof(rs_want) + sizeof(rs_miss) + 4 * sizeof(uint32_t))


cdef void destroy(rs_job *job) noexcept nogil:
    free(job.next)
    free(job.wants)
    free(job.misses)
    free(job.table)
    free(job)


cdef rs_job *job_take(rs_store *store, size_t n_ids) noexcept nogil:
    cdef rs_job *job
    pthread_mutex_lock(&store.spare_lock)
    job = store.spare
    if job != NULL:
        store.spare = job.link
        store.spare_bytes -= scratch_bytes(job)
    pthread_mutex_unlock(&store.spare_lock)
    if job == NULL:
        job = <rs_job *>calloc(1, sizeof(rs_job))
        if job == NULL:
            return NULL
    job.store, job.n_ids, job.refs, job.event_fd = store, n_ids, 1, -1
    job.n_published = job.n_taken = job.n_flying = job.done = 0
    job.queued = job.sealed = job.cancelled = job.finished = False
    memset(&job.fault, 0, sizeof(rs_fault))
    if job.room_ids < n_ids:
        free(job.next)
        job.next = <uint32_t *>malloc(n_ids * sizeof(uint32_t))
        job.room_ids = n_ids if job.next != NULL else 0
        if job.next == NULL:
            destroy(job)
            return NULL
    return job


cdef bint job_room(rs_job *job, size_t n_wants) noexcept nogil:
    if job.room_wants >= n_wants:
        return True
    free(job.wants)
    free(job.misses)
    free(job.table)
    job.room_wants = 0
    job.wants = <rs_want *>malloc(n_wants * sizeof(rs_want))
    job.misses = <rs_miss *>malloc(n_wants * sizeof(rs_miss))
    job.table = <uint32_t *>malloc((n_wants * 4 + 16) * sizeof(uint32_t))  # join_equal: < 4n, >= 16
    if job.wants == NULL or job.misses == NULL or job.table == NULL:
        return False
    job.room_wants = n_wants
    return True


cdef void job_release(rs_job *job) noexcept nogil:
    cdef rs_store *store = job.store
    cdef size_t n_bytes
    cdef bint keep
    if rs_add32(&job.refs, <uint32_t>-1) != 0:
        return
    if job.event_fd >= 0:
        close(job.event_fd)
    n_bytes = scratch_bytes(job)
    pthread_mutex_lock(&store.spare_lock)
    keep = store.spare_bytes + n_bytes <= SPARE_BYTES
    if keep:
        job.link = store.spare
        store.spare = job
        store.spare_bytes += n_bytes
    pthread_mutex_unlock(&store.spare_lock)
    if not keep:
        destroy(job)


cdef void jobs_open(rs_store *store) noexcept nogil:
    pthread_mutex_init(&store.spare_lock, NULL)


cdef void jobs_close(rs_store *store) noexcept nogil:
    cdef rs_job *job = store.spare
    cdef rs_job *link
    while job != NULL:
        link = job.link
        destroy(job)
        job = link
    store.spare = NULL
    pthread_mutex_destroy(&store.spare_lock)
