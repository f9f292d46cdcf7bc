"""Wrong arguments, objects that were never opened, and files that are exchanged or are not files: a sentence each."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from array import array
from pathlib import Path

import pytest
from dsv41_rowstore import (
    HostCall,
    Partition,
    RowFileRefused,
    RowStore,
    RowStoreError,
    pack_layer,
    rows_path,
    verify_rows,
)

from tests.rowstore.bad_drive import expected, fetch, needs_fuse, open_store, outputs

ROOT = str(Path(__file__).parents[2])


def run_apart(code: str, timeout_s: float = 60) -> list[str]:
    """Lines printed by a fresh Python: what crashes or hangs there does not take the tests with it."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.splitlines()


def apart_with_store(paths, code: str) -> list[str]:
    prelude = f"""
        import sys
        sys.path.insert(0, {ROOT!r})
        from array import array
        from dsv41_rowstore import HostCall, Job, RowStore, RowStoreError
        from tests.rowstore.bad_drive import open_store, outputs
        paths = { {layer: str(path) for layer, path in paths.items()}!r}
        def said(call, *args):
            try:
                return f"gave {{call(*args)}}"
            except Exception as error:
                return f"{{type(error).__name__}}: {{error}}"
        """
    return run_apart(textwrap.dedent(prelude) + textwrap.dedent(code))


# ---- objects that were never made ----------------------------------------------------------------------------


def test_a_host_call_for_a_layer_that_is_not_open_or_a_closed_store_is_refused(packed):
    out = apart_with_store(
        packed(0, 1),
        """
        store = open_store(paths)
        print(said(HostCall, store, 3, array("q", [1]), *outputs(1)))
        print(said(HostCall, store, 1, array("i", [1]), *outputs(1)))
        store.close()
        print(said(HostCall, store, 1, array("q", [1]), *outputs(1)))
        print(said(HostCall, RowStore.__new__(RowStore), 1, array("q", [1]), *outputs(1)))
        """,
    )
    assert out[0].startswith("RowStoreError: layer 3 is not open (open layers: [1, 14])")
    assert out[1].startswith("TypeError: ids must be int64")
    assert out[2].startswith("RowStoreError: the row store is closed")
    assert out[3].startswith("RowStoreError: the row store is closed")
    assert len(out) == 4


def test_a_host_call_keeps_its_buffers_when_it_is_initialised_again(packed):
    with open_store(packed(0, 1)) as store:
        call = HostCall(store, 1, array("q", [1]), *outputs(1))
        argument = call.argument
        with pytest.raises(TypeError, match="make another one"):
            call.__init__(store, 1, array("q", [1]), *outputs(1))
        assert call.argument == argument


def test_what_was_made_by_new_alone_raises(packed):
    out = apart_with_store(
        packed(0, 1),
        """
        for kind, names in (
            (Job, ("done", "wait", "cancel", "fileno")),
            (RowStore, ("counters",)),
            (HostCall, ("check", "take")),
        ):
            for name in names:
                print(said(getattr(kind.__new__(kind), name)))
        print(said(lambda: HostCall.__new__(HostCall).n_calls))
        print(said(lambda: HostCall.__new__(HostCall).argument))
        print(said(lambda: RowStore.__new__(RowStore).report))
        print(said(RowStore.__new__(RowStore).close))
        """,
    )
    assert out[:4] == ["TypeError: a Job is made by RowStore.submit"] * 4
    assert out[4] == out[9] == "TypeError: use RowStore.open"
    assert set(out[5:9]) == {"TypeError: this HostCall has no rows: its __init__ did not run to its end"}
    assert out[10:] == ["gave None"]


# ---- a file that is exchanged, or is none ------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["read_header_from", "verify_segments_of"])
def test_a_file_replaced_while_it_is_opened_is_refused(checkpoint_maker, checkpoint, tmp_path, monkeypatch, moment):
    """A pack that finishes between the check of the old file and the engine's open of the new one."""
    from dsv41_rowstore import store as module

    paths = checkpoint.pack(tmp_path / "rows", 0, 1, Partition.BALANCED)
    other = checkpoint_maker(tmp_path / "other", seed=8).pack(tmp_path / "new", 0, 1, Partition.BALANCED)
    real = getattr(module, moment)

    def then_replace(fd, name, *args, **kwargs):
        result = real(fd, name, *args, **kwargs)
        if name == str(paths[1]) and other[1].exists():
            os.rename(other[1], paths[1])
        return result

    monkeypatch.setattr(module, moment, then_replace)
    with pytest.raises(RowFileRefused, match=r"l1-r0of1\.bin was replaced while it was being opened\. Open it again"):
        RowStore.open(paths, rank=0, world_size=1, partition="balanced", revision=checkpoint.revision)
    RowStore.open(paths, rank=0, world_size=1, partition="balanced", revision=checkpoint.revision).close()


def test_opening_leaves_no_descriptors_behind(packed, tmp_path):
    def n_open():
        return len(os.listdir("/proc/self/fd"))

    open_store(packed(0, 1)).close()
    before = n_open()
    open_store(packed(0, 1)).close()
    for layer in (3, 14):
        with pytest.raises(RowFileRefused):
            open_store({14: packed(0, 1)[14], layer: packed(0, 1)[1]})
    assert n_open() == before


def test_a_fifo_in_place_of_a_file_is_refused_and_nobody_waits(packed, tmp_path):
    os.mkfifo(tmp_path / "rows.bin")
    out = run_apart(
        f"""
        from dsv41_rowstore import RowStore, RowStoreError, read_header, verify_rows
        path = {str(tmp_path / "rows.bin")!r}
        def open_store(path):
            RowStore.open({{1: path}}, rank=0, world_size=1, partition="balanced")
        for call in (read_header, verify_rows, open_store):
            try:
                call(path)
            except RowStoreError as error:
                print(error)
        """,
    )
    assert len(out) == 3 and all("rows.bin is not a regular file. Move it away." in line for line in out), out


def pack(checkpoint, out, **kwargs):
    kwargs.setdefault("revision", checkpoint.revision)
    return pack_layer(
        checkpoint.path, out, layer=1, rank=0, world_size=1, partition=Partition.BALANCED, **kwargs
    )


def test_pack_does_not_follow_a_symbolic_link(checkpoint, tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"keep me")
    final = rows_path(tmp_path, 1, 0, 1)
    tmp = final.with_name(final.name + ".tmp")
    for target in (precious, tmp_path / "nowhere"):
        tmp.symlink_to(target)
        with pytest.raises(RowFileRefused, match=r"\.tmp is a symbolic link.*Find out who put it there, remove it"):
            pack(checkpoint, tmp_path)
        assert tmp.is_symlink()
        tmp.unlink()
    assert precious.read_bytes() == b"keep me" and not (tmp_path / "nowhere").exists()
    os.mkfifo(tmp)
    with pytest.raises(RowFileRefused, match=r"\.tmp is not a regular file"):
        pack(checkpoint, tmp_path)
    tmp.unlink()
    pack(checkpoint, tmp_path)


# ---- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("revision", "sentence"),
    [
        ("a" * 128, "the revision name is 128 bytes long; .* at most 127 bytes"),
        ("ä" * 64, "the revision name is 128 bytes long; .* at most 127 bytes"),
        ("ab\0c", r"the revision 'ab\\x00c' has a zero byte"),
        ("ab\udc80", r"the revision 'ab\\udc80' has characters that are not text"),
        (b"abc", "the revision is b'abc', of type bytes"),
        (None, "the revision is None, of type NoneType"),
    ],
)
def test_a_revision_the_header_cannot_hold_is_refused_before_anything_is_written(
    checkpoint, tmp_path, revision, sentence
):
    with pytest.raises(RowFileRefused, match=sentence):
        pack(checkpoint, tmp_path / "rows", revision=revision)
    assert not (tmp_path / "rows").exists()


def test_a_revision_of_127_bytes_reads_back(checkpoint, tmp_path):
    assert pack(checkpoint, tmp_path, revision="r" * 127).revision == "r" * 127


def test_a_check_of_fewer_segments_than_none_is_refused(packed):
    path = packed(0, 1)[1]
    for sample in (-1, 0):
        with pytest.raises(ValueError, match=f"sample is {sample}, expected 1 or more segments"):
            verify_rows(path, sample=sample)
    with pytest.raises(ValueError, match="verify_segments is -1, expected 0 or more segments"):
        RowStore.open({1: path}, rank=0, world_size=1, partition="balanced", verify_segments=-1)


def test_outputs_that_hold_objects_or_pointers_are_refused(packed):
    np = pytest.importorskip("numpy")
    import ctypes

    ids = array("q", [1, 2])
    pair = np.dtype([("O", "u1"), ("P", "u1", (127,))])  # bytes, whatever the names are
    with open_store(packed(0, 1)) as store:
        for weight, scale, which in (
            (np.empty(64, object), bytearray(16), "out_weight must be bytes or numbers, got .*format O"),
            (bytearray(512), np.empty(2, object), "out_scale must be bytes or numbers, got .*format O"),
            (np.empty(32, [("a", "i8"), ("b", object)]), bytearray(16), "out_weight must be bytes or numbers"),
            ((ctypes.c_void_p * 64)(), bytearray(16), "out_weight must be bytes or numbers, got .*format <?P"),
            ((ctypes.POINTER(ctypes.c_int) * 64)(), bytearray(16), "out_weight must be bytes or numbers"),
        ):
            for call in (store.submit, lambda *args: HostCall(store, *args)):
                with pytest.raises(TypeError, match=which):
                    call(1, ids, weight, scale)
        assert np.empty(64, object).tolist() == [None] * 64
        want = fetch(store, 1, [1, 2])
        for weight in (np.zeros((2, 256), np.uint8), np.zeros(4, pair), np.zeros(64, "M8[s]"), np.zeros(256, "f2")):
            scale = np.zeros((2, 8), np.uint8)
            store.gather(1, ids, weight, scale)
            assert (weight.tobytes(), scale.tobytes()) == want


def test_values_of_another_type_that_look_equal_are_told_apart(packed):
    path = packed(0, 1)[1]
    with pytest.raises(RowFileRefused, match="is for layer 1, expected layer '1'"):
        RowStore.open({"1": path}, rank=0, world_size=1, partition="balanced")
    with pytest.raises(RowFileRefused, match="is for rank 0, expected rank '0'"):
        RowStore.open({1: path}, rank="0", world_size=1, partition="balanced")
    with open_store({1: path}) as store, pytest.raises(RowStoreError, match="layer '1' is not open"):
        fetch(store, "1", [1])


def test_no_hint_names_a_command_or_a_setting_that_does_not_exist():
    package = Path(sys.modules["dsv41_rowstore"].__file__).parent
    sources = [*package.glob("*.py"), *(Path(ROOT) / "rowstore/dsv41_rowstore").glob("*.pyx")]
    assert len(sources) > 10
    for source in sources:
        text = source.read_text()
        for wrong in ("dsv41 verify", "dsv41 download", "pack.dir ", "pack.dir,"):
            assert wrong not in text, f"{source.name} says {wrong!r}"


# ---- waits ---------------------------------------------------------------------------------------------------------


@needs_fuse
def test_handled_signals_do_not_lengthen_a_wait(checkpoint, drive):
    """A handler runs every 20 ms and stops after 5 s: a wait that begins anew each time lasts until then."""
    import signal
    import time

    tell, paths = drive
    with open_store(paths) as store:
        tell("hold")
        weight, scale = outputs(1)
        job = store.submit(1, array("q", [8]), weight, scale)
        seen, end = [], time.monotonic() + 5

        def handler(*_):
            seen.append(1)
            if time.monotonic() > end:
                signal.setitimer(signal.ITIMER_REAL, 0)

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        try:
            with pytest.raises(TimeoutError):
                job.wait(timeout_s=0.2)
            assert time.monotonic() < end
            assert seen
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            tell("go")
        job.wait(10)
        assert (bytes(weight), bytes(scale)) == expected(checkpoint, 1, [8])
