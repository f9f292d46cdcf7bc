"""The packet filter's rules through a unit of their own: every way it can go wrong is said in half a sentence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from dsv41_supervisor.errors import Dsv41Error, Stage
from dsv41_supervisor.fabric import ruleset
from dsv41_supervisor.fabric.roots import Unreadable
from dsv41_supervisor.fabric.ruleset import FILE, FIREWALL_UNIT, UnitRuleset, nft, ruleset_of
from dsv41_supervisor.settings import parse
from dsv41_supervisor.units import UnitState, UnitStatus

from tests.unit.fleets import with_value


class OneUnit:
    """Writes `answer` when it is started, or fails, or never ends."""

    def __init__(self, path: Path, answer: str | None = None, *, refused: bool = False, ends: bool = True) -> None:
        self.path, self.answer, self.refused, self.ends, self.n_starts = path, answer, refused, ends, 0

    async def start(self, unit: str) -> None:
        assert unit == FIREWALL_UNIT
        assert not self.path.exists(), "an old answer would be taken for this one"
        self.n_starts += 1
        if self.refused:
            raise Dsv41Error("no such unit.", stage=Stage.RANK, hint="Look.")
        if self.answer is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(self.answer)

    async def status(self, unit: str) -> UnitStatus:
        return UnitStatus(unit, UnitState.INACTIVE if self.ends else UnitState.ACTIVE)


def asked(tmp_path: Path, **unit: object) -> tuple[UnitRuleset, OneUnit]:
    settings = parse(json.dumps(with_value("supervisor.run_dir", str(tmp_path / "run"))))
    units = OneUnit(tmp_path / "run" / FILE, **unit)  # type: ignore[arg-type]
    return UnitRuleset(settings, "spark1", units), units  # type: ignore[arg-type]


async def test_each_question_is_answered_anew(tmp_path: Path) -> None:
    rules, units = asked(tmp_path, answer='{"nftables": []}')
    assert await asyncio.gather(rules(), rules()) == [{"nftables": []}] * 2
    assert units.n_starts == 2
    units.answer = None
    with pytest.raises(Unreadable, match="left no answer"):
        await rules()


@pytest.mark.parametrize(
    ("unit", "why"),
    [
        ({"refused": True}, "the unit dsv41-firewall failed: no such unit"),
        ({"answer": "{"}, "left no answer: journalctl -u dsv41-firewall"),
        ({"answer": "{}", "ends": False}, "did not end within 0.2 s"),
    ],
)  # fmt: skip
async def test_what_went_wrong_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: dict[str, object], why: str
) -> None:
    monkeypatch.setattr(ruleset, "ENDS_S", 0.2)
    rules, _ = asked(tmp_path, **unit)
    with pytest.raises(Unreadable, match=why):
        await rules()


def test_without_systemd_the_supervisor_asks_by_itself(tmp_path: Path) -> None:
    settings = parse(json.dumps(with_value("supervisor.units", "process")))
    assert ruleset_of(settings, "spark1", OneUnit(tmp_path)) is nft  # type: ignore[arg-type]
