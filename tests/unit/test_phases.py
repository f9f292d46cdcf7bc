"""Phases of loading, read from the texts that sglang 0.5.23 prints (our own figures in them)."""

from __future__ import annotations

from dsv41_supervisor.rank.phases import Phase, Progress, stall_limit_s
from dsv41_supervisor.settings.engine import StallTimers
from hypothesis import given
from hypothesis import strategies as st

HEAD = (
    ("[2026-01-02 03:04:05] server_args={'model_path': '/model'}", Phase.STARTING),
    ("[2026-01-02 03:04:11] Init parallel begin.", Phase.RENDEZVOUS),
    ("[2026-01-02 03:04:12] Init parallel ends. elapsed=0.40 s", Phase.WEIGHTS),
    ("[2026-01-02 03:04:12] Load weight begin. avail mem=100.00 GB", Phase.WEIGHTS),
    ("Multi-thread loading shards:  25% Completed | 12/48 [00:10<00:30,  1.2it/s]", Phase.WEIGHTS),
    ("[2026-01-02 03:05:00] Load weight end. elapsed=48.0 s, type=X, avail mem=20.00 GB", Phase.POOLS),
    ("[2026-01-02 03:05:01] Memory pool end. avail mem=10.00 GB", Phase.POOLS),
    ("[2026-01-02 03:05:02] Capture decode CUDA graph begin. This can take several minutes.", Phase.CAPTURE),
    ("[2026-01-02 03:06:02] Capture decode CUDA graph end. Time elapsed: 60.00 s", Phase.CAPTURE),
    ("[2026-01-02 03:06:03] INFO:     Application startup complete.", Phase.WARMUP),
    ("[2026-01-02 03:06:05] The server is fired up and ready to roll!", Phase.SERVING),
)


def test_the_phases_of_a_head_come_in_order() -> None:
    progress = Progress()
    for line, phase in HEAD:
        progress = progress.feed(line)
        assert progress.phase is phase, line


def test_a_worker_serves_when_its_own_small_server_is_up() -> None:
    line = "Dummy health check server started in background thread at 127.0.0.1:30000"
    assert Progress(Phase.POOLS).feed(line).phase is Phase.SERVING


def test_every_step_of_a_progress_bar_is_progress_and_a_repeated_line_is_not() -> None:
    bar = "Multi-thread loading shards:  {}% Completed | 1/48 [00:10<00:30,  1.2it/s]"
    first = Progress(Phase.WEIGHTS).feed(bar.format(25))
    assert first.fraction == 0.25
    again = first.feed(bar.format(25))
    assert again.mark == first.mark
    assert again.feed(bar.format(50)).mark == first.mark + 1


def test_an_engine_that_cannot_listen_is_hopeless_whatever_it_says_afterwards() -> None:
    # Printed by sglang 0.5.23 on a CPU, 2026-11-30; the process then went on for minutes.
    line = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 45747): address already in use"
    progress = Progress(Phase.WARMUP).feed(f"[2026-11-30 09:16:00] {line}")
    assert progress.hopeless is not None and "45747): address already in use" in progress.hopeless
    assert progress.feed("INFO:     Waiting for application shutdown.").hopeless == progress.hopeless
    assert Progress().feed("[2026-11-30 09:16:00] bind on address tables").hopeless is None


def test_the_memory_lines_are_kept() -> None:
    progress = Progress(Phase.POOLS).feed("[t] max_total_num_tokens=8192, chunked_prefill_size=4096")
    assert progress.max_total_tokens == 8192
    line = "DSV4 memory calculation: unified=False, bytes_per_full_token=1670.75, full_token=7000064"
    assert progress.feed(f"[t] {line}").memory_line == line


@given(st.lists(st.one_of(st.sampled_from([line for line, _ in HEAD]), st.text(max_size=200)), max_size=40))
def test_a_phase_is_never_left_backwards(lines: list[str]) -> None:
    progress, order = Progress(), list(Phase)
    for line in lines:
        after = progress.feed(line)
        assert order.index(after.phase) >= order.index(progress.phase)
        assert after.mark >= progress.mark
        progress = after


def test_every_phase_of_loading_has_a_stall_timer() -> None:
    timers = StallTimers()
    assert {phase: stall_limit_s(phase, timers) is not None for phase in Phase} == {
        phase: phase is not Phase.SERVING for phase in Phase
    }
