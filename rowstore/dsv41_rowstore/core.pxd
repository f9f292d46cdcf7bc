"""The structures every part shares. Nothing here knows Python objects, tensors or tensor parallelism.

Life of a job: a caller plans it (translate, dedupe, probe), publishes its misses to the reader as it finds them, and
seals it; the reader takes misses, reads, delivers each row to every position that wants it, and finishes the job when
it is sealed and nothing is out. A job without misses never meets the reader.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from dsv41_rowstore.cache cimport rs_cache
from dsv41_rowstore.ring cimport rs_engine

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef unsigned long pthread_t

cdef enum:
    HEADER_BYTES = 4096
    MAX_SPANS = 64
    MAX_THREADS = 32
    SPAN_BUCKETS = 256
    MERGE_BUCKETS = 256
    LIST_END = 0xFFFFFFFF  # end of a chain of positions
    NOT_OWNED = 0xFFFFFFFE  # this position's row belongs to another rank
    NO_SLOT = 0xFFFFFFFF

cdef enum rs_status:
    RS_OK = 0
    RS_RUNNING = 1  # a wait that timed out
    RS_OUT_OF_RANGE = 2
    RS_IO = 3  # the system refused the read: fault.error
    RS_SHORT = 4  # the file ends inside the row
    RS_NO_MEMORY = 5
    RS_CANCELLED = 6
    RS_CLOSED = 7
    RS_FORKED = 8
    RS_BROKEN = 9  # the engine itself failed, for good: fault.error

cdef struct rs_fault:
    rs_status status
    int error
    int64_t row  # global id
    int64_t position
    int64_t offset_bytes

cdef struct rs_span:
    int64_t start
    int64_t stop
    int64_t local

cdef struct rs_layer:
    int fd
    uint32_t file  # its index among the reader's files
    int64_t table_rows
    uint32_t shift
    uint8_t bucket[SPAN_BUCKETS]  # id >> shift → first span that may hold it
    rs_span spans[MAX_SPANS + 1]  # the last one starts past every id
    rs_cache cache

cdef struct rs_want:  # one distinct row of a job
    uint32_t local
    uint32_t first  # position; job.next leads to the others

cdef struct rs_miss:
    uint32_t local
    uint32_t first
    rs_job *job
    rs_miss *chain  # others waiting for the same read

cdef struct rs_job:
    rs_store *store
    rs_layer *layer
    const int64_t *ids
    size_t n_ids
    uint8_t *weight
    uint8_t *scale
    # the plan; written before the first miss is published, read-only after
    uint32_t *next
    rs_want *wants
    rs_miss *misses
    uint32_t *table
    size_t room_ids
    size_t room_wants
    # under the reader's lock
    uint32_t n_published
    uint32_t n_taken
    uint32_t n_flying
    bint queued
    bint sealed
    bint cancelled
    bint finished
    int event_fd
    rs_fault fault
    rs_job *before
    rs_job *after
    rs_job *link  # finished list, spare list
    # any thread
    uint32_t done  # futex word
    uint32_t refs

cdef struct rs_slot:
    rs_layer *layer
    rs_miss *waiters
    int64_t offset
    uint32_t local
    uint32_t n_bytes
    uint32_t tries
    uint32_t next  # free list or merge bucket

cdef struct rs_io_counts:  # under the reader's lock
    uint64_t device_reads
    uint64_t device_bytes
    uint64_t merged
    uint64_t late_hits
    uint64_t inserted
    uint64_t evicted
    uint64_t retries
    uint64_t failed_reads

cdef struct rs_reader:
    pthread_mutex_t lock
    pthread_cond_t work  # for the thread engine
    rs_engine engine
    rs_slot *slots
    uint32_t n_slots
    uint32_t slot_bytes
    uint32_t read_bytes
    uint32_t n_busy
    uint32_t free_slot
    uint32_t merge[MERGE_BUCKETS]
    uint8_t *pool
    size_t pool_bytes
    const int *fds
    uint32_t n_files
    rs_job *active  # ring of jobs; the next one served is active.after
    uint32_t n_active
    rs_job *finished
    bint closing
    bint sleeping
    int broken  # errno that stopped the ring for good
    int wake_fd
    uint32_t n_threads
    pthread_t threads[MAX_THREADS]
    uint32_t started  # futex word
    int start_error
    bint register_all
    bint fixed_files
    bint fixed_buffer
    rs_io_counts counts

cdef struct rs_counts:  # by callers, relaxed
    uint64_t jobs
    uint64_t lookups
    uint64_t owned_rows
    uint64_t duplicates
    uint64_t hits
    uint64_t misses
    uint64_t call_waits  # host calls that had to wait for rows
    uint64_t call_wait_ns

cdef struct rs_store:
    rs_layer *layers
    uint32_t n_layers
    rs_reader reader
    rs_counts counts
    uint32_t closing
    uint32_t users  # callers inside submit; futex word for close
    uint32_t fork_generation
    pthread_mutex_t spare_lock
    rs_job *spare
    size_t spare_bytes
