"""Nothing that the public recipes name is left without a place, and no place is named that does not exist."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from dsv41_adapters.registry import discover
from dsv41_supervisor.settings import Settings, parse
from pydantic import BaseModel

from tests.harness.launch_golden import DIRECTORY, PROFILES, golden_file, read_plan
from tests.harness.recipes import Named, recipes, status_names, status_standings

NAMED = recipes()
PLANS = {profile: read_plan(golden_file(profile, 0).read_text()) for profile in PROFILES}
FOUR = parse((DIRECTORY / "tp4.settings.json").read_text())
UNDER_ANOTHER_NAME: dict[str, Callable[[Settings], object]] = {
    "DSV41_ENGRAM_PREFETCH": lambda s: int(s.adapters_asked["engram_nvme"]["prefetch"]),
    "DSV41_PREFILL_EMPTY_CACHE_TOKENS": lambda s: s.adapters_asked["prefill_empty_cache"]["context_tokens"],
    "DSV41_AUTOTUNE_KEEP": lambda s: int("autotune_keep" in s.adapters_asked),
    "DSV41_CACHE_GIB": lambda s: s.pack.cache_bytes >> 30,
    "DSV41_CACHE_WAYS": lambda s: s.pack.ways,
    "DSV41_TP_PAD": lambda s: int("tp_pad" in s.adapters_asked),
    "DSV41_MAX_NEW_TOKENS": lambda s: s.gateway.max_tokens_cap,
}
"""Values of the four-Spark recipe that reach the engine, or the gateway, under a name of ours."""


def in_plan(profile: str) -> dict[str, str]:
    """Value by flag and by variable of rank 0; a flag without a value has ""."""
    argv, environment = PLANS[profile]
    flags = {}
    for argument, following in zip(argv, [*argv[1:], "--"], strict=True):
        if argument.startswith("--"):
            flags[argument] = "" if following.startswith("--") else following
    return flags | environment


def same(one: str, two: str | None) -> bool:
    """Equal as numbers or JSON where both are that, as text otherwise."""
    try:
        return two is not None and json.loads(one) == json.loads(two)
    except ValueError:
        return one == two


def models(annotation: Any) -> list[Any]:
    """What an annotation may hold: the parts of unions, the values of mappings under "*"."""
    if get_origin(annotation) is Annotated:
        return models(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [model for part in get_args(annotation) for model in models(part)]
    return [annotation]


def exists(path: str) -> bool:
    """Whether the settings tree has this field; * stands for a name in a mapping."""
    at: list[Any] = [Settings]
    for word in path.split("."):
        found: list[Any] = []
        for model in at:
            if isinstance(model, type) and issubclass(model, BaseModel) and word in model.model_fields:
                found += models(model.model_fields[word].annotation)
            elif get_origin(model) is dict and word == "*":
                found += models(get_args(model)[1])
        at = found
    return bool(at)


def test_the_list_names_each_thing_once_and_gives_it_a_place() -> None:
    assert [name for name, n in Counter(entry.name for entry in NAMED).items() if n > 1] == []
    assert {entry.kind for entry in NAMED} == {"argv", "env", "knob", "piece", "ours"}
    assert [e.name for e in NAMED if e.place not in ("plan", "status") and not e.setting] == []
    assert Counter(entry.kind for entry in NAMED)["argv"] == 32


@pytest.mark.parametrize("named", [e for e in NAMED if e.setting], ids=lambda e: e.name)
def test_a_place_in_the_settings_exists(named: Named) -> None:
    assert named.setting is not None and exists(named.setting), f"{named.name}: no setting {named.setting}"


def test_the_reader_of_paths_knows_what_does_not_exist() -> None:
    assert not exists("engine.memory.no_such_field")
    assert not exists("fleet.nodes.rank"), "a name is between them"
    assert exists("fleet.nodes.*.rails.*.address")


def test_status_has_a_row_for_all_that_has_no_other_place_and_for_nothing_else() -> None:
    without = {e.name for e in NAMED if e.place == "status"}
    assert without - status_names() == set(), "named by a recipe, no setting, no row"
    assert status_names() - {e.name for e in NAMED} == set(), "a row for what no recipe names"


@pytest.mark.parametrize("named", [e for e in NAMED if e.kind in ("argv", "env") and e.setting], ids=lambda e: e.name)
def test_the_recipes_value_is_ours_or_the_list_says_why_not(named: Named) -> None:
    if named.name in UNDER_ANOTHER_NAME:
        ours = str(UNDER_ANOTHER_NAME[named.name](FOUR))
    else:
        ours = in_plan("tp4").get(named.name)
    assert same(named.value, ours) is not bool(named.differs), f"{named.name}: theirs {named.value!r}, ours {ours!r}"


@pytest.mark.parametrize("profile", PROFILES)
def test_what_our_plans_write_is_in_the_list(profile: str) -> None:
    """So a flag that is added says where it comes from."""
    assert set(in_plan(profile)) - {e.name for e in NAMED} == set()


def test_what_the_plan_always_writes_is_in_both_plans() -> None:
    always = {e.name for e in NAMED if e.place == "plan"}
    assert always - (set(in_plan("tp3")) & set(in_plan("tp4"))) == set()


def test_status_has_a_row_for_every_adapter_and_says_what_the_adapter_says() -> None:
    said = status_standings()
    assert set(said) == set(discover())
    standing = {name: adapter.standing.value for name, adapter in discover().items()}
    assert {name: text.split()[0] for name, text in said.items()} == standing
