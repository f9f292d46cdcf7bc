"""Prometheus text of one supervisor. Source: the text exposition format 0.0.4."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .rank.phases import Phase
from .rank.state import RankState

_NAME = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Families:
    """Metric families; each one's samples stay together under one HELP and TYPE, as the format asks."""

    def __init__(self) -> None:
        self._samples: dict[str, list[str]] = {}
        self._heads: dict[str, tuple[str, str]] = {}

    def add(self, metric: str, help_text: str, value: float | None, kind: str = "gauge", **labels: object) -> None:
        """One sample; a value that is not known is left out rather than shown as 0."""
        if value is None:
            return
        metric = _NAME.sub("_", metric)
        self._heads.setdefault(metric, (help_text, kind))
        shown = ",".join(f'{name}="{str(label).translate(_ESCAPES)}"' for name, label in labels.items())
        # repr and not %g: six digits of 120 GiB are wrong by a hundred kilobytes.
        number = repr(int(value)) if float(value).is_integer() else repr(float(value))
        self._samples.setdefault(metric, []).append(f"{metric}{{{shown}}} {number}" if shown else f"{metric} {number}")

    def text(self) -> str:
        lines: list[str] = []
        for metric, (help_text, kind) in self._heads.items():
            lines += [f"# HELP {metric} {help_text}", f"# TYPE {metric} {kind}", *self._samples[metric]]
        return "\n".join(lines) + "\n"


def render(node: Mapping[str, Any], measured: Mapping[str, Any], fleet: Mapping[str, Any] | None) -> str:
    """This node's figures, and the fleet's when this is the head."""
    families = Families()
    _node(families, node, measured)
    if fleet is not None:
        _fleet(families, fleet)
    return families.text()


def _node(families: Families, node: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    rank = node["rank"]
    where = {"node": node["node"], "rank": node["rank_number"]}
    add = families.add
    for state in RankState:
        add("dsv41_rank_state", "1 for the state the rank is in.", float(rank["state"] == state), **where, state=state)
    add("dsv41_rank_state_seconds", "Seconds for which the rank has been in its state.", rank["for_s"], **where)
    for phase in Phase:
        inside = rank["state"] == RankState.LOADING and rank["phase"] == phase
        add("dsv41_rank_phase", "1 for the phase of loading the rank is in.", float(inside), **where, phase=phase)
    add("dsv41_rank_phase_fraction", "How much of the phase is done, 0 to 1.", rank["fraction"], **where)
    add("dsv41_rank_rss_bytes", "Resident memory of the rank's processes.", measured["rank_rss_bytes"], **where)
    add("dsv41_rank_processes", "Processes of the rank that live.", measured["n_processes"], **where)
    add("dsv41_rank_token_budget", "Tokens the engine granted itself.", rank["max_total_tokens"], **where)
    for adapter, state in rank["armed"].items():
        in_place = float(state in ("armed", "engaged"))
        add("dsv41_adapter_armed", "1 when an adapter asked for is in place.", in_place, **where, adapter=adapter)
    for counter, value in measured["counters"].items():
        add(f"dsv41_{counter}_total", "Counter of the engine's adapters.", value, "counter", **where)
    here = {"node": node["node"]}
    available = measured["memory_available_bytes"]
    add("dsv41_node_memory_available_bytes", "MemAvailable of the node.", available, **here)
    low = node["memory"]["low_water_bytes"]
    add("dsv41_node_memory_low_water_bytes", "Least MemAvailable since the rank was started.", low, **here)
    add("dsv41_supervisor_rss_bytes", "Resident memory of the supervisor.", node["supervisor"]["rss_bytes"], **here)
    add("dsv41_lease_left_seconds", "Seconds until the lease ends; 0 without one.", node["lease_left_s"], **here)
    age = node.get("lease_age_s")
    add("dsv41_lease_age_seconds", "Seconds since the lease was last renewed.", age, **here)
    add("dsv41_lease_generation", "Highest boot number this node has seen.", node["highest_generation"], **here)
    add("dsv41_node_warnings", "Warnings that the node's status shows.", len(node["warnings"]), **here)
    for name, rail in node.get("rails", {}).items():
        up = float(rail["state"] == "up")
        add("dsv41_rail_up", "1 while the rail's link is up.", up, **here, rail=name, interface=rail["interface"])
    engine = node.get("engine")
    if engine is not None:
        add("dsv41_engine_tokens_per_second", "Tokens prefilled and decoded.", engine["tokens_per_s"], **here)
        add("dsv41_engine_requests_running", "Requests the engine works on.", engine["n_running"], **here)
        add("dsv41_engine_requests_queued", "Requests that wait in the engine.", engine["n_queued"], **here)


def _fleet(families: Families, fleet: Mapping[str, Any]) -> None:
    name = {"fleet": fleet["fleet"]}
    add = families.add
    add("dsv41_fleet_serving", "1 while the fleet serves.", float(fleet["state"] == "serving"), **name)
    states = ("down", "starting", "serving", "recovering", "draining", "stopping", "failed")
    for state in dict.fromkeys((*states, fleet["state"])):
        is_it = float(fleet["state"] == state)
        add("dsv41_fleet_state", "1 for the state the fleet is in.", is_it, **name, state=state)
    add("dsv41_fleet_wanted_up", "1 when the fleet is meant to serve.", float(fleet["wanted"] == "up"), **name)
    add("dsv41_fleet_recoveries", "Recoveries within the window.", fleet["recoveries"], **name)
    add("dsv41_fleet_refusals", "Reasons why the last boot did not serve.", len(fleet["refusals"]), **name)
    for node, status in fleet["nodes"].items():
        heard = float("rank" in status)
        add("dsv41_node_reachable", "1 while the node's supervisor answers the head.", heard, **name, node=node)
