"""Hooks through SGLang's own registry, then read back: what is not ours afterwards is a refusal.

`HookRegistry.apply_hooks` logs a hook that fails and carries on, and a module that bound the original name in
a way it does not look at keeps the original. Neither may pass here.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Mapping, Sequence

from .adapter import Adapter, AdapterRefused, Reason, Role, Target


def arm_hooks(wanted: Sequence[tuple[Adapter, Mapping[str, object]]], role: Role) -> None:
    """Register, apply and verify the hooks of these adapters in a process of this kind, in this order.

    Raises: AdapterRefused.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    planned: list[tuple[Adapter, Target, object, object]] = []
    for adapter, hooks in wanted:
        declared = {target.path for target in adapter.targets if target.hooked_in(role)}
        if set(hooks) != declared:
            odd = ", ".join(sorted(declared ^ set(hooks)))
            raise AdapterRefused([Reason(adapter.name, f"spec.py and install.py disagree on {odd}.", "hook")])
        for target in adapter.targets:
            if target.hooked_in(role):
                planned.append((adapter, target, hooks[target.path], _resolve(target)))
    for _, target, hook, _ in planned:
        HookRegistry.register(target.path.replace(":", "."), hook, HookType(target.how.value))
    HookRegistry.apply_hooks()
    reasons = [
        Reason(adapter.name, problem, "verify")
        for adapter, target, hook, original in planned
        for problem in _problems(target, hook, original)
    ]
    if reasons:
        raise AdapterRefused(reasons)


def _resolve(target: Target) -> object:
    """The target as it is now, without binding methods."""
    found: object = importlib.import_module(target.module)
    for part in target.name.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, (classmethod, staticmethod)):
        return found.__func__
    return found


def _problems(target: Target, hook: object, original: object) -> list[str]:
    problems = []
    if not _is_ours(_resolve(target), hook):
        problems.append(f"{target.path} was hooked, but is not ours when read back.")
    # Inside a class nobody else binds the function; a module-level name may have been imported elsewhere.
    if "." not in target.name:
        stale = sorted(
            f"{name}.{attribute}"
            for name, module in list(sys.modules.items())
            if isinstance(module, types.ModuleType)
            for attribute, value in list(vars(module).items())
            if value is original
        )
        if stale:
            problems.append(f"{target.path} is still the original in {', '.join(stale)}.")
    return problems


def _is_ours(found: object, hook: object) -> bool:
    """The hook itself (a replaced class), or a wrapper of the registry that calls it."""
    while found is not None:
        if found is hook:
            return True
        cells = getattr(found, "__closure__", None) or ()
        if any(cell.cell_contents is hook for cell in cells):
            return True
        found = getattr(found, "__wrapped__", None)
    return False
