"""Every adapter refuses an engine in which any one of its targets has changed. Nothing of it is imported or run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from dsv41_adapters.adapter import Adapter, Target
from dsv41_adapters.fingerprint import EngineSource, fit
from dsv41_adapters.registry import discover

TARGETS = [(adapter, target) for adapter in discover().values() for target in adapter.targets]


def changed(source: str, name: str) -> str:
    """The module with one more statement at the end of this function, or of this class."""
    tree = ast.parse(source)
    found: ast.AST = tree
    for part in name.split("."):
        found = next(
            node
            for node in ast.walk(found)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == part
        )
    assert isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    found.body.append(ast.parse("changed = True").body[0])
    return ast.unparse(tree)


@pytest.fixture(scope="module")
def engine(engine_python: Path) -> EngineSource:
    return EngineSource.at(engine_python.parents[1])


@pytest.mark.parametrize(("adapter", "target"), TARGETS, ids=[f"{a.name}-{t.name}" for a, t in TARGETS])
def test_a_changed_target_does_not_fit(engine: EngineSource, tmp_path: Path, adapter: Adapter, target: Target) -> None:
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    for module in {t.module for t in adapter.targets}:
        file = tmp_path / f"{module.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        source = engine.read(module)
        file.write_text(changed(source, target.name) if module == target.module else source)
    reasons = fit([adapter], EngineSource.at(tmp_path))
    assert target.path in " ".join(reason.what for reason in reasons)
    assert {reason.kind for reason in reasons} == {"fit"}
