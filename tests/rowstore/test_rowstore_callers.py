"""Impatient callers, two callers at once, and closing, while the drive holds their reads back."""

from __future__ import annotations

import gc
import os
import select
import subprocess
import sys
import textwrap
import threading
from array import array
from pathlib import Path

import pytest
from dsv41_rowstore import RowStoreError

from tests.rowstore.bad_drive import ENGINES, expected, fetch, having, needs_fuse, open_store, outputs, wait_until

ROOT = str(Path(__file__).parents[2])


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
        before = int(tell("reads"))  # opening reads too
        jobs = [store.submit(1, array("q", ids), weight, scale)]
        wait_until(lambda: int(tell("reads")) > before, "a read")
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
@pytest.mark.parametrize("engine", [having("uring"), having("threads")])
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
            sys.path.insert(0, {ROOT!r})
            from array import array
            from pathlib import Path
            from tests.rowstore.bad_drive import Faulty, open_store
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
