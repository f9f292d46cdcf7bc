"""The failure table: what a bad drive, a changed file, a fork, a limit or an impatient caller may do.

Read faults come from a FUSE directory (faulty_fs.py), so each engine meets them where a drive would put them.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import subprocess
import sys
import textwrap
import threading
import time
from array import array
from pathlib import Path

import pytest
from dsv41_rowstore import Partition, RowStore, RowStoreError, StoreCorrupt, verify_rows

HERE = Path(__file__).parent
ENGINES = ["uring", "aio", "threads"]
needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse"),
    reason="needs root and /dev/fuse to mount a bad drive",
)


class Faulty:
    def __init__(self, source: Path, mount: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "faulty_fs.py"), str(source), str(mount)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if self.process.stdout.readline().strip() != "ready":
            self.process.wait(10)
            pytest.skip("FUSE cannot be mounted here")

    def __call__(self, command: str) -> str:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def drive(checkpoint, packed, tmp_path):
    """(tell, paths): the packed files of a world of one, behind a drive that does as it is told."""
    real = packed(0, 1)
    mount = tmp_path / "mount"
    mount.mkdir()
    tell = Faulty(real[1].parent, mount)
    yield tell, {layer: mount / path.name for layer, path in real.items()}
    tell("go")
    tell("end")
    tell.process.wait(10)


def open_store(paths, **kwargs):
    return RowStore.open(
        paths,
        rank=0,
        world_size=1,
        partition=Partition.BALANCED,
        verify_segments=0,
        **{"cache_bytes": 0, **kwargs},
    )


def outputs(n):
    return bytearray(b"\xaa" * 256 * n), bytearray(b"\xaa" * 8 * n)


def fetch(store, layer, ids):
    weight, scale = outputs(len(ids))
    store.gather(layer, array("q", ids), weight, scale)
    return bytes(weight), bytes(scale)


def expected(checkpoint, layer, ids):
    return checkpoint.expected(layer, ids, 0, 1, Partition.BALANCED)


def wait_until(condition, what, deadline_s=10.0):
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {deadline_s} s"
        time.sleep(0.002)


# ---- the drive ---------------------------------------------------------------------------------------------


@needs_fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_a_read_that_fails_once_is_tried_again(checkpoint, drive, engine):
    tell, paths = drive
    with open_store(paths, engine=engine) as store:
        tell(f"fail {errno.EIO} 1")
        assert fetch(store, 1, [4, 9, 400]) == expected(checkpoint, 1, [4, 9, 400])
        counters = store.counters()
        assert (counters["retries"], counters["failed_reads"], counters["device_reads"]) == (1, 0, 3)


@needs_fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_sector_fails_the_job_by_name_and_leaves_the_store_usable(checkpoint, drive, engine):
    tell, paths = drive
    with open_store(paths, engine=engine, cache_bytes=1 << 20) as store:
        tell(f"fail {errno.EIO} -1")
        job = store.submit(14, array("q", [77, 77]), *outputs(2))
        for _ in range(2):  # the same answer however often it is asked
            with pytest.raises(
                StoreCorrupt, match=r"reading row 77 of .*engram-l14-r0of1.bin at byte \d+ failed: Input"
            ):
                job.wait()
        with pytest.raises(StoreCorrupt) as error:
            fetch(store, 14, [77])
        at = 4096 + 264 * 77
        assert (error.value.row, error.value.offset_bytes, error.value.errno) == (77, at, errno.EIO)
        assert error.value.path == str(paths[14])
        tell("fail 0 0")
        assert fetch(store, 14, [77, 3]) == expected(checkpoint, 14, [77, 3])


@needs_fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_one_bad_row_among_many_fails_the_job_and_only_it(checkpoint, drive, engine):
    tell, paths = drive
    ids = list(range(0, 1200, 5))
    with open_store(paths, engine=engine, cache_bytes=1 << 20) as store:
        tell("skip 100")
        tell(f"fail {errno.EIO} -1")
        bad = store.submit(1, array("q", ids), *outputs(len(ids)))
        with pytest.raises(StoreCorrupt):
            bad.wait()
        tell("fail 0 0")
        assert fetch(store, 1, ids) == expected(checkpoint, 1, ids)
        assert fetch(store, 14, ids) == expected(checkpoint, 14, ids)


@needs_fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_a_short_read_is_completed_or_refused_never_passed_on(checkpoint, drive, engine):
    tell, paths = drive
    ids = [0, 1, 2, 500, 501, 900]
    with open_store(paths, engine=engine) as store:
        for n_bytes in (0, 100, 263, 500):
            tell(f"short {n_bytes} 1")
            assert fetch(store, 1, ids) == expected(checkpoint, 1, ids)
        tell("short 0 -1")
        with pytest.raises(StoreCorrupt, match="the file ends there"):
            fetch(store, 1, ids)
        tell("short 0 0")
        assert fetch(store, 1, ids) == expected(checkpoint, 1, ids)


@needs_fuse
def test_a_segment_that_cannot_be_read_is_not_verified(drive):
    tell, paths = drive
    tell("skip 2")  # the header and the table
    tell(f"fail {errno.EIO} -1")
    with pytest.raises(StoreCorrupt, match="segment 0 of .* failed|cannot be read|Input/output"):
        verify_rows(paths[1])
    tell("fail 0 0")


# ---- the file changes under us -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_cut_short_after_open_is_an_error_not_a_signal(checkpoint, tmp_path, engine):
    paths = checkpoint.pack(tmp_path, 0, 1, Partition.BALANCED)
    n_rows = checkpoint.geometry[1].n_rows
    with open_store(paths, engine=engine) as store:
        os.truncate(paths[1], 8192)
        assert fetch(store, 1, [0, 3]) == expected(checkpoint, 1, [0, 3])
        with pytest.raises(StoreCorrupt, match=r"it is 8192 bytes long, it was \d+ when it was opened"):
            fetch(store, 1, [n_rows - 1])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_replaced_or_removed_file_goes_on_being_read(checkpoint, checkpoint_maker, tmp_path, engine):
    """The packer renames a new file into place: a running rank keeps the rows it was started with."""
    paths = checkpoint.pack(tmp_path, 0, 1, Partition.BALANCED)
    other = checkpoint_maker(tmp_path / "other", seed=99)
    with open_store(paths, engine=engine) as store:
        other.pack(tmp_path, 0, 1, Partition.BALANCED)
        assert fetch(store, 1, [5, 800]) == expected(checkpoint, 1, [5, 800])
        paths[1].unlink()
        assert fetch(store, 1, [6, 801]) == expected(checkpoint, 1, [6, 801])
    with open_store({14: paths[14]}, engine=engine) as store:
        assert fetch(store, 14, [5]) == other.expected(14, [5], 0, 1, Partition.BALANCED)


def test_open_refuses_a_damaged_segment(checkpoint, tmp_path):
    paths = checkpoint.pack(tmp_path, 0, 1, Partition.BALANCED)
    with open(paths[1], "r+b") as file:
        file.seek(4096 + 264 * 9)
        file.write(b"?")
    with pytest.raises(StoreCorrupt, match="segment 0 of .* does not match its checksum"):
        RowStore.open(paths, rank=0, world_size=1, partition=Partition.BALANCED, cache_bytes=0)


# ---- callers -----------------------------------------------------------------------------------------------


@needs_fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_a_wait_that_times_out_leaves_the_job_running(checkpoint, drive, engine):
    tell, paths = drive
    with open_store(paths, engine=engine) as store:
        tell("hold")
        weight, scale = outputs(2)
        job = store.submit(1, array("q", [8, 9]), weight, scale)
        with pytest.raises(TimeoutError, match=r"layer 1 did not arrive in 0\.02 s"):
            job.wait(timeout_s=0.02)
        assert not job.done() and not select.select([job], [], [], 0)[0]
        tell("go")
        assert select.select([job], [], [], 10)[0]
        job.wait(timeout_s=10)
        assert (bytes(weight), bytes(scale)) == expected(checkpoint, 1, [8, 9])


@needs_fuse
@pytest.mark.parametrize("how", ["cancel", "drop"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_cancelled_job_keeps_its_buffers_until_the_reads_under_way_are_over(checkpoint, drive, engine, how):
    tell, paths = drive
    ids = list(range(600))
    with open_store(paths, engine=engine, queue_depth=8) as store:
        tell("hold")
        weight, scale = outputs(len(ids))
        jobs = [store.submit(1, array("q", ids), weight, scale)]
        wait_until(lambda: int(tell("reads")) >= 1, "a read")
        begun, over = threading.Event(), threading.Event()

        def stop():
            begun.set()
            if how == "cancel":
                jobs[0].cancel()
            else:
                jobs.clear()
                gc.collect()
            over.set()

        thread = threading.Thread(target=stop)
        thread.start()
        assert begun.wait(10)
        assert not over.wait(0.1)  # reads are under way, so the outputs are not ours yet
        with pytest.raises(BufferError):
            weight.append(0)
        tell("go")
        assert over.wait(10)
        thread.join()
        weight.append(0)  # nobody holds it any more
        assert store.counters()["device_reads"] < len(ids)
        if how == "cancel":
            with pytest.raises(RowStoreError, match="cancelled"):
                jobs[0].wait()
        assert fetch(store, 1, ids) == expected(checkpoint, 1, ids)


@needs_fuse
@pytest.mark.parametrize("engine", ["uring", "threads"])
def test_two_callers_that_miss_the_same_row_read_it_once(checkpoint, drive, engine):
    tell, paths = drive
    with open_store(paths, engine=engine, cache_bytes=1 << 20) as store:
        tell("hold")
        first, second = outputs(2), outputs(3)
        jobs = [
            store.submit(1, array("q", [30, 31]), *first),
            store.submit(1, array("q", [31, 30, 32]), *second),
        ]
        wait_until(lambda: store.counters()["device_reads"] == 3, "the third read")
        tell("go")
        for job in jobs:
            job.wait(10)
        assert tuple(map(bytes, first)) == expected(checkpoint, 1, [30, 31])
        assert tuple(map(bytes, second)) == expected(checkpoint, 1, [31, 30, 32])
        assert (store.counters()["device_reads"], store.counters()["merged"]) == (3, 2)


@needs_fuse
@pytest.mark.parametrize("engine", ENGINES)
def test_close_serves_what_is_under_way_and_refuses_what_comes_after(checkpoint, drive, engine):
    tell, paths = drive
    store = open_store(paths, engine=engine)
    tell("hold")
    weight, scale = outputs(50)
    job = store.submit(1, array("q", range(50)), weight, scale)
    closer = threading.Thread(target=store.close)
    closer.start()

    def refused():
        try:
            store.submit(1, array("q", [1]), *outputs(1))
        except RowStoreError as error:
            return "is closed" in str(error)
        return False

    wait_until(refused, "the refusal of new work")
    assert not job.done()
    tell("go")
    closer.join(10)
    assert not closer.is_alive() and job.done()
    job.wait()
    assert (bytes(weight), bytes(scale)) == expected(checkpoint, 1, list(range(50)))
    store.close()


def test_a_signal_ends_a_wait(checkpoint, drive_script):
    code = """
        import signal
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        tell("hold")
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        job = store.submit(1, array("q", [1, 2]), bytearray(512), bytearray(16))
        try:
            job.wait(20)
            print("waited")
        except KeyboardInterrupt:
            print("interrupted")
        tell("go")
        job.wait(20)
        print("done")
    """
    assert drive_script(code).split() == ["interrupted", "done"]


@pytest.fixture
def drive_script(checkpoint, packed, tmp_path):
    """Run code in a fresh Python with `store` open on a faulty drive and `tell` to talk to it."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse to mount a bad drive")

    def run(code):
        real = packed(0, 1)
        mount = tmp_path / "mount"
        mount.mkdir()
        paths = {layer: str(mount / path.name) for layer, path in real.items()}
        prelude = f"""
            import sys
            sys.path.insert(0, {str(HERE)!r})
            from array import array
            from pathlib import Path
            from test_rowstore_faults import Faulty, open_store
            tell = Faulty(Path({str(real[1].parent)!r}), Path({str(mount)!r}))
            store = open_store({paths!r})
            """
        end = "store.close()\ntell('end')\ntell.process.wait(10)\n"
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code) + end],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


# ---- the process -------------------------------------------------------------------------------------------


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
        job = store.submit(1, array("q", [1, 700]), *outputs(2))
        assert "opened before a fork" in in_child(lambda: fetch(store, 1, [1]))
        assert "opened before a fork" in in_child(
            lambda: store.submit(1, array("q", [2]), *outputs(1)).wait()
        )

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


def run_limited(paths, limit, code):
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
        capture_output=True, text=True, timeout=60, preexec_fn=limit,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


READ_ONE = """
        weight, scale = bytearray(256), bytearray(8)
        store.gather(1, array("q", [5]), weight, scale)
        print(bytes(weight).hex())
        """


@pytest.mark.skipif(os.geteuid() != 0, reason="changes its user id")
def test_a_small_memlock_limit_costs_registration_and_nothing_else(checkpoint, packed, tmp_path):
    paths = packed(0, 1)

    def limit():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))

    code = """
        store = open_store()
        print(store.report["engine"], store.report["registered_buffers"])
        """
    out = run_limited(paths, limit, textwrap.dedent(code) + textwrap.dedent(READ_ONE))
    # root may lock without limit (CAP_IPC_LOCK), so this says False only for an ordinary user
    assert out[0].split()[0] in ENGINES
    assert out[1] == expected(checkpoint, 1, [5])[0].hex()


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
    out = run_limited(packed(0, 1), None, code)
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
            assert libc.prctl(22, 2, ctypes.byref(prog), 0, 0) == 0, ctypes.get_errno()
        """


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers of x86-64")
@pytest.mark.parametrize(
    ("refused", "engine", "tried"),
    [
        ((425,), "aio", "uring direct: Operation not permitted"),
        ((425, 206), "threads", "aio direct: Operation not"),
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
    out = run_limited(
        packed(0, 1), None, textwrap.dedent(SECCOMP) + textwrap.dedent(code) + textwrap.dedent(READ_ONE)
    )
    assert out[0] == f"{engine} True"
    assert tried in out[1]
    assert out[2] == expected(checkpoint, 1, [5])[0].hex()


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a tmpfs")
def test_a_file_system_without_direct_io_is_read_through_the_page_cache(checkpoint, tmp_path):
    import shutil
    import tempfile

    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        paths = checkpoint.pack(directory, 0, 1, Partition.BALANCED)
        with open_store(paths) as store:
            ids = list(range(1500))
            assert fetch(store, 1, ids) == expected(checkpoint, 1, ids)
            assert store.report["engine"] in ENGINES
        for engine in ("uring", "threads"):
            with open_store(paths, engine=engine, direct=False) as store:
                assert store.report["direct"] is False
                assert fetch(store, 1, ids) == expected(checkpoint, 1, ids)
    finally:
        shutil.rmtree(directory)


def test_a_misaligned_read_size_is_refused_by_name(packed):
    for size in (8, 500, 1000, 1 << 20):
        with pytest.raises(ValueError, match=f"read_bytes is {size}, expected a power of two from"):
            open_store(packed(0, 1), read_bytes=size)
