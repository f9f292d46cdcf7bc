"""The engines that tests share. Two at TP1 stay up; those at TP3 are asked once and stopped (8 GB each).

With rows from disk, TP3 runs the balanced partition and TP1 the contiguous one; test_engine_classes.py compares
both at three and four ranks with the real classes, at a fraction of a boot's cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from dsv41_adapters.report import ArmedReport

from tests.engine.engines import Answer, Engine, pack_rows, running, without_tables
from tests.engine.gateway import Fleet, gateway
from tests.harness.encoding_file import V41_TOKENS, encoding_file

PROMPTS = (
    "Hello world, this is a spark.",
    "The quick brown fox 0123456789 jumps over the lazy dog. " * 6,  # several prefill chunks of 64 tokens
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "Größe, naïve café, 火花, ﬁ and  two  spaces\n\n\tand a tab",
    "The quick brown fox 0123456789 jumps over",  # shares a cached prefix with the second
    "x",
)
N_TOKENS = 16
CONTEXT = 4096
"""Of the demo's model."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's time includes the boots of its fixtures; each boot has its own bound (engines.BOOT_S)."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1100))


@pytest.fixture(scope="session")
def engine_python(repo_root: Path) -> Path:
    """The engine environment's Python. Never skipped: without it the equality of answers is not shown."""
    python = repo_root / ".venv-engine" / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python} does not exist, so the real SGLang cannot be run. Run `make engine` once.")
    sources = repo_root / "adapters" / "dsv41_adapters"
    stale = [
        str(file.relative_to(sources))
        for installed in python.parents[1].glob("lib/python3*/site-packages/dsv41_adapters")
        for file in sorted(sources.rglob("*.py"))
        if not (copy := installed / file.relative_to(sources)).is_file() or copy.read_bytes() != file.read_bytes()
    ]
    if stale:
        pytest.fail(f"the engine's dsv41_adapters is not the checkout's ({', '.join(stale)}). Run `make engine`.")
    return python


@pytest.fixture(scope="session")
def pruned_checkpoint(demo_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo checkpoint with its two table files emptied: whoever reads a table fails."""
    return without_tables(demo_checkpoint, tmp_path_factory.mktemp("pruned") / "checkpoint")


@pytest.fixture(scope="session")
def encoded_checkpoint(demo_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo checkpoint with an encoding.py, as a published one has."""
    target = tmp_path_factory.mktemp("encoded") / "checkpoint"
    (target / "encoding").mkdir(parents=True)
    for file in demo_checkpoint.iterdir():
        (target / file.name).symlink_to(file)
    (target / "encoding" / "encoding.py").write_text(encoding_file(V41_TOKENS))
    return target


@pytest.fixture(scope="session")
def packed(
    demo_checkpoint: Path, demo_revision: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str], Path]:
    """Packed rows of every rank, made once for each world size and partition."""
    base = tmp_path_factory.mktemp("rows")

    def rows(world_size: int, partition: str) -> Path:
        directory = base / f"{partition}-{world_size}"
        pack_rows(demo_checkpoint, directory, world_size=world_size, partition=partition, revision=demo_revision)
        return directory

    return rows


@dataclass(frozen=True)
class Recorded:
    """What a fleet answered and reported before it was stopped."""

    answers: list[Answer]
    reports: list[list[ArmedReport]]
    counters: list[dict[str, int]]
    logs: list[str]
    ready_s: float


def battery(engine: Engine) -> list[Answer]:
    """The same questions in the same order, twice: the second time the prefixes are cached.

    One at a time, because how requests meet in a batch depends on the clock, and sums in bf16 on the batch. For the
    same reason nothing is left cached of what other tests asked an engine that they share.
    """
    engine.forget_prefixes()
    return [engine.generate(prompt, N_TOKENS) for _ in range(2) for prompt in PROMPTS]


def record(engine: Engine) -> Recorded:
    answers = battery(engine)
    ranks = range(engine.world_size)
    return Recorded(
        answers,
        [engine.reports(rank) for rank in ranks],
        engine.settled_counters(),
        [rank.log for rank in engine.ranks],
        engine.ready_s,
    )


@pytest.fixture(scope="session")
def stock_tp3(engine_python: Path, demo_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """SGLang as it is: no plan, tables in memory."""
    directory = tmp_path_factory.mktemp("stock-tp3")
    with running(engine_python, demo_checkpoint, directory, world_size=3, with_plan=False) as engine:
        return record(engine)


@pytest.fixture(scope="session")
def nvme_tp3(
    engine_python: Path,
    pruned_checkpoint: Path,
    demo_revision: str,
    packed: Callable[[int, str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Recorded:
    directory = tmp_path_factory.mktemp("nvme-tp3")
    with running(
        engine_python, pruned_checkpoint, directory,
        world_size=3, rows=packed(3, "balanced"), partition="balanced", revision=demo_revision,
        adapters={"engram_nvme": {"staging_tokens": 24}},  # several chunks of rows in each prefill
    ) as engine:  # fmt: skip
        return record(engine)


@pytest.fixture(scope="session")
def stock_tp1(engine_python: Path, demo_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Our plugin with nothing asked for, tables in memory."""
    directory = tmp_path_factory.mktemp("stock-tp1")
    with running(engine_python, demo_checkpoint, directory, world_size=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def fleet(stock_tp1: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """That engine behind the real gateway, for clients."""
    directory = tmp_path_factory.mktemp("gateway")
    with gateway(stock_tp1.ranks[0].port, directory, context_length=CONTEXT) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def stock_tp1_answers(stock_tp1: Engine) -> list[Answer]:
    return battery(stock_tp1)


@pytest.fixture(scope="session")
def rows_tp1(packed: Callable[[int, str], Path]) -> Path:
    return packed(1, "contiguous")


@pytest.fixture(scope="session")
def nvme_tp1(
    engine_python: Path,
    pruned_checkpoint: Path,
    demo_revision: str,
    rows_tp1: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    directory = tmp_path_factory.mktemp("nvme-tp1")
    with running(
        engine_python, pruned_checkpoint, directory,
        world_size=1, rows=rows_tp1, partition="contiguous", revision=demo_revision,
    ) as engine:  # fmt: skip
        yield engine
