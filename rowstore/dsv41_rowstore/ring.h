/* System calls that glibc has no function for, and constants newer than some kernel headers. No liburing, no libaio:
 * the calls are few and a run-time dependency (and its licence) would cost more. */
#ifndef DSV41_RING_H
#define DSV41_RING_H
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

enum {
    RS_SETUP_SINGLE_ISSUER = 1 << 12,
    RS_SETUP_DEFER_TASKRUN = 1 << 13,
    RS_FEAT_SINGLE_MMAP = 1 << 0,
    RS_FEAT_NODROP = 1 << 1,
    RS_IOCB_CMD_POLL = 5,
};

static inline int rs_uring_setup(unsigned entries, struct io_uring_params *p)
{
    return (int)syscall(__NR_io_uring_setup, entries, p);
}
static inline int rs_uring_enter(int fd, unsigned submit, unsigned wait, unsigned flags)
{
    return (int)syscall(__NR_io_uring_enter, fd, submit, wait, flags, (void *)0, (size_t)0);
}
static inline int rs_uring_register(int fd, unsigned op, void *arg, unsigned n)
{
    return (int)syscall(__NR_io_uring_register, fd, op, arg, n);
}
static inline int rs_aio_setup(unsigned n, aio_context_t *ctx) { return (int)syscall(__NR_io_setup, n, ctx); }
static inline int rs_aio_destroy(aio_context_t ctx) { return (int)syscall(__NR_io_destroy, ctx); }
static inline int rs_aio_submit(aio_context_t ctx, long n, struct iocb **list)
{
    return (int)syscall(__NR_io_submit, ctx, n, list);
}
static inline int rs_aio_getevents(aio_context_t ctx, long min, long max, struct io_event *events)
{
    return (int)syscall(__NR_io_getevents, ctx, min, max, events, (void *)0);
}

/* A FUSE file opened FOPEN_DIRECT_IO does not advance its position on an asynchronous read, so io_uring continues a
 * short one at the old offset and reports all of it as read (seen on Linux 6.18). Local drives are not FUSE. */
static inline int rs_is_fuse(int fd)
{
    struct statfs st;
    return fstatfs(fd, &st) == 0 && st.f_type == 0x65735546;
}

/* Direct-I/O alignment of a file from STATX_DIOALIGN (Linux 6.1); 0 when the kernel or file system does not say.
 * Raw offsets, because struct statx has had these fields only since the same release. */
static inline int rs_dio_align(int fd, unsigned *memory, unsigned *offset)
{
    unsigned char st[512];
    const unsigned dioalign = 0x2000;
    unsigned mask;
    memset(st, 0, sizeof(st));
    *memory = *offset = 0;
    if (syscall(__NR_statx, fd, "", 0x1000 /* AT_EMPTY_PATH */, dioalign, st) != 0)
        return errno;
    memcpy(&mask, st, 4);
    if (mask & dioalign) {
        memcpy(memory, st + 0x98, 4);
        memcpy(offset, st + 0x9C, 4);
    }
    return 0;
}
#endif
