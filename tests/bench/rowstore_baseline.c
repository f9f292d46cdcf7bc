/* The published thread-pool design, written from its prose description only, as the thing to compare with.
 *
 * One process-wide pool; one job at a time; one ticket per row; the wake-up is a broadcast to every worker, whether
 * or not anything misses; the caller works too and then waits until all workers have left. A row's set is id mod sets,
 * one of 256 mutexes guards it, its 16 keys of 64 bits are scanned in order. A hit is copied to the stack and split into
 * weight and scale. A miss is one aligned O_DIRECT pread of 4 or 8 KiB onto the worker's stack, then an insert with a
 * round-robin victim. Nothing is deduplicated: two workers that miss the same row read it twice. Errors abort. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROW = 264, PAGE = 4096, WAYS = 16, LOCKS = 256 };

struct pool {
    int fd, n_threads;
    uint64_t n_sets;
    uint64_t *keys;    /* id + 1; 0 is free */
    unsigned char *rows;
    uint8_t *victim;
    pthread_mutex_t locks[LOCKS];
    pthread_mutex_t gate;
    pthread_cond_t work, left;
    uint64_t generation;
    int inside, stop;
    const int64_t *ids;
    unsigned char *weight, *scale;
    long n, ticket;
    long reads;
    pthread_t threads[256];
};

static void one_row(struct pool *p, long i)
{
    uint64_t id = (uint64_t)p->ids[i], set;
    unsigned char row[ROW];
    unsigned char pages[2 * PAGE] __attribute__((aligned(PAGE)));
    if (p->n_sets) {
        set = id % p->n_sets;
        pthread_mutex_t *lock = &p->locks[set % LOCKS];
        uint64_t *keys = p->keys + set * WAYS;
        pthread_mutex_lock(lock);
        for (int w = 0; w < WAYS; w++)
            if (keys[w] == id + 1) {
                memcpy(row, p->rows + (set * WAYS + w) * ROW, ROW);
                pthread_mutex_unlock(lock);
                memcpy(p->weight + i * 256, row, 256);
                memcpy(p->scale + i * 8, row + 256, 8);
                return;
            }
        pthread_mutex_unlock(lock);
    }
    off_t at = PAGE + (off_t)id * ROW, low = at & ~(off_t)(PAGE - 1);
    size_t n = (size_t)(((at + ROW + PAGE - 1) & ~(off_t)(PAGE - 1)) - low);
    if (pread(p->fd, pages, n, low) != (ssize_t)n)
        abort();
    __atomic_fetch_add(&p->reads, 1, __ATOMIC_RELAXED);
    memcpy(p->weight + i * 256, pages + (at - low), 256);
    memcpy(p->scale + i * 8, pages + (at - low) + 256, 8);
    if (p->n_sets) {
        pthread_mutex_t *lock = &p->locks[set % LOCKS];
        pthread_mutex_lock(lock);
        int w = p->victim[set];
        p->victim[set] = (uint8_t)((w + 1) % WAYS);
        p->keys[set * WAYS + w] = id + 1;
        memcpy(p->rows + (set * WAYS + w) * ROW, pages + (at - low), ROW);
        pthread_mutex_unlock(lock);
    }
}

static void serve(struct pool *p)
{
    long i;
    while ((i = __atomic_fetch_add(&p->ticket, 1, __ATOMIC_RELAXED)) < p->n)
        one_row(p, i);
}

static void *worker(void *argument)
{
    struct pool *p = argument;
    uint64_t seen = 0;
    pthread_mutex_lock(&p->gate);
    for (;;) {
        while (p->generation == seen && !p->stop)
            pthread_cond_wait(&p->work, &p->gate);
        if (p->stop)
            break;
        seen = p->generation;
        pthread_mutex_unlock(&p->gate);
        serve(p);
        pthread_mutex_lock(&p->gate);
        if (--p->inside == 0)
            pthread_cond_signal(&p->left);
    }
    pthread_mutex_unlock(&p->gate);
    return NULL;
}

struct pool *baseline_open(const char *path, int n_threads, uint64_t cache_bytes)
{
    struct pool *p = calloc(1, sizeof(*p));
    p->fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (p->fd < 0)
        abort();
    p->n_threads = n_threads;
    p->n_sets = cache_bytes / (WAYS * (ROW + 8) + 1);
    if (p->n_sets) {
        p->keys = mmap(NULL, p->n_sets * WAYS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        p->rows = mmap(NULL, p->n_sets * WAYS * ROW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        p->victim = calloc(p->n_sets, 1);
    }
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_init(&p->locks[i], NULL);
    pthread_mutex_init(&p->gate, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->left, NULL);
    for (int i = 0; i < n_threads - 1; i++)
        if (pthread_create(&p->threads[i], NULL, worker, p))
            abort();
    return p;
}

/* Not part of the design: put consecutive rows into the cache from big sequential reads, to save the benchmark time. */
void baseline_fill(struct pool *p, const char *path, uint64_t first, uint64_t n)
{
    enum { CHUNK = 4096 };
    unsigned char *rows = malloc(CHUNK * ROW);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (uint64_t i = 0; i < n; i += CHUNK) {
        uint64_t m = n - i < CHUNK ? n - i : CHUNK;
        if (pread(fd, rows, m * ROW, PAGE + (off_t)(first + i) * ROW) != (ssize_t)(m * ROW))
            abort();
        for (uint64_t j = 0; j < m; j++) {
            uint64_t id = first + i + j, set = id % p->n_sets;
            int w = p->victim[set];
            p->victim[set] = (uint8_t)((w + 1) % WAYS);
            p->keys[set * WAYS + w] = id + 1;
            memcpy(p->rows + (set * WAYS + w) * ROW, rows + j * ROW, ROW);
        }
    }
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    free(rows);
}

void baseline_gather(struct pool *p, const int64_t *ids, long n, unsigned char *weight, unsigned char *scale)
{
    pthread_mutex_lock(&p->gate);
    p->ids = ids, p->n = n, p->weight = weight, p->scale = scale, p->ticket = 0;
    p->inside = p->n_threads - 1;
    p->generation++;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->gate);
    serve(p);
    pthread_mutex_lock(&p->gate);
    while (p->inside)
        pthread_cond_wait(&p->left, &p->gate);
    pthread_mutex_unlock(&p->gate);
}

long baseline_reads(struct pool *p) { return p->reads; }

void baseline_close(struct pool *p)
{
    pthread_mutex_lock(&p->gate);
    p->stop = 1;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->gate);
    for (int i = 0; i < p->n_threads - 1; i++)
        pthread_join(p->threads[i], NULL);
    close(p->fd);
    if (p->n_sets) {
        munmap(p->keys, p->n_sets * WAYS * 8);
        munmap(p->rows, p->n_sets * WAYS * ROW);
        free(p->victim);
    }
    free(p);
}
