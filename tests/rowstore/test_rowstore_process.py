"""What the process and its machine may do: fork, run out of descriptors or locked memory, forbid system calls."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from array import array
from pathlib import Path

import pytest
from dsv41_rowstore import Partition

from tests.rowstore.bad_drive import ENGINES, USABLE, expected, fetch, having, open_store, outputs


def in_child(body) -> str:
    """Run body() in a forked child; what it returns, or the exception's text."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(body())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write_end, said.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return said


@pytest.mark.parametrize("engine", ENGINES)
def test_a_forked_child_is_told_to_open_its_own(checkpoint, packed, engine):
    with open_store(packed(0, 1), engine=engine, cache_bytes=1 << 20) as store:
        fetch(store, 1, [1])
        assert "opened before a fork" in in_child(lambda: fetch(store, 1, [1]))
        assert "opened before a fork" in in_child(
            lambda: store.submit(1, array("q", [2]), *outputs(1)).wait()
        )
        job = store.submit(1, array("q", [3]), *outputs(1))
        assert "opened before a fork" in in_child(job.fileno)
        assert fetch(store, 1, [1, 2, 3]) == expected(checkpoint, 1, [1, 2, 3])


@pytest.mark.skipif(
    "DSV41_UNDER_QEMU" in os.environ,
    reason="qemu-user 7.2 aborts when a forked child starts a thread (qemu_plugin_vcpu_init_hook)",
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_forked_child_can_drop_what_it_inherited_and_open_its_own(checkpoint, packed, engine):
    with open_store(packed(0, 1), engine=engine, cache_bytes=1 << 20) as store:
        fetch(store, 1, [1])
        job = store.submit(1, array("q", [1, 700]), *outputs(2))

        def drop_all():
            nonlocal store, job
            store.close()
            job.cancel()
            job = store = None
            gc.collect()
            with open_store(packed(0, 1), engine=engine) as own:
                return fetch(own, 1, [2]) == expected(checkpoint, 1, [2])

        assert in_child(drop_all) == "True"
        job.wait(10)
        assert fetch(store, 1, [1, 2, 3]) == expected(checkpoint, 1, [1, 2, 3])


def test_forks_while_reads_are_under_way_do_not_disturb_them(checkpoint, packed):
    ids = list(range(checkpoint.geometry[1].n_rows))
    want = expected(checkpoint, 1, ids)
    with open_store(packed(0, 1), queue_depth=16) as store:
        for _ in range(12):
            weight, scale = outputs(len(ids))
            job = store.submit(1, array("q", ids), weight, scale)
            assert in_child(lambda: "child") == "child"
            job.wait(20)
            assert (bytes(weight), bytes(scale)) == want


def run_apart(paths, code):
    prelude = f"""
        import os, resource
        from array import array
        from dsv41_rowstore import RowStore, RowStoreError
        def open_store(**kwargs):
            return RowStore.open({ {k: str(v) for k, v in paths.items()}!r}, rank=0, world_size=1,
                                 partition="balanced", cache_bytes=1 << 20, **kwargs)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


READ_ONE = """
        weight, scale = bytearray(256), bytearray(8)
        store.gather(1, array("q", [5]), weight, scale)
        print(bytes(weight).hex())
        """


@pytest.fixture
def for_all():
    """A directory that another user can reach; pytest's own are for one user."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.mark.skipif(os.geteuid() != 0 or "uring" not in USABLE, reason="changes its user id; needs io_uring")
@pytest.mark.parametrize(("limit_bytes", "registered"), [(64 << 10, False), (8 << 20, True)])
def test_a_small_memlock_limit_costs_the_registered_buffers_and_nothing_else(
    checkpoint, for_all, limit_bytes, registered
):
    """As an ordinary user: root may lock any amount. 8 MiB is what systemd gives by default, and enough."""
    paths = checkpoint.pack(for_all, 0, 1, Partition.BALANCED)
    code = f"""
        resource.setrlimit(resource.RLIMIT_MEMLOCK, ({limit_bytes}, {limit_bytes}))
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        store = open_store(engine="uring")
        print(os.geteuid(), store.report["engine"], store.report["direct"], store.report["registered_buffers"])
        """
    out = run_apart(paths, textwrap.dedent(code) + textwrap.dedent(READ_ONE))
    assert out == [f"65534 uring True {registered}", expected(checkpoint, 1, [5])[0].hex()]


def test_no_file_descriptors_left_is_one_sentence(packed):
    code = """
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for n in range(6):
            try:
                store = open_store()
                print("opened")
                store.close()
                break
            except (RowStoreError, OSError) as error:
                print(type(error).__name__, "Too many open files" in str(error))
            os.close(held.pop())
        """
    out = run_apart(packed(0, 1), code)
    assert out[-1] == "opened" or all(line.endswith("True") for line in out), out
    assert all(line.endswith("True") for line in out[:-1]), out


SECCOMP = """
        import ctypes, struct
        libc = ctypes.CDLL(None, use_errno=True)
        def refuse(*numbers):
            load = struct.pack("HBBI", 0x20, 0, 0, 0)
            tests = b"".join(
                struct.pack("HBBIHBBI", 0x15, 0, 1, n, 0x06, 0, 0, 0x50001) for n in numbers
            )
            program = load + tests + struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
            buffer = ctypes.create_string_buffer(program)
            class Prog(ctypes.Structure):
                _fields_ = [("n", ctypes.c_ushort), ("code", ctypes.c_void_p)]
            prog = Prog(len(program) // 8, ctypes.addressof(buffer))
            assert libc.prctl(38, 1, 0, 0, 0) == 0
            assert libc.syscall(317, 1, 1, ctypes.byref(prog)) == 0, ctypes.get_errno()  # seccomp, of all threads
        """


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers of x86-64")
@pytest.mark.parametrize(
    ("refused", "engine", "tried"),
    [
        ((425,), "aio", "uring direct: Operation not permitted"),
        ((425, 206), "threads", "aio direct: Operation not"),
        ((426,), "aio", "uring direct: Operation not permitted"),
        ((426, 209), "threads", "aio direct: Operation not"),
    ],
)
def test_a_container_that_forbids_io_uring_gets_the_next_engine_and_says_so(
    checkpoint, packed, refused, engine, tried
):
    code = f"""
        refuse(*{refused!r})
        store = open_store()
        print(store.report["engine"], store.report["direct"])
        print("; ".join(store.report["tried"]))
        """
    out = run_apart(
        packed(0, 1), textwrap.dedent(SECCOMP) + textwrap.dedent(code) + textwrap.dedent(READ_ONE)
    )
    assert out[0] == f"{engine} True"
    assert tried in out[1]
    assert out[2] == expected(checkpoint, 1, [5])[0].hex()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers of x86-64")
@pytest.mark.parametrize(("engine", "call"), [having("uring", 426), having("aio", 209)])
def test_an_engine_that_stops_working_fails_every_job_and_the_store_still_closes(checkpoint, packed, engine, call):
    """The kernel refuses the ring's system call from one moment on; the next open takes another engine."""
    code = f"""
        from dsv41_rowstore import EngineFailed
        store = open_store(engine={engine!r})
        waiting = store.submit(1, array("q", [3]), bytearray(256), bytearray(8))
        waiting.wait()
        refuse({call})
        for _ in range(3):
            try:
                store.gather(1, array("q", range(600)), bytearray(256 * 600), bytearray(8 * 600))
            except EngineFailed as error:
                print(error)
        store.close()
        store = open_store()
        print(store.report["engine"] != {engine!r})
        """
    out = run_apart(packed(0, 1), textwrap.dedent(SECCOMP) + textwrap.dedent(code) + textwrap.dedent(READ_ONE))
    sentence = "the row store's I/O thread stopped: Operation not permitted. Restart this rank; if it happens again"
    assert len(out) == 5 and all(line.startswith(sentence) for line in out[:3]), out
    assert out[3:] == ["True", expected(checkpoint, 1, [5])[0].hex()]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a tmpfs")
def test_a_file_system_without_direct_io_is_read_through_the_page_cache(checkpoint, tmp_path):
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        paths = checkpoint.pack(directory, 0, 1, Partition.BALANCED)
        with open_store(paths) as store:
            ids = list(range(1500))
            assert fetch(store, 1, ids) == expected(checkpoint, 1, ids)
            assert store.report["engine"] in USABLE
        for engine in {"uring", "threads"} & set(USABLE):
            with open_store(paths, engine=engine, direct=False) as store:
                assert store.report["direct"] is False
                assert fetch(store, 1, ids) == expected(checkpoint, 1, ids)
    finally:
        shutil.rmtree(directory)


def test_a_misaligned_read_size_is_refused_by_name(packed):
    for size in (8, 500, 1000, 1 << 20):
        with pytest.raises(ValueError, match=f"read_bytes is {size}, expected a power of two from"):
            open_store(packed(0, 1), read_bytes=size)
