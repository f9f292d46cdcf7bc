"""Who waits and what each key uses, as Prometheus text. Keys by their names; nothing else of a client."""

from __future__ import annotations

from collections import Counter

from .meters import Meters
from .metrics import family
from .waiting import Lobby


def waiting(lobby: Lobby, now: float) -> str:
    line, turns = lobby.line, lobby.line.waiting()
    oldest_s = max(0.0, now - turns[0].came_at) if turns else 0.0
    estimate_s = line.estimated_wait_s() if turns else 0.0
    lines: list[str] = []
    for name, what, value in (
        ("waiting_requests", "Requests that wait for a place at the engine or for the fleet.", len(turns)),
        ("held_requests", "Of these, held while the fleet does not serve.", 0 if line.open else len(turns)),
        ("waiting_bytes", "Bodies of waiting requests.", line.waiting_bytes),
        ("waiting_oldest_seconds", "Age of the oldest waiting request.", oldest_s),
        ("estimated_wait_seconds", "What a request that came now would wait.", estimate_s),
        ("places", "Answers that may be under way at the engine at once.", line.lanes.running),
        ("places_short_only", "Of the places, for short prompts alone.", line.lanes.reserved),
        ("reading_long_prompts", "Long prompts at the engine whose answer has not begun.", line.n_reading_long),
    ):  # fmt: skip
        lines += [*family(name, "gauge", what), f"dsv41_gateway_{name} {value:.12g}"]
    lines += family("lane_requests", "gauge", "Places taken and requests waiting, by length of the prompt.")
    n_short = sum(turn.short for turn in turns)
    for lane, n_running, n_waiting in (
        ("short", line.n_running - line.n_running_long, n_short),
        ("long", line.n_running_long, len(turns) - n_short),
    ):
        lines += [
            f'dsv41_gateway_lane_requests{{lane="{lane}",at="engine"}} {n_running}',
            f'dsv41_gateway_lane_requests{{lane="{lane}",at="gateway"}} {n_waiting}',
        ]
    waits = lobby.waits
    lines += family("waits_total", "counter", "Requests that waited, by how that ended.")
    lines += [f'dsv41_gateway_waits_total{{end="{end}"}} {n}' for end, n in sorted(waits.ended.items())]
    lines += family("waited_seconds_total", "counter", "Seconds waited by requests that were served then.")
    return "\n".join([*lines, f"dsv41_gateway_waited_seconds_total {waits.seconds:.3f}"]) + "\n"


def keys(lobby: Lobby, meters: Meters) -> str:
    used = sorted(meters.by_name.items())
    waiting = Counter(turn.key for turn in lobby.line.waiting())
    lines: list[str] = []
    for name, kind, what, values in (
        ("requests", "gauge", "Requests of a key now, waiting ones included.", [m.in_flight for _, m in used]),
        ("waiting_requests", "gauge", "Of these, waiting.", [waiting[key] for key, _ in used]),
        ("requests_total", "counter", "Requests of a key that were taken.", [m.taken for _, m in used]),
        ("tokens_total", "counter", "Tokens of a key; estimated where the engine did not count.",
         [round(m.used_tokens) for _, m in used]),
        ("prompt_tokens_total", "counter", "Of these, in prompts, as the engine counted them.",
         [m.prompt_tokens for _, m in used]),
        ("cached_tokens_total", "counter", "Of these in prompts, cached.", [m.cached_tokens for _, m in used]),
        ("repetitions_total", "counter", "Answers of a key that a loop ended.", [m.repetitions for _, m in used]),
        ("leaked_markup_total", "counter", "Answers of a key with markup of tool calls in their text.",
         [m.leaked_markup for _, m in used]),
    ):  # fmt: skip
        lines += family(f"key_{name}", kind, what)
        lines += [f'dsv41_gateway_key_{name}{{key="{key}"}} {n}' for (key, _), n in zip(used, values, strict=True)]
    lines += family("key_refused_total", "counter", "Requests refused for a limit of their key.")
    lines += [
        f'dsv41_gateway_key_refused_total{{key="{key}",limit="{limit}"}} {n}'
        for (key, limit), n in sorted(meters.refused.items())
    ]
    return "\n".join(lines) + "\n"
