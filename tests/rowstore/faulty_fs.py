"""A directory mirrored through FUSE whose reads fail, come short or wait: `python faulty_fs.py SOURCE MOUNT`.

It speaks the kernel's protocol on /dev/fuse itself (no libfuse), so that every engine meets the fault where a
bad drive would put it: inside the kernel. Commands on standard input, one a line, each answered by `ok`:
  fail ERRNO TIMES   the next TIMES reads return that error (TIMES -1: until told otherwise)
  short BYTES TIMES  the next TIMES reads return only so many bytes
  hold / go          reads wait / waiting reads are served
  reads              answered by the number of reads that were asked for since the start
  end                unmount and leave
Needs root (mount) and a kernel with FUSE. `skip N` before a fault lets N reads through first.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import struct
import sys

IN = struct.Struct("<IIQQIIIHH")
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
OP = {1: "lookup", 2: "forget", 3: "getattr", 14: "open", 15: "read", 17: "statfs", 18: "release",
      25: "flush", 26: "init", 27: "opendir", 28: "readdir", 29: "releasedir", 34: "access", 36: "interrupt",
      38: "destroy", 42: "forget"}  # fmt: skip
MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2
ASYNC_READ, ASYNC_DIO = 1, 1 << 15
ROOT = 1
MAX_HOLD_S = 10  # a test that failed while holding must not wait for itself


class FaultyFs:
    def __init__(self, source: str, mount: str) -> None:
        self.source, self.mount = source, mount
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if self.libc.mount(b"faulty", mount.encode(), b"fuse.faulty", MS_NOSUID | MS_NODEV, options) != 0:
            raise OSError(ctypes.get_errno(), f"mount: {os.strerror(ctypes.get_errno())}")
        self.names: dict[int, str] = {ROOT: "."}
        self.files: dict[int, int] = {}
        self.held: list[tuple[int, bytes]] = []
        self.holding, self.n_reads, self.skip = False, 0, 0
        self.fault: tuple[str, int, int] | None = None

    def serve(self) -> None:
        commands = b""
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([self.fd, 0], [], [], MAX_HOLD_S if self.holding else None)
            if not ready:
                self.let_go()
            if self.fd in ready:
                try:
                    self.request(os.read(self.fd, 1 << 21))
                except OSError as error:
                    if error.errno != errno.ENOENT:  # the request was interrupted meanwhile
                        raise
            if 0 in ready:
                got = os.read(0, 4096)
                commands += got
                *lines, commands = commands.split(b"\n")
                for line in lines:
                    if not self.command(line.decode().split()):
                        return
                if not got:
                    return

    def command(self, words: list[str]) -> bool:
        answer = "ok"
        match words:
            case ["fail" | "short" as kind, value, times]:
                self.fault = kind, int(value), int(times)
            case ["skip", n]:
                self.skip = int(n)
            case ["hold"]:
                self.holding = True
            case ["go"]:
                self.let_go()
            case ["reads"]:
                answer = str(self.n_reads)
            case ["end"]:
                print("ok", flush=True)
                return False
        print(answer, flush=True)
        return True

    def let_go(self) -> None:
        self.holding = False
        held, self.held = self.held, []
        for unique, body in held:
            self.read(unique, body)

    def reply(self, unique: int, body: bytes = b"", error: int = 0) -> None:
        try:
            os.write(self.fd, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
        except OSError as problem:
            if problem.errno != errno.ENOENT:
                raise

    def attributes(self, node: int) -> bytes:
        st = os.stat(os.path.join(self.source, self.names[node]))
        mode = stat.S_IFDIR | 0o755 if node == ROOT else st.st_mode
        return ATTR.pack(node, st.st_size, st.st_blocks, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def request(self, raw: bytes) -> None:
        _, opcode, unique, node, *_ = IN.unpack_from(raw)
        body = raw[IN.size :]
        match OP.get(opcode):
            case "init":
                major, minor, readahead, _flags = struct.unpack_from("<IIII", body)
                out = struct.pack(
                    "<IIIIHHIIHHII24x",
                    7,
                    min(minor, 31),
                    readahead,
                    ASYNC_READ | ASYNC_DIO,
                    64,
                    48,
                    65536,
                    1,
                    0,
                    0,
                    0,
                    0,
                )
                self.reply(unique, out)
            case "lookup":
                name = body.rstrip(b"\0").decode()
                if not os.path.exists(os.path.join(self.source, name)):
                    self.reply(unique, error=errno.ENOENT)
                    return
                child = next((n for n, known in self.names.items() if known == name), len(self.names) + 1)
                self.names[child] = name
                self.reply(unique, struct.pack("<QQQQII", child, 0, 0, 0, 0, 0) + self.attributes(child))
            case "getattr":
                self.reply(unique, struct.pack("<QII", 0, 0, 0) + self.attributes(node))
            case "open":
                fd = os.open(os.path.join(self.source, self.names[node]), os.O_RDONLY)
                self.files[fd] = fd
                self.reply(unique, struct.pack("<QII", fd, 0, 0))
            case "read":
                self.n_reads += 1
                if self.holding:
                    self.held.append((unique, body))
                else:
                    self.read(unique, body)
            case "release":
                (fd,) = struct.unpack_from("<Q", body)
                os.close(self.files.pop(fd))
                self.reply(unique)
            case "statfs":
                self.reply(unique, struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0))
            case "opendir":
                self.reply(unique, struct.pack("<QII", 0, 0, 0))
            case "readdir" | "flush" | "access" | "releasedir" | "destroy":
                self.reply(unique)
            case "forget" | "interrupt":
                pass
            case _:
                self.reply(unique, error=errno.ENOSYS)

    def read(self, unique: int, body: bytes) -> None:
        fd, offset, size = struct.unpack_from("<QQI", body)
        raw = os.pread(fd, size, offset)
        if self.skip > 0:
            self.skip -= 1
        elif self.fault and self.fault[2] != 0:
            kind, value, times = self.fault
            self.fault = kind, value, times - 1 if times > 0 else times
            if kind == "fail":
                self.reply(unique, error=value)
                return
            raw = raw[:value]
        self.reply(unique, raw)

    def close(self) -> None:
        self.libc.umount2(self.mount.encode(), MNT_DETACH)


if __name__ == "__main__":
    served = FaultyFs(*sys.argv[1:3])
    try:
        served.serve()
    finally:
        served.close()
