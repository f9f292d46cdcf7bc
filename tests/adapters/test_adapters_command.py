from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from dsv41_adapters.adapter import Role, State
from dsv41_adapters.registry import discover
from dsv41_adapters.report import Reporter
from dsv41_supervisor.commands import adapters
from dsv41_supervisor.errors import Dsv41Error
from dsv41_supervisor.rank.plan import Boot, launch_plan
from dsv41_supervisor.settings import parse

from tests.unit.fleets import with_value


def dsv41(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    adapters.register(parser.add_subparsers())
    args = parser.parse_args(["adapters", *arguments])
    return args.run(args)


def test_every_adapter_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert dsv41("--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == set(discover())
    assert all(set(row) == {"name", "state", "reason", "targets", "status"} for row in rows)
    assert {row["state"] for row in rows} == {"off"}
    assert dsv41() == 0
    assert "engram_nvme" in capsys.readouterr().out


def test_fit_refuses_an_engine_whose_targets_are_gone(
    engine_tree: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = engine_tree("")
    assert dsv41("fit", "--engine", str(root), "--json") == 78
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["fits"] is False
    assert {target["found"] for adapter in report["adapters"] for target in adapter["targets"]} == {None}
    assert "engine: adapter engram_nvme does not fit: sglang.srt.layers.engram:EngramEmbedding is missing." in err
    assert dsv41("fit", "--engine", str(root)) == 78


def test_fit_says_where_it_looked_for_an_engine(tmp_path: Path) -> None:
    with pytest.raises(Dsv41Error, match="holds no SGLang") as refused:
        dsv41("fit", "--engine", str(tmp_path))
    assert refused.value.exit_status == 69


def test_settings_and_node_go_together(tmp_path: Path) -> None:
    with pytest.raises(Dsv41Error, match="--settings and --node go together. Give both or none."):
        dsv41("--settings", str(tmp_path / "fleet.json"))


@pytest.fixture
def fleet(tmp_path: Path) -> Callable[..., Path]:
    """Settings of a fleet whose reports are below this test's directory; keywords are `adapters`."""

    def write(**adapters_asked: object) -> Path:
        document = with_value("adapters", adapters_asked)
        document["supervisor"] = {"run_dir": f"{tmp_path}/{{node}}"}
        path = tmp_path / "fleet.json"
        path.write_text(json.dumps(document))
        return path

    return write


def rows_at(settings: Path, node: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = dsv41("--settings", str(settings), "--node", node, "--json")
    row = next(row for row in json.loads(capsys.readouterr().out) if row["name"] == "engram_nvme")
    return status, row["state"], row["reason"]


def test_what_is_not_asked_for_is_off(fleet: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert rows_at(fleet(), "spark2", capsys) == (0, "off", "not asked for")
    asked = fleet(engram_nvme={})
    assert rows_at(asked, "spark2", capsys) == (0, "off", "asked for, but no rank has armed it")


@pytest.mark.parametrize(
    ("state", "reason", "status"),
    [(State.ARMED, None, 0), (State.ENGAGED, None, 0), (State.REFUSED, "it does not fit.", 78)],
)
def test_the_state_is_what_the_rank_reports(
    fleet: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    state: State,
    reason: str | None,
    status: int,
) -> None:
    settings = parse(fleet(engram_nvme={}).read_text())
    plan = launch_plan(settings, "spark2", Boot("20261129T221500-4f1c9a2e", 1, 20000))
    plan.document_path.parent.mkdir(parents=True)
    plan.document_path.write_text(json.dumps(plan.document))
    for role, said in ((Role.LAUNCHER, State.OFF), (Role.SCHEDULER, state)):
        reporter = Reporter(plan.document_path.parent, boot=str(plan.document["boot"]), rank=1, role=role)
        reporter.set("engram_nvme", said, reason=reason)
        reporter.write()
    assert rows_at(tmp_path / "fleet.json", "spark2", capsys) == (status, str(state), reason)


def test_a_node_that_is_not_in_the_fleet_is_refused(fleet: Callable[..., Path]) -> None:
    with pytest.raises(Dsv41Error, match="the fleet has no node spark9. It has spark1, spark2, spark3"):
        dsv41("--settings", str(fleet()), "--node", "spark9")
