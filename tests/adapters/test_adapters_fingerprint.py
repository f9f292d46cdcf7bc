from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from dsv41_adapters.adapter import How, Target
from dsv41_adapters.fingerprint import EngineNotFound, EngineSource, TargetMissing, fit
from dsv41_adapters.registry import discover

SOURCE = '''
class Table:
    """What it holds."""

    def rows(self, ids, *, limit=4):
        """Rows by id."""
        # only those that exist
        return [i for i in ids if i < limit]


if True:
    def hidden(x):
        return x + 1
'''


def target(name: str) -> Target:
    return Target(f"sglang.srt.part:{name}", known={"0" * 16: "0.0.0"}, how=How.REPLACE)


def print_of(root: Path, name: str) -> str:
    return EngineSource.at(root).fingerprint(target(name))


@pytest.mark.parametrize(
    "change",
    [
        ('"""What it holds."""', '"""Anything else."""'),
        ("# only those that exist", "# other words"),
        ("return [i for", "return [\n                i for"),
        ('        """Rows by id."""\n', ""),
        ("\nclass Table", "\n\n\nimport os\n\nclass Table"),
    ],
    ids=["docstring", "comment", "layout", "no docstring", "line numbers"],
)
def test_words_and_layout_do_not_count(engine_tree: Callable[[str], Path], change: tuple[str, str]) -> None:
    before = print_of(engine_tree(SOURCE), "Table")
    assert print_of(engine_tree(SOURCE.replace(*change)), "Table") == before


@pytest.mark.parametrize(
    "change",
    [("limit=4", "limit=5"), ("i < limit", "i <= limit"), ("self, ids, *,", "self, ids,"), ("rows(", "row(")],
    ids=["default", "operator", "signature", "name"],
)
def test_code_counts(engine_tree: Callable[[str], Path], change: tuple[str, str]) -> None:
    before = print_of(engine_tree(SOURCE), "Table")
    assert print_of(engine_tree(SOURCE.replace(*change)), "Table") != before


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("Table", "Table = cached(Table)"),
        ("Table", "from .fast import Table"),
        ("Table", "from .fast import Quick as Table"),
        ("Table", "Table.rows = other"),
        ("Table.rows", "Table.rows = other"),
        ("hidden", "hidden = jit(hidden)"),
        ("hidden", "try:\n    from fast import hidden\nexcept ImportError:\n    pass"),
    ],
)
def test_a_target_that_is_replaced_below_its_definition_has_changed(
    engine_tree: Callable[[str], Path], name: str, more: str
) -> None:
    before = print_of(engine_tree(SOURCE), name)
    assert print_of(engine_tree(f"{SOURCE}\n\n{more}\n"), name) != before
    assert print_of(engine_tree(f"{SOURCE}\n\nother = Table.rows\nfrom fast import Other\n"), name) == before


@pytest.mark.parametrize(
    "source",
    ["x = 1\n\0\n", f"x = {'-' * 90_000}1\n", f"x = {'+'.join(['1'] * 20_000)}\n", "def"],
    ids=["a zero byte", "too deep to parse", "too deep to build", "no python"],
)
def test_a_file_that_is_no_python_does_not_fit(engine_tree: Callable[[str], Path], source: str) -> None:
    with pytest.raises(TargetMissing, match=r"module sglang\.srt\.part in .* (is not Python|cannot be read)"):
        print_of(engine_tree(source), "Table")


def test_a_target_inside_a_branch_is_found_and_a_missing_one_is_named(
    engine_tree: Callable[[str], Path],
) -> None:
    root = engine_tree(SOURCE)
    assert print_of(root, "hidden")
    with pytest.raises(TargetMissing, match=r"sglang\.srt\.part has no Table\.column"):
        print_of(root, "Table.column")


def test_the_hash_is_the_same_on_every_python(engine_tree: Callable[[str], Path]) -> None:
    """Written down once, so that a Python that grows new syntax tree fields is noticed."""
    assert print_of(engine_tree(SOURCE), "Table") == "d6318ca3ff35d86c"


def test_nothing_is_imported(engine_tree: Callable[[str], Path]) -> None:
    """The tree's __init__ raises when imported."""
    assert print_of(engine_tree("raise AssertionError\n" + SOURCE), "Table.rows")


def test_a_wheel_is_read_without_unpacking(engine_tree: Callable[[str], Path], tmp_path: Path) -> None:
    root = engine_tree(SOURCE)
    # Named as in a Nix store.
    wheel = tmp_path / "x4k1vq9-sglang-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in root.rglob("*.py"):
            archive.write(file, file.relative_to(root))
        archive.writestr("sglang-0.5.23.dist-info/METADATA", "Name: sglang\nVersion: 0.5.23\n")
    engine = EngineSource.at(wheel)
    assert engine.version == "0.5.23"
    assert engine.fingerprint(target("Table")) == print_of(root, "Table")


@pytest.mark.parametrize("content", [b"", b"PK", b"junk" * 100])
def test_a_wheel_that_is_none_is_refused_with_the_next_step(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sglang-0.5.23-py3-none-any.whl").write_bytes(content)
    with pytest.raises(EngineNotFound, match=r"cannot be read as a wheel \(.*\)\. Fetch it again\."):
        EngineSource.at(tmp_path / "sglang-0.5.23-py3-none-any.whl")


def test_a_wheel_with_a_damaged_or_nameless_file_does_not_fit(
    engine_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    root, wheel = engine_tree(SOURCE), tmp_path / "sglang.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in root.rglob("*.py"):
            archive.write(file, file.relative_to(root))
    assert EngineSource.at(wheel).version == "unknown"
    wheel.write_bytes(wheel.read_bytes().replace(b"limit=4", b"limit=5"))
    with pytest.raises(TargetMissing, match=r"module sglang\.srt\.part in .* cannot be read \(Bad CRC-32"):
        EngineSource.at(wheel).fingerprint(target("Table"))


def test_a_path_without_an_engine_is_refused_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(EngineNotFound, match=r"holds no SGLang .*`make engine`"):
        EngineSource.at(tmp_path)


def test_fit_names_every_changed_target_with_got_and_known(engine_tree: Callable[[str], Path]) -> None:
    root = engine_tree(SOURCE)
    good = Target("sglang.srt.part:hidden", known={print_of(root, "hidden"): "0.5.23"}, how=How.RELIES)
    adapter = replace(discover()["engram_nvme"], targets=(good, target("Table"), target("Gone")))
    changed, gone = fit([adapter], EngineSource.at(root))
    found = print_of(root, "Table")
    assert str(changed) == (
        f"adapter engram_nvme refused: sglang.srt.part:Table is {found} in sglang unknown, known are "
        "0000000000000000 (0.0.0). Turn it off or port it: adapters/STATUS.md."
    )
    assert "sglang.srt.part has no Gone" in str(gone)
