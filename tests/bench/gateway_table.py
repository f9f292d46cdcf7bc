"""The gateway benchmark's JSON as a Markdown table: a row a figure, a column an arm."""

from __future__ import annotations

from typing import Any

_TITLES = {"direct": "direct", "dsv41": "this gateway", "nginx": "nginx", "litellm": "LiteLLM"}


def _cells(told: dict[str, Any], name: str) -> dict[str, str]:
    """What the column of one arm says, by row."""
    one, direct, rate = told["one_token"][name], told["one_token"]["direct"], told["rates"][name]
    many, few = told["streams"][name], told["few_streams"][name]
    own = {} if name == "direct" else {  # what it costs: an upstream without anything in between costs nothing more
        "added to it, p50, ms": f"{one['p50_ms'] - direct['p50_ms']:.2f}",
        "added to it, p99, ms": f"{one['p99_ms'] - direct['p99_ms']:.2f}",
        "processor time a request, µs": f"{rate['cpu_us_each']:,.0f}",
        "64 streams: of one core": f"{many['of_one_core']:.2f}",
        "64 streams: processor time an event, µs": f"{many['cpu_us_each']:,.0f}",
        "8 streams: of one core": f"{few['of_one_core']:.2f}",
        "memory at rest, MB": f"{told['rest_bytes'][name] / 1e6:.1f}",
        "memory a stream, of 64, kB": f"{many['bytes_a_stream'] / 1e3:,.0f}",
        "memory at the end, MB": f"{told['end_bytes'][name] / 1e6:.1f}",
    }  # fmt: skip
    return {
        "one-token request, p50 / p99, ms": f"{one['p50_ms']:.2f} / {one['p99_ms']:.2f}",
        "requests a second, 32 connections": f"{rate['a_second']:,.0f}",
        "64 streams: events a second, of 9,600": f"{many['a_second']:,.0f}",
        "64 streams: an event late, p50 / p99, ms": f"{many['late_p50_ms']:,.1f} / {many['late_p99_ms']:,.1f}",
        "8 streams: events a second, of 1,200": f"{few['a_second']:,.0f}",
        "8 streams: an event late, p50 / p99, ms": f"{few['late_p50_ms']:,.1f} / {few['late_p99_ms']:,.1f}",
        "a stream's bytes are the upstream's": "yes" if told["checked"][name]["same_bytes"] else "no",
        **own,
    }


_ROWS: tuple[tuple[str, str | None, str], ...] = (
    ("one-token request, p50 / p99, ms", None, ""),
    ("added to it, p50, ms", "added to a one-token request, p50 ms", "≤ 0.5"),
    ("added to it, p99, ms", "added to a one-token request, p99 ms", "≤ 3"),
    ("requests a second, 32 connections", "requests a second against LiteLLM's", "≥ 5 × LiteLLM's"),
    ("processor time a request, µs", None, ""),
    ("64 streams: of one core", "of one core for 64 streams", "≤ 0.25"),
    ("64 streams: processor time an event, µs", None, ""),
    ("64 streams: events a second, of 9,600", None, ""),
    ("64 streams: an event late, p50 / p99, ms", "an event late at p99, ms", "p99 ≤ 20"),
    ("8 streams: of one core", None, ""),
    ("8 streams: events a second, of 1,200", None, ""),
    ("8 streams: an event late, p50 / p99, ms", None, ""),
    ("memory at rest, MB", "memory at rest, bytes", "≤ 60"),
    ("memory a stream, of 64, kB", "memory a stream, bytes", "≤ 100"),
    ("memory at the end, MB", None, ""),
    ("a stream's bytes are the upstream's", None, ""),
)
"""What a row is called, the goal that it is about, and that goal in the row's own unit."""


def table(told: dict[str, Any]) -> str:
    names, conditions = list(told["one_token"]), told["conditions"]
    cells = {name: _cells(told, name) for name in names}
    holds = {goal["goal"]: goal["holds"] for goal in told["goals"]}
    heads = [f"{_TITLES[name]} {conditions['versions'].get(name, '')}".strip() for name in names]
    lines = ["| | " + " | ".join(heads) + " | goal |", "|---|" + "---|" * (len(names) + 1)]
    for what, goal, limit in _ROWS:
        verdict = "" if goal not in holds else f"{limit}: {'holds' if holds[goal] else '**missed**'}"
        lines.append(f"| {what} | " + " | ".join(cells[name].get(what, "-") for name in names) + f" | {verdict} |")
    before = ", ".join(f"{load:.2f}" for load in conditions["load_average_before"])
    lines += ["", (
        f"{conditions['when']}, {conditions['machine']} ({conditions['cpu']}), {conditions['cores']} cores, "
        f"Linux {conditions['kernel']}, Python {conditions['python']}, load average before {before}, "
        f"{conditions['stolen_s']:g} s of processor time taken away by the host, {conditions['took_s']} s in all"
        f"{', --quick' if conditions['quick'] else ''}."
    )]  # fmt: skip
    lines += [f"- {remark}" for remark in told["remarks"]]
    lines += [f"- {name} was not measured: {why}" for name, why in told["not_measured"].items()]
    return "\n".join(lines)
