"""autotune_keep's directory when the disk is not as it should be. The hook is given a path and needs no engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dsv41_adapters.activation import AdapterRun
from dsv41_adapters.adapter import AdapterRefused, Role
from dsv41_adapters.autotune_keep.install import hooks
from dsv41_adapters.autotune_keep.spec import ADAPTER
from dsv41_adapters.plan import RankPlan
from dsv41_adapters.report import Reporter, read_reports


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    (tmp_path / "reports").mkdir()
    return tmp_path / "reports"


def kept(reports: Path, stock: Path, launch: str = "one") -> Path:
    """The path that the hook gives for SGLang's own."""
    plan = RankPlan("spark", 0, 1, "boot", reports, {}, None, None, launch)
    run = AdapterRun(ADAPTER, ADAPTER.settings(), plan, Reporter(reports, boot="boot", rank=0, role=Role.SCHEDULER))
    (after,) = hooks(run).values()
    return after(stock)


def reason(reports: Path) -> str:
    (report,) = read_reports(reports, "boot")
    return str(report.adapters["autotune_keep"].reason)


@pytest.mark.parametrize("content", [b"", b'{"tactics": [1,', b"[]", b"\xff\xfe\x00", b"[" * 100_000])
def test_a_damaged_file_is_removed_and_not_loaded(reports: Path, tmp_path: Path, content: bytes) -> None:
    """As a power cut leaves it, on every rank alike: SGLang drops a file only when ranks differ."""
    stock = tmp_path / "cache" / "rank_tp0_pp0_dp0.json"
    path = kept(reports, stock)
    path.write_bytes(content)
    assert kept(reports, stock) == path and not path.exists()
    assert reason(reports).endswith(": a damaged file was removed")


def test_a_whole_file_is_found_again_by_its_launch_alone(reports: Path, tmp_path: Path) -> None:
    stock = tmp_path / "cache" / "rank_tp0_pp0_dp0.json"
    path = kept(reports, stock)
    path.write_text('{"a": 1}')
    assert kept(reports, stock).read_text() == '{"a": 1}'
    assert reason(reports).endswith(": tactics of an earlier boot")
    assert not kept(reports, stock, "two").exists()
    assert json.loads((path.parent / "about").read_text())["launch"] == "one"


@pytest.mark.parametrize("broken", ["directory", "about", "file"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_tuned(
    reports: Path, tmp_path: Path, broken: str
) -> None:
    stock = tmp_path / "cache" / "rank_tp0_pp0_dp0.json"
    path = kept(reports, stock)
    if broken == "directory":
        (path.parent / "about").unlink()
        path.parent.rmdir()
        path.parent.write_text("")
    elif broken == "about":
        (path.parent / "about").unlink()
        (path.parent / "about").mkdir()
    else:
        path.mkdir()
    with pytest.raises(AdapterRefused) as refused:
        kept(reports, stock)
    assert refused.value.code == 78
    assert "Let the engine's user write there." in reason(reports)
