"""Where to look next when a daemon is in trouble: systemd's words, or the log of a child process.

A `systemctl` in a hint is worse than none where there are no units: the demo, and machines without systemd.
"""

from __future__ import annotations

from pathlib import Path

from ..settings import Settings, UnitBackend

GUARD, GATEWAY, SUPERVISOR = "dsv41-guard", "dsv41-gateway", "dsv41-supervisor"


def look_at_guard(settings: Settings, node: str) -> str:
    """What to do about a guard that does not run; the supervisor starts it again with either backend."""
    if settings.supervisor.units is UnitBackend.SYSTEMD:
        return f"See why on {node}: systemctl status {GUARD}."
    log_path = settings.run_dir(node) / "guard.log"
    return f"The supervisor starts it again by itself; its log on {node} is {log_path}."


def look_at_supervisor(settings: Settings, node: str) -> str:
    """Where a supervisor that stands still or is gone tells why."""
    if settings.supervisor.units is UnitBackend.SYSTEMD:
        return f"Look on {node}: systemctl status {SUPERVISOR}."
    return f"Look on {node}: {_daemon_log(settings, node, 'supervisor')}, or where it was started."


def start_supervisor(settings: Settings, node: str) -> str:
    """How a supervisor that does not run comes back."""
    if settings.supervisor.units is UnitBackend.SYSTEMD:
        return f"Start {SUPERVISOR} on {node}: systemctl start {SUPERVISOR}."
    return f"Start dsv41 supervisor on {node} as it was started before (make demo starts one on every node)."


def look_at_gateway(settings: Settings) -> str:
    """What to do about a gateway that does not answer."""
    head = settings.fleet.head
    if settings.supervisor.units is UnitBackend.SYSTEMD:
        return f"Run systemctl restart {GATEWAY} on {head}; journalctl -u {GATEWAY} says why."
    log_path = gateway_log(settings)
    if log_path.exists():
        return f"Its log on {head} is {log_path}; whoever started it (dsv41 gateway, make demo) has to start it again."
    return f"Start it again on {head} with dsv41 gateway; its log is where it was started."


def gateway_log(settings: Settings) -> Path:
    """Where the demo keeps it. Without systemd and demo, only whoever started the gateway knows."""
    return _daemon_log(settings, settings.fleet.head, "gateway")


def _daemon_log(settings: Settings, node: str, daemon: str) -> Path:
    return settings.run_dir(node).parent / f"{daemon}.log"
