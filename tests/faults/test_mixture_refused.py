"""Fault: the nodes of a fleet are not the same: one has another SPS table; the engine grants less than the KV pin.

What the user sees: `dsv41 up` names the fact, both values and their nodes, or the pin asked for and granted; exit 78.
What the operator sees: `boot-failed` with that sentence and a bundle; nothing is tried again, as it would end the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsv41_supervisor.commands.together import together

from tests.harness.fleet import running_fleet


async def test_ranks_with_different_sps_tables_are_not_admitted(tmp_path: Path, demo_checkpoint: Path) -> None:
    for node, text in (("spark1", "[[1, 40.0]]"), ("spark2", "[[1, 41.0]]")):
        (tmp_path / f"sps-{node}").write_text(text)

    def mixture(raw: dict[str, Any]) -> None:
        raw["engine"]["speculative"] = {"sps_table": f"{tmp_path}/sps-{{node}}"}

    async with running_fleet(
        tmp_path, demo_checkpoint, nodes=2, loopback=True, gateway=False, change=mixture
    ) as fleet:
        status = await fleet.up()
        assert status["state"] == "failed"
        (refusal,) = status["refusals"]
        tables = [status["nodes"][node]["same"]["SPS table"][:16] for node in ("spark1", "spark2")]
        assert f"SPS table: {tables[0]} on spark1; {tables[1]} on spark2." in refusal["what"]
        assert "engine.speculative.sps_table" in refusal["hint"] and not refusal["transient"]
        assert status["nodes"]["spark1"]["measured"]["n_processes"] == 0
        assert any("the nodes differ in SPS table" in line for line in together(status))
        # The same table on both: served.
        (tmp_path / "sps-spark2").write_text("[[1, 40.0]]")
        again = await fleet.up()
        assert again["state"] == "serving", again["refusals"]
        lines = together(again)
        assert any(line.startswith("same bits: ") and line.endswith(" are equal on 2 nodes") for line in lines), lines
        assert "KV budget: 8192 tokens granted (no pin)" in lines


async def test_a_clamped_kv_pin_ends_the_boot_with_a_sentence(tmp_path: Path, demo_checkpoint: Path) -> None:
    def greedy(raw: dict[str, Any]) -> None:
        raw["engine"]["memory"] = {"max_total_tokens": 10000}

    async with running_fleet(
        tmp_path, demo_checkpoint, nodes=2, loopback=True, gateway=False, change=greedy
    ) as fleet:
        status = await fleet.up()
        assert status["state"] == "failed"
        clamped = [r for r in status["refusals"] if "the KV pin of 10000 tokens was clamped to 8192" in r["what"]]
        assert clamped and not clamped[0]["transient"], status["refusals"]
        kv = [n["kv"] for n in status["nodes"].values() if n["kv"]["granted"] is not None]
        assert kv[0]["difference"] == -1808
