"""Finds every `<name>/spec.py`; puts the adapters asked for in order, or says why they cannot be."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from .adapter import Adapter, AdapterRefused, AdapterSettings, Reason


@cache
def _discovered() -> Mapping[str, Adapter]:
    found = {}
    for spec in sorted(Path(__file__).parent.glob("*/spec.py")):
        adapter = importlib.import_module(f"{__package__}.{spec.parent.name}.spec").ADAPTER
        if adapter.name != spec.parent.name:
            raise ValueError(f"{spec} declares adapter {adapter.name!r}; folder and name must be equal")
        found[adapter.name] = adapter
    return found


def discover() -> dict[str, Adapter]:
    """Every adapter by name; adding a folder adds it here. Loads the standard library and pydantic only."""
    return dict(_discovered())


@cache
def settings_model() -> type[BaseModel]:
    """The settings branch `adapters`: one optional field an adapter, null is off."""
    fields = {
        name: (adapter.settings | None, Field(default=None, description=f"{adapter.changes}; null is off."))
        for name, adapter in _discovered().items()
    }
    return create_model(
        "Adapters",
        __config__=ConfigDict(frozen=True, extra="forbid", validate_default=True),
        __doc__="Changes to the engine, each off until it is named here.",
        **fields,
    )


def order(asked: Iterable[str], world_size: int) -> list[Adapter]:
    """The adapters asked for, each behind those it names in `after`.

    Raises: AdapterRefused with every reason at once.
    """
    names = sorted(set(asked))
    known = _discovered()
    reasons = [
        Reason(name, f"there is no such adapter; there are {', '.join(sorted(known)) or 'none'}.", "unknown")
        for name in names
        if name not in known
    ]
    chosen = {name: known[name] for name in names if name in known}
    for adapter in chosen.values():
        if adapter.world_sizes is not None and world_size not in adapter.world_sizes:
            sizes = " or ".join(map(str, sorted(adapter.world_sizes)))
            what = f"it was made for a world size of {sizes}, this fleet has {world_size}."
            reasons.append(Reason(adapter.name, what, "world"))
        reasons += [
            Reason(adapter.name, f"it cannot be used together with {other}, which is asked for too.", "conflict")
            for other in adapter.conflicts
            if other in chosen
        ]
    sorter = TopologicalSorter({name: [a for a in ad.after if a in chosen] for name, ad in chosen.items()})
    try:
        ordered = [chosen[name] for name in sorter.static_order()]
    except CycleError as error:
        cycle = " → ".join(error.args[1])
        reasons.append(Reason(error.args[1][0], f"no order: `after` goes in a circle ({cycle}).", "order"))
        ordered = []
    reasons += _unordered(list(chosen.values()))
    if reasons:
        raise AdapterRefused(reasons)
    return ordered


def _unordered(adapters: list[Adapter]) -> list[Reason]:
    """Two adapters that change one target must say which goes first."""
    reasons = []
    for one, two in combinations(adapters, 2):
        shared = {t.path for t in one.targets if t.hooked} & {t.path for t in two.targets if t.hooked}
        if shared and two.name not in one.after and one.name not in two.after:
            both = ", ".join(sorted(shared))
            what = f"no order: it and {two.name} both change {both}, and neither is `after` the other."
            reasons.append(Reason(one.name, what, "order"))
    return reasons


def validate_settings(adapter: Adapter, values: object) -> AdapterSettings:
    """The adapter's own settings from plain JSON. Raises AdapterRefused."""
    try:
        return adapter.settings.model_validate(values)
    except ValidationError as error:
        raise AdapterRefused(
            Reason(
                adapter.name,
                f"{'.'.join(map(str, ('adapters', adapter.name, *problem['loc'])))}: {problem['msg']}.",
                "settings",
            )
            for problem in error.errors(include_url=False)
        ) from None
