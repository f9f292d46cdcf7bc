"""What the model can be cut into is refused by `check-config` as by Nix, on machines without Nix too."""

from __future__ import annotations

from pathlib import Path

import pytest
from dsv41_adapters.tp_pad.padding import CannotPad, padding_plan
from dsv41_supervisor.settings.shards import uncuttable

from tests.adapters.test_tp_pad_plan import RELEASED

ASSERTIONS = Path(__file__).parents[2] / "modules" / "assertions.nix"


@pytest.mark.parametrize(
    ("tp_size", "ep_size", "padded", "n_reasons"),
    [(1, 1, False, 0), (2, 1, False, 0), (3, 1, True, 0), (3, 1, False, 1), (4, 1, False, 0), (5, 1, True, 1),
     (5, 1, False, 2), (5, 5, True, 0), (6, 1, True, 0), (7, 1, True, 1), (8, 1, False, 0)],
)  # fmt: skip
def test_each_world_size(tp_size: int, ep_size: int, padded: bool, n_reasons: int) -> None:
    reasons = list(uncuttable(tp_size, ep_size, padded=padded))
    assert len(reasons) == n_reasons, reasons
    if not padded and 8 % tp_size:
        assert reasons[-1].endswith("set adapters.tp_pad to {}, which pads them")


def test_nix_has_the_same_sizes() -> None:
    from dsv41_supervisor.settings import shards

    text = ASSERTIONS.read_text()
    for line in (f"moe_intermediate_size = {shards.MOE_INTERMEDIATE_SIZE};", f"o_groups = {shards.O_GROUPS};",
                 f"fp8_block = {shards.FP8_BLOCK};"):  # fmt: skip
        assert line in text


@pytest.mark.parametrize("world_size", range(1, 13))
def test_the_settings_take_what_tp_pad_can_plan_and_nothing_else(world_size: int) -> None:
    try:
        needed = padding_plan({"text_config": RELEASED}, world_size).needed
    except CannotPad:
        assert list(uncuttable(world_size, 1, padded=True))
    else:
        assert not list(uncuttable(world_size, 1, padded=True))
        assert bool(list(uncuttable(world_size, 1, padded=False))) == needed
