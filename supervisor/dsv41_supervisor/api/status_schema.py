"""What GET /status answers, for the OpenAPI document; `dsv41 status --json` prints the head's unchanged.

Names and what each is for. More may come: whoever reads it leaves alone what it does not know.
"""

from __future__ import annotations

from typing import Any

_TEXT, _OR_NULL = {"type": "string"}, {"type": ["string", "null"]}
_NUMBER, _COUNT, _FLAG = {"type": "number"}, {"type": "integer"}, {"type": "boolean"}
_MAP, _LIST = {"type": "object"}, {"type": "array"}
_MAP_OR_NULL = {"type": ["object", "null"]}


def _said(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return schema | {"description": description}


_REFUSALS = {"type": "array", "items": {"$ref": "#/components/schemas/Refusal"}}

NODE: dict[str, dict[str, Any]] = {
    "node": _said(_TEXT, "Its name."),
    "rank_number": _said(_COUNT, "The rank it runs."),
    "rank": _said(_MAP, "State, sentence, reason, phase, fraction, adapters armed, exit status and last lines of it."),
    "prepare": _said(_MAP, "Stages 2 to 4 of the last boot: state, stage, fraction, seconds of each, refusals."),
    "waits_for": _said(_OR_NULL, "What stopping waits for when it takes longer than it should."),
    "boot": _said(_MAP_OR_NULL, "The boot whose lease it holds."),
    "hold": _said(_TEXT, "What it does with that lease."),
    "highest_generation": _said(_COUNT, "Of any boot it knows."),
    "stamp": _said(_TEXT, "What a renewal answers to."),
    "lease_left_s": _said(_NUMBER, "Seconds until its rank stops by itself."),
    "lease_age_s": _said({"type": ["number", "null"]}, "Seconds since the lease was renewed."),
    "same": _said(_MAP, "What must be equal on every rank, as planned."),
    "same_known": _said(_FLAG, "Whether all of it has been read."),
    "same_running": _said(_MAP, "The same, as the rank's processes really loaded it."),
    "kv": _said(_MAP, "KV pin asked for and granted."),
    "fabric": _said(_MAP, "What changed on its rails since launch."),
    "rails": _said(_MAP, "Interface and carrier of each rail."),
    "memory": _said(_MAP, "Low water mark, and what the memory guard says."),
    "engine": _said(_MAP_OR_NULL, "Load of the engine; of the head only."),
    "notices": _said(_LIST, "What it has to tell people."),
    "warnings": _said({"type": "array", "items": _TEXT}, "What works worse than it should."),
    "supervisor": _said(_MAP, "Its pid, resident bytes and version."),
    "version": _said(_COUNT, "Grows with every change; for long polls."),
    "measured": _said(_MAP, "Processes, bytes and counters of its rank; in the head's answer only."),
    "unreachable_s": _said(_NUMBER, "Instead of most of the above: seconds since it was heard."),
    "trouble": _said(_OR_NULL, "Why what answers there is of no use; null when nothing does."),
}
FLEET: dict[str, dict[str, Any]] = {
    "fleet": _said(_TEXT, "Its name."),
    "state": _said(_TEXT, "down, starting, serving, recovering, draining, stopping or failed."),
    "wanted": _said(_TEXT, "What was ordered last: up or down."),
    "reason": _said(_OR_NULL, "Why it is not serving; one line for each reason."),
    "refusals": _said(_REFUSALS, "The same reasons, each with stage, node, check and what to do next."),
    "boot": _said(_MAP_OR_NULL, "Id, generation and rendezvous port of the boot."),
    "recoveries": _said(_COUNT, "Within recovery.window_s."),
    "paused_by": _said(_OR_NULL, "Who paused recovery."),
    "override": _said({"type": "array", "items": _TEXT}, "Checks that are overridden."),
    "findings": _said(_LIST, "What the last boot's checks of the fabric saw and let pass."),
    "readiness": _said(_MAP, "What the gateway is told: ready, reason, boot, upstream, retry_after_s, detail."),
    "timeline": _said(_LIST, "Of the last boots: what, and when."),
    "desk": _said(_MAP, "The last incident, and what could not be kept or told."),
    "unwritten": _said(_OR_NULL, "What a restarted head would not know, because it is not on disk."),
    "set_aside": _said(_OR_NULL, "What follows from a record that could not be read; until the next boot."),
    "gateway": _said(_MAP, "Where the head asked its gateway, and its trouble: null when it answers."),
    "nodes": {
        "type": "object", "description": "By name.",
        "additionalProperties": {"$ref": "#/components/schemas/NodeStatus"},
    },
}  # fmt: skip
_SINCE = ("unwritten", "set_aside", "gateway")
"""Came later: a head before them does not send them."""
OF_A_WORKER = {
    "head": _said(_TEXT, "The node to ask about the whole fleet."),
    "nodes": FLEET["nodes"],
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "NodeStatus": {"type": "object", "required": ["node"], "properties": NODE},
    "FleetStatus": {
        "type": "object", "required": [name for name in FLEET if name not in _SINCE], "properties": FLEET,
    },
    "WorkerStatus": {"type": "object", "required": list(OF_A_WORKER), "properties": OF_A_WORKER},
}  # fmt: skip
ANSWER = {"anyOf": [{"$ref": "#/components/schemas/FleetStatus"}, {"$ref": "#/components/schemas/WorkerStatus"}]}
