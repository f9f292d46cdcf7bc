"""A wall clock that jumps: a small library, preloaded into a daemon, that moves CLOCK_REALTIME and nothing else."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_s;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("DSV41_TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) offset_s = page;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, now);
    if (!status && offset_s && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset_s;
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    int status = clock_gettime(CLOCK_REALTIME, &at);
    (void)zone;
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return status;
}

time_t time(time_t *where) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (where) *where = at.tv_sec;
    return at.tv_sec;
}
"""


class JumpingClock:
    """Environment for a daemon, and `jump` for the test."""

    def __init__(self, directory: Path) -> None:
        self._library, self._offset = directory / "jumping-clock.so", directory / "clock-offset"
        self.jump(0)
        compiler = compiler_here()
        assert compiler is not None
        source = directory / "jumping-clock.c"
        source.write_text(_SOURCE)
        argv = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source), "-ldl"]
        subprocess.run(argv, check=True, timeout=60)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "DSV41_TEST_CLOCK": str(self._offset)}

    def jump(self, offset_s: int) -> None:
        """The daemon's wall clock is this far from the machine's from now on."""
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack("=q", offset_s))


def compiler_here() -> str | None:
    """A C compiler, if there is one."""
    return shutil.which("gcc") or shutil.which("cc")
