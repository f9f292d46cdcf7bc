"""tp_pad's plan: what each world size pads of the released model, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dsv41_adapters.tp_pad.padding import FP8_BLOCK, LOCAL_HEADS, CannotPad, padding_plan
from dsv41_supervisor.__main__ import main
from hypothesis import given
from hypothesis import strategies as st

# The released config's values that matter here. Source: nemo-automodel 0.7.0's typed defaults of that config.
RELEASED = {
    "num_attention_heads": 64, "o_groups": 8, "vocab_size": 129_280, "moe_intermediate_size": 2304,
    "n_shared_experts": 1, "n_routed_experts": 384, "dspark_n_routed_experts": 128,
}  # fmt: skip


def test_three_ranks_get_96_heads_in_12_groups_and_the_last_rank_only_padding() -> None:
    plan = padding_plan(RELEASED, 3)
    assert (plan["num_attention_heads"].padded, plan["o_groups"].padded) == (96, 12)
    assert (plan["num_attention_heads"].per_rank, plan["o_groups"].per_rank) == (32, 4)
    vocabulary = plan["vocab_size"]
    assert (vocabulary.padded, vocabulary.per_rank, vocabulary.by) == (129_408, 43_136, "sglang")
    assert plan["moe_intermediate_size"].per_rank == 768
    assert plan["dspark_n_routed_experts"].padded == 128
    assert plan.needed and plan.idle_ranks == (2,)


def test_expert_parallel_over_three_adds_a_draft_expert() -> None:
    plan = padding_plan(RELEASED, 3, ep_size=3)
    assert (plan["dspark_n_routed_experts"].padded, plan["dspark_n_routed_experts"].per_rank) == (129, 43)
    assert plan["moe_intermediate_size"].per_rank == 2304


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_powers_of_two_need_nothing(world_size: int) -> None:
    plan = padding_plan(RELEASED, world_size)
    assert not plan.needed and not plan.idle_ranks


def test_the_text_part_of_a_nested_config_is_what_counts() -> None:
    assert padding_plan({"text_config": RELEASED, "vision_config": {"num_attention_heads": 16}}, 3) == padding_plan(
        RELEASED, 3
    )


@pytest.mark.parametrize(
    ("change", "world_size", "ep_size", "said"),
    [
        ({}, 5, 1, "moe_intermediate_size 2304 does not make 5 shards of whole blocks of 32"),
        ({}, 7, 1, "shared_intermediate_size 2304 does not make 7 shards"),
        ({}, 3, 2, "ep_size 2 does not divide world size 3."),
        ({"n_routed_experts": 383}, 3, 3, "n_routed_experts 383 does not divide by ep_size 3"),
        ({"o_groups": 7}, 3, 1, "64 heads do not make 7 equal groups"),
        ({"num_attention_heads": 8 * 144}, 1, 1, "no number of whole groups of 144 heads gives each of 1 ranks"),
    ],
)
def test_what_cannot_be_padded_is_refused_in_words(change: dict, world_size: int, ep_size: int, said: str) -> None:
    with pytest.raises(CannotPad) as refused:
        padding_plan(RELEASED | change, world_size, ep_size)
    assert any(reason.startswith(said) for reason in refused.value.reasons), refused.value.reasons


def test_all_obstacles_are_named_together() -> None:
    with pytest.raises(CannotPad) as refused:
        padding_plan(RELEASED, 5)
    assert len(refused.value.reasons) == 2


@given(st.integers(1, 64), st.sampled_from([1, 2, 3, 4]))
def test_a_plan_that_is_given_holds(world_size: int, ep_size: int) -> None:
    try:
        plan = padding_plan(RELEASED, world_size, ep_size)
    except CannotPad:
        return
    heads, groups = plan["num_attention_heads"], plan["o_groups"]
    assert heads.padded % world_size == groups.padded % world_size == 0
    assert heads.padded // groups.padded == heads.stored // groups.stored
    assert heads.per_rank in LOCAL_HEADS and heads.padded >= heads.stored
    assert plan["vocab_size"].padded % (64 * world_size) % 64 == 0 and plan["vocab_size"].padded % world_size == 0
    assert plan["shared_intermediate_size"].per_rank % FP8_BLOCK == 0
    assert plan["dspark_n_routed_experts"].padded % ep_size == 0
    assert len(plan.idle_ranks) < world_size


def test_the_command_prints_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": RELEASED}))
    assert main(["adapters", "plan", "--world-size", "3", "--checkpoint", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "num_attention_heads              64       96       32  tp_pad\n" in said
    assert "Rank 2's attention is padding alone" in said
    assert main(["adapters", "plan", "--world-size", "3", "--checkpoint", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["idle_ranks"] == [2]


@pytest.mark.parametrize(
    ("text", "world_size", "said"),
    [
        (json.dumps(RELEASED), "5", "world size 5: moe_intermediate_size 2304 does not make 5 shards"),
        ("{}", "3", "is not a DeepSeek-V4.1 config"),
        ("[", "3", "is not a DeepSeek-V4.1 config"),
        ("[]", "3", "is not a DeepSeek-V4.1 config"),
        (json.dumps(RELEASED | {"num_attention_heads": 0}), "3", "num_attention_heads is 0, which is no number"),
        (json.dumps(RELEASED | {"num_attention_heads": -64}), "3", "num_attention_heads is -64"),
        (json.dumps(RELEASED | {"num_attention_heads": 64.5}), "3", "num_attention_heads is 64.5"),
        (json.dumps(RELEASED | {"o_groups": 0}), "3", "o_groups is 0"),
        (json.dumps(RELEASED | {"o_groups": True}), "3", "o_groups is True"),
        (json.dumps(RELEASED | {"vocab_size": float("inf")}), "3", "vocab_size is inf"),
        (json.dumps(RELEASED | {"moe_intermediate_size": 0}), "3", "moe_intermediate_size is 0"),
        (json.dumps(RELEASED | {"dspark_n_routed_experts": -3}), "3", "dspark_n_routed_experts is -3"),
        (json.dumps(RELEASED), "0", "there is no fleet of 0 ranks."),
        (json.dumps(RELEASED), "-1", "there is no fleet of -1 ranks."),
        (None, "3", "cannot be read (No such file or directory). Name the checkpoint's directory"),
    ],
)
def test_the_command_refuses_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, world_size: str, said: str
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert main(["adapters", "plan", "--world-size", world_size, "--checkpoint", str(tmp_path)]) == 78
    assert said in capsys.readouterr().err
