/* LD_PRELOAD for a drive that is slow or broken: pread of packed rows, as the row store's engine "threads" reads them.

   $DSV41_TEST_PREAD names one page that a test writes while the engine runs:
     int64 latency_us, error, reads, failed; from byte 64 a part of the path that `error` is for (empty: every file).
   Only files named engram-l* are touched. Nothing of the adapter or the row store knows about this. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct page { volatile int64_t latency_us, error, reads, failed; char unused[32]; char match[256]; };
static struct page *page;
static ssize_t (*real)(int, void *, size_t, off_t);

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("DSV41_TEST_PREAD");
    int fd;
    real = (ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
    if (path == NULL || (fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
        return;
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        page = NULL;
    close(fd);
}

ssize_t pread64(int fd, void *buffer, size_t n, off_t offset)
{
    char link[64], path[1024];
    ssize_t length;
    if (page == NULL)
        return real(fd, buffer, n, offset);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return real(fd, buffer, n, offset);
    path[length] = 0;
    if (strstr(path, "/engram-l") == NULL)
        return real(fd, buffer, n, offset);
    __atomic_fetch_add(&page->reads, 1, __ATOMIC_RELAXED);
    if (page->latency_us > 0) {
        struct timespec t = {page->latency_us / 1000000, page->latency_us % 1000000 * 1000};
        nanosleep(&t, NULL);
    }
    if (page->error != 0 && (page->match[0] == 0 || strstr(path, page->match) != NULL)) {
        __atomic_fetch_add(&page->failed, 1, __ATOMIC_RELAXED);
        errno = (int)page->error;
        return -1;
    }
    return real(fd, buffer, n, offset);
}

ssize_t pread(int fd, void *buffer, size_t n, off_t offset) { return pread64(fd, buffer, n, offset); }
