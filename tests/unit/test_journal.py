"""Lines reach journald with their fields; every event that is declared is explained in the catalog, and used."""

from __future__ import annotations

import logging
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from dsv41_supervisor import journal
from dsv41_supervisor.journal import Event, JournalHandler, event, fields

ENTRY = re.compile(r"^-- ([0-9a-f]{32})\nSubject: (.+)\nDefined-By: dsv41\n\n((?:.+\n|\n)+?)(?=^-- |\Z)", re.M)


def entries(repo_root: Path) -> dict[str, str]:
    text = (repo_root / "modules/dsv41.catalog").read_text()
    found = ENTRY.findall(text)
    assert len(found) == len(re.findall(r"^-- ", text, re.M)), "an entry has another shape"
    return {message_id: body for message_id, _, body in found}


def test_every_event_is_explained_once_and_nothing_else_is(repo_root: Path) -> None:
    explained = entries(repo_root)
    declared = {kind.value: kind.name for kind in Event}
    assert [name for message_id, name in declared.items() if message_id not in explained] == []
    assert [message_id for message_id in explained if message_id not in declared] == []
    assert len(declared) == len(Event.__members__), "two events share an id"


def test_no_event_is_declared_and_never_logged(repo_root: Path) -> None:
    sources = "".join(
        path.read_text() for path in (repo_root / "supervisor").rglob("*.py") if path.name != "journal.py"
    )
    assert [kind.name for kind in Event if f"Event.{kind.name}" not in sources] == []


def test_ids_named_in_the_catalogs_texts_exist(repo_root: Path) -> None:
    named = {found for body in entries(repo_root).values() for found in re.findall(r"\b[0-9a-f]{32}\b", body)}
    assert named <= {kind.value for kind in Event}


def test_systemd_reads_the_catalog(repo_root: Path, tmp_path: Path) -> None:
    if shutil.which("journalctl") is None:
        pytest.skip("journalctl is not installed")
    target = tmp_path / "usr/lib/systemd/catalog"
    target.mkdir(parents=True)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    shutil.copy(repo_root / "modules/dsv41.catalog", target)
    made = subprocess.run(["journalctl", f"--root={tmp_path}", "--update-catalog"], capture_output=True, text=True)
    assert (made.returncode, made.stdout + made.stderr) == (0, "")
    listed = subprocess.run(
        ["journalctl", f"--root={tmp_path}", "--list-catalog"], capture_output=True, text=True, check=True
    ).stdout
    assert {line[:32] for line in listed.splitlines()} == {kind.value for kind in Event}


@pytest.fixture
def received(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A stand-in for journald's socket, and this process's log going there."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(str(tmp_path / "socket"))
    server.settimeout(5)
    handler = JournalHandler(str(tmp_path / "socket"))
    handler.addFilter(journal._FieldFilter())
    logger = logging.getLogger("dsv41")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel("DEBUG")
    yield lambda: parsed(server.recv(1 << 20))
    logger.setLevel(before)
    logger.removeHandler(handler)
    handler.close()
    server.close()


def parsed(raw: bytes) -> dict[str, str]:
    """A datagram of the native protocol, read by its description and not by our writer."""
    found = {}
    while raw:
        name, _, rest = raw.partition(b"\n")
        if b"=" in name:
            key, _, value = name.partition(b"=")
            raw = rest
        else:
            size = int.from_bytes(rest[:8], "little")
            key, value, raw = name, rest[8 : 8 + size], rest[8 + size + 1 :]
        assert re.fullmatch(rb"[A-Z][A-Z0-9_]*", key), key
        found[key.decode()] = value.decode()
    return found


def test_an_event_carries_its_id_and_the_fields_of_its_stage(received) -> None:  # type: ignore[no-untyped-def]
    with fields(node="spark2", rank=1, boot="b-1"):
        event(Event.RANK_LOST, "rank 1 failed", logging.ERROR, stage="rank", peer="spark1")
    line = received()
    assert line["MESSAGE"] == "rank 1 failed"
    assert line["MESSAGE_ID"] == Event.RANK_LOST.value
    assert line["PRIORITY"] == "3"
    wanted = {"NODE": "spark2", "RANK": "1", "BOOT": "b-1", "STAGE": "rank", "PEER": "spark1", "EVENT": "RANK_LOST"}
    assert {k.removeprefix("DSV41_"): v for k, v in line.items() if k.startswith("DSV41_")} == wanted


def test_several_lines_and_an_exception_stay_one_message(received) -> None:  # type: ignore[no-untyped-def]
    try:
        raise ValueError("first\nsecond=3")
    except ValueError:
        logging.getLogger("dsv41").exception("it failed")
    line = received()
    assert line["MESSAGE"].startswith("it failed\nTraceback")
    assert line["MESSAGE"].endswith("ValueError: first\nsecond=3")
    assert line["CODE_FUNC"] == "test_several_lines_and_an_exception_stay_one_message"


def test_a_message_larger_than_a_datagram_is_cut_and_not_lost(received) -> None:  # type: ignore[no-untyped-def]
    logging.getLogger("dsv41").warning("x" * (4 << 20))
    assert set(received()["MESSAGE"]) == {"x"}


def test_a_journal_that_is_away_does_not_hold_the_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = JournalHandler(str(tmp_path / "nobody"))
    record = logging.LogRecord("dsv41", logging.ERROR, __file__, 1, "lost %s", ("words",), None)
    handler.emit(record)
    handler.close()
    assert "lost words" in capsys.readouterr().err
