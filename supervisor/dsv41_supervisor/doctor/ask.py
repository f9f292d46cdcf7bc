"""Ask every node for its facts at the same time, each with a deadline; read this node's own where nobody answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ..errors import Dsv41Error, PeerUnreachable, Stage
from ..fabric.bounded import BoundedReads
from ..fabric.facts import NodeFacts
from ..fabric.read import read_facts
from ..fleet.peers import SupervisorClient, read_fleet_key
from ..settings import Settings
from .collect import Standing, asked_and_read, fabric_within, read_host, with_container
from .facts import HostFacts
from .fleet_facts import Answer

ANSWER_S = 0.6
"""Beyond the time that the node itself may take to read its facts."""


@dataclass(slots=True)
class Asked:
    """What every node said. `alone`: no supervisor answered, and this node was looked at without one."""

    answers: dict[str, Answer] = field(default_factory=dict)
    host: dict[str, HostFacts] = field(default_factory=dict)
    fabric: dict[str, NodeFacts] = field(default_factory=dict)
    read_here: str | None = None

    @property
    def alone(self) -> bool:
        return all(answer.problem is not None for answer in self.answers.values())

    @property
    def supervised(self) -> list[str]:
        return [node for node, answer in self.answers.items() if answer.problem is None]


async def ask_fleet(settings: Settings, here: str | None, bound_s: float) -> Asked:
    """Facts of every node that answers in time, and of `here` in any case."""
    asked = Asked()
    nodes = settings.fleet.in_rank_order
    try:
        key = read_fleet_key(settings, here or settings.fleet.head)
    except Dsv41Error as error:
        why = error.refusals[0]
        for node in nodes:
            asked.answers[node] = Answer(node=node, problem=why.what[:300], do_next=why.hint[:300], unasked=True)
    else:
        await asyncio.gather(*(_ask(settings, node, key, bound_s, asked) for node in nodes))
        asked.answers = {node: asked.answers[node] for node in nodes}
    if here is not None and here not in asked.host:
        asked.read_here = here
        await _read_here(settings, here, bound_s, asked)
    return asked


async def _ask(settings: Settings, node: str, key: str, bound_s: float, asked: Asked) -> None:
    began = time.monotonic()
    problem = do_next = None
    wrong_key = False
    clock: dict[str, Any] = {}
    try:
        async with SupervisorClient(settings, node, key) as client:
            # Small and at once, so that the time it took says how well the clocks could be compared.
            sent, sent_s = time.time(), time.monotonic()
            told = float((await client.call("GET", "/doctor/clock", timeout_s=bound_s))["clock_s"])
            took_s = time.monotonic() - sent_s
            clock = {"offset_s": told - (sent + took_s / 2), "offset_error_s": took_s / 2}
            raw = await client.call("GET", f"/doctor/facts?bound_s={bound_s:g}", timeout_s=bound_s + ANSWER_S)
        told_host = HostFacts.model_validate(raw["host"])
        if told_host.node != node:
            # Its facts were read with that node's settings: judged as this one's they would blame everything else.
            problem = f"the supervisor at {client.base} says that it is {told_host.node}."
            do_next = f"Correct fleet.nodes.{node}.management_address, or the --node of dsv41-supervisor there."
        else:
            asked.host[node] = told_host
            if raw["fabric"] is not None:
                asked.fabric[node] = NodeFacts.model_validate(raw["fabric"])
            else:
                problem = f"its fabric facts took longer than {bound_s:g} s to read."
                do_next = "Run dsv41 doctor --timeout 20, and see the supervisor's log there."
    except PeerUnreachable as error:
        waited = time.monotonic() - began
        problem = f"{error.refusals[0].what.rstrip('.')}; waited {waited:.1f} s."
        do_next = error.refusals[0].hint
    except Dsv41Error as error:
        why = error.refusals[0]
        problem, do_next = why.what, why.hint
        # The one refusal of a supervisor that is about the caller's configuration.
        wrong_key = why.stage is Stage.CONFIG
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        asked.host.pop(node, None)
        problem = f"its answer cannot be read ({type(error).__name__}): another version of dsv41-supervisor?"
        do_next = f"Run nixos-rebuild switch on {node} from the same flake.lock."
    host = asked.host.get(node)
    asked.answers[node] = Answer(
        node=node, problem=problem[:300] if problem else None, do_next=do_next[:300] if do_next else None,
        wrong_key=wrong_key, took_s=round(time.monotonic() - began, 4),
        settings_hash_here=host.same.get("settings hash", "")[:64] if host else "", **clock,
    )  # fmt: skip


async def _read_here(settings: Settings, here: str, bound_s: float, asked: Asked) -> None:
    from ..rank.container_look import look

    container = (lambda: look(settings, here)) if settings.engine.container is not None else None
    host, fabric = await asyncio.gather(
        with_container(bound_s, container, read_host(settings, here, Standing(), BoundedReads(), bound_s)),
        fabric_within(
            bound_s, asked_and_read(settings, here, bound_s, lambda one_s: read_facts(settings, here, bound_s=one_s))
        ),
    )
    asked.host[here] = host
    if fabric is not None:
        asked.fabric[here] = NodeFacts.model_validate(fabric)
