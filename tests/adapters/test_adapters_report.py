from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
from dsv41_adapters.adapter import Role, State
from dsv41_adapters.report import CounterPage, Reporter, read_counters, read_reports

BOOT = "20261129T221500-4f1c9a2e"


def reporter(directory: Path, role: Role = Role.SCHEDULER, boot: str = BOOT) -> Reporter:
    return Reporter(directory, boot=boot, rank=1, role=role)


def test_a_report_says_what_is_armed_where(tmp_path: Path) -> None:
    writer = reporter(tmp_path)
    writer.set("engram_nvme", State.ARMED, targets=["module:Name"])
    writer.write()
    writer.set("engram_nvme", State.ENGAGED)
    writer.write()
    (report,) = read_reports(tmp_path, BOOT)
    assert (report.pid, report.role, report.rank) == (os.getpid(), "scheduler", 1)
    said = report.adapters["engram_nvme"]
    assert (said.state, said.reason, said.targets) == ("engaged", None, ("module:Name",))
    assert report.path.name == f"armed-scheduler-{os.getpid()}.json"
    assert json.loads(report.path.read_text())["format"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [report.path.name]


def test_another_boots_report_is_not_read(tmp_path: Path) -> None:
    reporter(tmp_path, boot="20261128T000000-00000000").write()
    assert read_reports(tmp_path, BOOT) == []


@pytest.mark.parametrize(
    "content",
    [b"", b'{"format": 1, "boot"', b"[]", b"null", b'{"format": 2}', b"\xff\xfe",
     b'{"format": 1, "boot": "b", "pid": 1, "role": "chef", "rank": 0, "adapters": {}}',
     b'{"format": 1, "boot": "b", "pid": 1, "role": "other", "rank": 0, "adapters": {"a": {"state": "on"}}}'],
)  # fmt: skip
def test_a_torn_or_foreign_report_is_skipped_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    reporter(tmp_path).write()
    torn = tmp_path / "armed-scheduler-99.json"
    torn.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert len(read_reports(tmp_path, BOOT)) == 1
    (record,) = caplog.records
    assert str(torn) in record.getMessage()


def test_no_directory_is_no_report(tmp_path: Path) -> None:
    assert read_reports(tmp_path / "none", BOOT) == []
    assert read_counters(tmp_path / "none", BOOT) == {}


def test_counters_are_a_page_for_each_adapter_summed_over_processes(tmp_path: Path) -> None:
    one = reporter(tmp_path).counters("engram_nvme", ["engram_lookups", "engram_rows_read"])
    two = reporter(tmp_path, Role.OTHER).counters("engram_nvme", ["engram_lookups"])
    beside = reporter(tmp_path).counters("loop_abort", ["loops_found"])
    beside.set("loops_found", 1)
    another = reporter(tmp_path, Role.LAUNCHER, boot="another")
    another.counters("engram_nvme", ["engram_lookups"]).set("engram_lookups", 7)
    one.set("engram_lookups", 40)
    one.set("engram_rows_read", 1 << 40)
    two.set("engram_lookups", 2)
    assert read_counters(tmp_path, BOOT) == {"engram_lookups": 42, "engram_rows_read": 1 << 40, "loops_found": 1}
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {4096}


@pytest.mark.parametrize("content", [b"", b"x" * 4096, b"[]".ljust(4096), b'{"format":1,"names":[1]}'.ljust(4096)])
def test_a_torn_counter_page_is_skipped(tmp_path: Path, content: bytes) -> None:
    reporter(tmp_path).counters("engram_nvme", ["engram_lookups"]).set("engram_lookups", 3)
    (tmp_path / "counters-scheduler-1").write_bytes(content)
    assert read_counters(tmp_path, BOOT) == {"engram_lookups": 3}


def test_more_counters_than_a_page_holds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="257 counters do not fit"):
        CounterPage(tmp_path / "counters-other-1", boot=BOOT, names=[str(i) for i in range(257)])
