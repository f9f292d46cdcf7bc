from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from dsv41_adapters.registry import discover
from dsv41_supervisor.commands import adapters
from dsv41_supervisor.errors import Dsv41Error


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
    assert (
        "engine: adapter engram_nvme does not fit: sglang.srt.layers.engram:EngramEmbedding is missing."
        in err
    )
    assert dsv41("fit", "--engine", str(root)) == 78


def test_fit_says_where_it_looked_for_an_engine(tmp_path: Path) -> None:
    with pytest.raises(Dsv41Error, match="holds no SGLang") as refused:
        dsv41("fit", "--engine", str(tmp_path))
    assert refused.value.exit_status == 69


def test_settings_and_node_go_together(tmp_path: Path) -> None:
    with pytest.raises(Dsv41Error, match="--settings and --node go together. Give both or none."):
        dsv41("--settings", str(tmp_path / "fleet.json"))
