"""What `dsv41 demo --once --json` prints, and the text of a demo that stays up."""

from __future__ import annotations

from typing import Any

from ..settings import EngineKind
from ..smoke import Answer
from ..units.procfs import rss_bytes
from .fleet import DemoFleet

SCRIPTED = "scripted engine: a test double answers here, not SGLang"
REAL = "sglang 0.5.23 on CPU, random weights"


def report(
    fleet: DemoFleet, status: dict[str, Any], answer: Answer, ready_s: float, stages: dict[str, float]
) -> dict[str, Any]:
    """One JSON object. Seconds and megabytes (10^6); `stages` in the order they ran."""
    nodes = status["nodes"]
    return {
        "ready_s": round(ready_s, 2),
        "ranks": [
            {
                "node": name,
                "rank": node["rank_number"],
                "state": node["rank"]["state"],
                "rss_mb": round(node["measured"].get("rank_rss_bytes", 0) / 1e6),
                "adapters": node["rank"]["armed"],
            }
            for name, node in sorted(nodes.items(), key=lambda item: item[1]["rank_number"])
        ],
        "supervisors_rss_mb": [round(node["supervisor"]["rss_bytes"] / 1e6, 1) for node in nodes.values()],
        "gateway_rss_mb": round(
            sum(rss_bytes(d.process.pid) for d in fleet.daemons if d.name == "gateway") / 1e6, 1
        ),
        "answer": answer.text,
        "completion_tokens": answer.completion_tokens,
        "tokens_per_s": round(answer.tokens_per_s, 2),
        "first_token_s": round(answer.first_s, 3),
        "engram_rows_read": sum(n["measured"].get("counters", {}).get("engram_rows_read", 0) for n in nodes.values()),
        "engine": SCRIPTED if fleet.settings.engine.kind is EngineKind.SCRIPTED else REAL,
        "network": str(fleet.network.mode),
        "shows_not": list(fleet.network.shows_not),
        "stages": {name: round(took, 2) for name, took in stages.items()},
    }  # fmt: skip


def what_next(fleet: DemoFleet, key_file: str) -> str:
    """Endpoint, key file and what to try, for a person."""
    settings = fleet.settings
    worker = settings.fleet.by_rank(min(1, settings.fleet.world_size - 1))
    dsv41 = f".venv/bin/dsv41 {{}} --settings {fleet.settings_path}"
    lines = [
        f"endpoint  {fleet.endpoint}/v1",
        f"key       the part after the colon in {key_file}",
        f"model     {settings.engine.served_model_name}"
        + (
            f"  ({SCRIPTED})"
            if settings.engine.kind is EngineKind.SCRIPTED
            else "  (random weights: the words are noise)"
        ),
        "",
        "try",
        f"  {dsv41.format('smoke')}",
        f"  {dsv41.format('status')}",
        f"  {dsv41.format('logs ' + worker)}",
        # The key goes in by a file, not by argv, where every user of the machine could read it.
        f"  curl -N {fleet.endpoint}/v1/chat/completions \\",
        f"    -H @<(sed 's/^[^:]*:/Authorization: Bearer /' {key_file}) \\",
        "    -H 'Content-Type: application/json' -d '{\"model\": \""
        + settings.engine.served_model_name
        + '", "stream": true, "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}\'',
        f"  kill -9 $(pgrep -f 'rank 1 --settings {fleet.settings_path}')   # and watch the fleet come back",
        "",
        "not shown here",
        *(f"  {sentence}" for sentence in fleet.network.shows_not),
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)

