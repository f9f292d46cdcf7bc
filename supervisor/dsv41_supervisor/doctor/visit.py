"""One visit of the doctor: ask, send if asked to, judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ..checks import CONTAINER, FABRIC, HOST
from ..checks import run as run_checks
from ..settings import Settings
from .ask import ask_fleet
from .fleet_facts import ANSWERS, DEEP, DeepFacts
from .report import Report


async def visit(
    settings: Settings, here: str | None, *, deep: bool, timeout_s: float, show: Callable[[str], None]
) -> Report:
    """Everything that can be known within the bounds. Nothing that is wrong with the fleet raises here."""
    began = time.monotonic()
    asked = await ask_fleet(settings, here, timeout_s)
    traffic: dict[str, DeepFacts] | None = None
    if deep:
        if asked.supervised:
            from .deep.session import run_deep

            traffic = await run_deep(settings, asked.supervised, here or settings.fleet.head, show)
        else:
            show("no supervisor answered: no traffic can be sent")
    facts: dict[str, Mapping[str, Any]] = {ANSWERS: asked.answers, FABRIC: asked.fabric, HOST: asked.host}
    if settings.engine.container is not None:
        facts[CONTAINER] = {n: host.container for n, host in asked.host.items() if host.container is not None}
    if traffic is not None:
        facts[DEEP] = traffic
    findings = run_checks(facts, settings)
    return Report(settings, asked, findings, traffic, time.monotonic() - began)
