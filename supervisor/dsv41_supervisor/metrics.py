"""Prometheus text of one supervisor. Source: the text exposition format 0.0.4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .rank.state import RankState


def render(node: Mapping[str, Any], measured: Mapping[str, Any], fleet: Mapping[str, Any] | None) -> str:
    """This node's figures, and the fleet's when this is the head."""
    name = node["node"]
    rank = str(node["rank_number"])
    lines: list[str] = []

    def gauge(metric: str, help_text: str, value: float, kind: str = "gauge", **labels: str) -> None:
        if f"# HELP {metric} " not in "\n".join(lines):
            lines.append(f"# HELP {metric} {help_text}")
            lines.append(f"# TYPE {metric} {kind}")
        shown = ",".join(f'{k}="{v}"' for k, v in labels.items())
        lines.append(f"{metric}{{{shown}}} {value:g}")

    for state in RankState:
        gauge("dsv41_rank_state", "1 for the state the rank is in.", float(node["rank"]["state"] == state),
              node=name, rank=rank, state=str(state))  # fmt: skip
    gauge("dsv41_rank_rss_bytes", "Resident memory of the rank's processes.", measured["rank_rss_bytes"],
          node=name, rank=rank)  # fmt: skip
    gauge(
        "dsv41_node_memory_available_bytes", "MemAvailable of the node.", measured["memory_available_bytes"], node=name
    )
    gauge(
        "dsv41_supervisor_rss_bytes", "Resident memory of the supervisor.", node["supervisor"]["rss_bytes"], node=name
    )
    gauge("dsv41_lease_left_seconds", "Seconds until the lease ends.", node["lease_left_s"], node=name)
    for counter, value in measured["counters"].items():
        gauge(f"dsv41_{counter}_total", "Counter of the engine's adapters.", value, "counter", node=name, rank=rank)
    if fleet is not None:
        gauge(
            "dsv41_fleet_serving", "1 while the fleet serves.", float(fleet["state"] == "serving"), fleet=fleet["fleet"]
        )
        gauge("dsv41_fleet_recoveries", "Recoveries within the window.", fleet["recoveries"], fleet=fleet["fleet"])
    return "\n".join(lines) + "\n"
