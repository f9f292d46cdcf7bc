"""What `dsv41 status` says about the ranks together: same bits, KV budget, memory guard, alerts. Pure."""

from __future__ import annotations

from typing import Any

from ..fleet.samebits import mixed
from ..settings import Settings
from ..units.words import GUARD, look_at_guard


def together(status: dict[str, Any], settings: Settings | None = None) -> list[str]:
    """Sentences, the good ones too: that a fleet is the same everywhere is worth a line. `settings` know whether there
    are units to look at; without them there are."""
    nodes = {name: node for name, node in status["nodes"].items() if "same" in node}
    return [*_same(nodes), *_kv(nodes), *_guard(nodes, settings), *_desk(status.get("desk", {}))]


def _same(nodes: dict[str, Any]) -> list[str]:
    lines = []
    n_facts = 0
    for facts in ("same", "same_running"):
        n_facts += max((len(node.get(facts, {})) for node in nodes.values()), default=0)
        # What a rank loaded is not known where none runs: no difference.
        known = {name: node for name, node in nodes.items() if facts == "same" or node.get(facts)}
        for name, holders in mixed(known, facts).items():
            shown = "; ".join(f"{value} on {', '.join(where)}" for value, where in holders.items())
            lines.append(f"the nodes differ in {name}: {shown}")
    return lines or [f"same bits: {n_facts} facts are equal on {len(nodes)} nodes"]


def _kv(nodes: dict[str, Any]) -> list[str]:
    said: dict[str, list[str]] = {}
    for name, node in nodes.items():
        kv = node.get("kv") or {}
        if kv.get("granted") is None:
            continue
        asked = "no pin" if kv["asked"] is None else f"{kv['asked']} asked, {kv['difference']:+d}"
        room = "" if kv["available_bytes"] is None else f", from {kv['available_bytes'] / 2**30:.2f} GiB"
        said.setdefault(f"KV budget: {kv['granted']} tokens granted ({asked}{room})", []).append(name)
    return [line if len(said) == 1 else f"{line} on {', '.join(where)}" for line, where in said.items()]


def _guard(nodes: dict[str, Any], settings: Settings | None) -> list[str]:
    lines = []
    unprotected: dict[str, list[str]] = {}
    for name, node in nodes.items():
        guard = node.get("memory", {}).get("guard")
        if guard is None:
            continue
        if not guard["connected"]:
            look = look_at_guard(settings, name) if settings else f"See why on {name}: systemctl status {GUARD}."
            lines.append(f"{name}: the memory guard does not run. {look}")
        if guard["gpu_no_memory"]:
            lines.append(
                f"{name}: the GPU driver logged NV_ERR_NO_MEMORY {guard['gpu_no_memory']} times. "
                "Lower engine.memory.mem_fraction_static, or stop what else holds memory there."
            )
        # A high priority in place of real time will do.
        missing = {what: how for what, how in guard["hardening"].items() if not how.startswith(("done", "nice"))}
        if missing:
            unprotected.setdefault(_unprotected(missing), []).append(name)
        lines += [f"{name}: {k['name']} (pid {k['pid']}) also kills for memory. {k['hint']}" for k in guard["killers"]]
    # The same on every node, as a rule.
    return lines + [f"{', '.join(names)}: {sentence}" for sentence, names in unprotected.items()]


_PROTECTION = {
    "memory locked": ("its memory is not locked", "LimitMEMLOCK=infinity"),
    "spared by the OOM killer": ("the OOM killer does not spare it", "OOMScoreAdjust=-1000"),
    "runs before others": ("it does not run before others", "AmbientCapabilities=CAP_SYS_NICE"),
}
"""What a guard may lack, in words, and what its unit has for that."""


def _unprotected(missing: dict[str, str]) -> str:
    """What a guard lacks and what to do about it."""
    words = "; ".join(f"{_PROTECTION.get(what, (f'not {what}', ''))[0]} ({how})" for what, how in missing.items())
    needs = " and ".join(_PROTECTION[what][1] for what in missing if what in _PROTECTION)
    return (
        f"the memory guard may fall with the machine it guards: {words}. "
        f"Give unit dsv41-guard {needs or 'what the NixOS module gives it'} and restart it. "
        "Without systemd, start the supervisor as root outside of any container."
    )


def _desk(desk: dict[str, Any]) -> list[str]:
    lines = [f"last incident: {desk['last_incident']} (dsv41 incident show)"] if desk.get("last_incident") else []
    return lines + [str(desk[what]) for what in ("incident_failure", "alert_failure") if desk.get(what)]
