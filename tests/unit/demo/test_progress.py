"""What a person sees of long work: one line a change without a terminal, a table that goes away with one."""

from __future__ import annotations

import io
import re
import time

import pytest
from dsv41_supervisor.demo import progress as progress_module
from dsv41_supervisor.demo.progress import Progress


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def plain(text: str) -> list[str]:
    """Lines without their times."""
    return [re.sub(r"^ *[\d.]+ s  |[\d.]+ s$", "", line) for line in text.splitlines()]


def test_without_a_terminal_each_change_is_one_line_and_moving_figures_are_not(out: io.StringIO) -> None:
    with Progress(out) as progress, progress.stage("environment") as stage:
        for i in range(50):
            stage.update(f"downloading: package-{'ab'[i % 2]}, {i / 10} of 3 GB", i / 50)
        stage.update("installing")
        progress.say("a remark")
    assert plain(out.getvalue()) == [
        "environment: downloading: package-a, 0.0 of 3 GB (0%)",
        "environment: installing",
        "a remark",
        "environment: done after ",
    ]


def test_figures_that_move_for_long_are_said_now_and_then(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "LINE_EVERY_S", 0.0)
    with Progress(out) as progress, progress.stage("pack"):
        progress.update("row 1", 0.1)
        progress.update("row 2", 0.2)
    assert plain(out.getvalue())[:2] == ["pack: row 1 (10%)", "pack: row 2 (20%)"]


def test_nodes_are_rows_of_the_stage_that_runs_and_end_with_it(out: io.StringIO) -> None:
    with Progress(out) as progress:
        with progress.stage("fleet"):
            progress.node("spark1", "idle")
            progress.node("spark2", "loading, weights", 0.4)
            progress.node("spark1", "idle")
        assert progress.current is None
        progress.update("nobody listens")
    assert plain(out.getvalue())[:2] == ["spark1: idle", "spark2: loading, weights (40%)"]
    assert len(out.getvalue().splitlines()) == 3


def test_times_of_stages_are_kept_and_the_slowest_node_counts(out: io.StringIO) -> None:
    took_s: list[float] = []
    with Progress(out) as progress:
        for node, seconds in (("spark1", 0.06), ("spark2", 0.01)):
            began = time.monotonic()
            with progress.stage("pack", node):
                time.sleep(seconds)
            took_s.append(time.monotonic() - began)
        with progress.stage("answer", quiet=True) as stage:
            stage.update("not shown")
    assert 0.06 <= progress.took_s["pack"] <= max(took_s)
    assert "answer" in progress.took_s and "answer" not in out.getvalue()


@pytest.mark.parametrize(("error", "outcome"), [(ValueError("no"), "failed"), (KeyboardInterrupt(), "stopped")])
def test_a_stage_that_does_not_end_well_says_so(out: io.StringIO, error: BaseException, outcome: str) -> None:
    with pytest.raises(type(error)), Progress(out) as progress, progress.stage("network") as stage:
        raise error
    assert stage.finished
    assert f"network: {outcome} after" in out.getvalue()


def test_on_a_terminal_the_table_makes_room_for_other_output_and_leaves_only_the_lines(out: io.StringIO) -> None:
    with Progress(out, live=True) as progress:
        with progress.stage("fleet"):
            progress.node("spark1", "loading [weights]", 0.5)
            assert progress._live is not None
            progress._live.refresh()
            progress.say("a [remark]")
        assert progress._live is None
        with progress.stage("answer", quiet=True):
            assert progress._live is None
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "loading [weights]" in text and "50%" in text and "a [remark]" in text
    assert "fleet: done after" in text


def test_drawing_and_updating_at_once_never_wait_for_each_other(out: io.StringIO) -> None:
    """Rich draws from its own thread under its own lock, while stages begin and end under ours."""
    with Progress(out, live=True) as progress:
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            with progress.stage("one") as stage:
                stage.update("x", 0.5)
                assert progress._live is not None
                progress._live.refresh()
