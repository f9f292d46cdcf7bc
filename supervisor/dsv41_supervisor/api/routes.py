"""The whole surface of the supervisor's API in one table: what is not here is not answered.

The table gives the router its routes, the handlers their checked queries and bodies, and the OpenAPI document its
operations. Numbers are finite and bounded here, so that no handler meets a NaN; an unknown field is left alone, so
that two versions of the supervisor can still tell each other that they differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_BODY_BYTES = 256 << 10
MAX_WAIT_S = 30.0
MAX_LOG_LINES = 2000
MAX_GRACE_S = 3600.0

Text = Annotated[str, StringConstraints(max_length=16384)]
BootId = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Wait = Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]


class Asked(BaseModel):
    """Base of queries and bodies."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Poll(Asked):
    since: Count = Field(default=0, description="Version of the last answer; an answer with another comes at once.")
    wait_s: Wait = Field(default=0, description=f"Longest wait for a change; at most {MAX_WAIT_S:g} s are waited.")


class Watch(Poll):
    boot: BootId | None = Field(default=None, description="Renews the lease of this boot, when it is the node's own.")
    stamp: Annotated[str, StringConstraints(max_length=64)] = Field(
        default="", description="Stamp of the node's status that this answers to; without it nothing is renewed."
    )


class LogLines(Asked):
    unit: Literal["rank", "pack"] = Field(default="rank", description="Whose lines.")
    lines: Annotated[int, Field(ge=1, le=1 << 31)] = Field(
        default=100, description=f"How many; at most {MAX_LOG_LINES} come."
    )


class Decided(Asked):
    lines: Annotated[int, Field(ge=1, le=MAX_LOG_LINES)] = Field(default=50, description="How many, newest last.")


class Order(Asked):
    by: Annotated[str, StringConstraints(max_length=200)] = Field(
        default="the API", description="Who asks; written into the audit log."
    )


CheckIds = Annotated[tuple[Annotated[str, StringConstraints(max_length=64)], ...], Field(max_length=64)]


class Up(Order):
    override: CheckIds = Field(default=(), description="Checks whose refusal does not stop this boot; logged.")


class Prepare(Asked):
    boot: dict[str, Any] = Field(description="Id, generation and rendezvous port of the boot.")
    stamp: Annotated[str, StringConstraints(max_length=64)] = Field(
        description="Stamp of the node's status that this answers to; the lease runs from there."
    )
    settings_hash: Text = Field(description="Hash of the head's settings; must be this node's as well.")
    override: CheckIds = Field(default=(), description="Checks whose refusal does not stop this boot.")


class Start(Asked):
    boot: BootId = Field(description="Id of the boot whose lease this node holds.")


class Stop(Asked):
    why: Text = Field(description="The reason; shown as the rank's.")
    grace_s: Annotated[float, Field(ge=0, le=MAX_GRACE_S, allow_inf_nan=False)] = Field(
        description="Seconds from the polite request to the end by force."
    )
    keep_waiting: bool = Field(default=False, description="Leave a process alone that waits to be admitted.")
    generation: Count | None = Field(
        default=None, description="No boot up to this one may run here any more; null: up to the newest known here."
    )


class Admit(Asked):
    wait_s: Wait = Field(default=0, description=f"Longest wait for the head's order; at most {MAX_WAIT_S:g} s.")


class Part(Asked):
    part: Annotated[str, StringConstraints(max_length=200)] | None = Field(
        default=None, description="Name of a part; null lists them."
    )


class Report(Asked):
    """What `dsv41 rank N` says each second."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)
    boot: BootId | None = Field(default=None, description="The boot that the rank belongs to.")
    phase: Text | None = Field(default=None, description="Phase of loading.")
    fraction: Annotated[float, Field(allow_inf_nan=False)] | None = Field(default=None, description="Of the phase.")
    mark: Count = Field(default=0, description="Grows with every sign of progress.")
    max_total_tokens: Count | None = Field(default=None, description="Token budget the engine granted itself.")
    memory_line: Text | None = Field(default=None, description="The engine's own line about its memory.")
    last_lines: Annotated[list[Text], Field(max_length=200)] = Field(default=[], description="The engine's last lines.")
    lost: Text | None = Field(default=None, description="Why the rank cannot go on.")
    stopping: bool = Field(default=False, description="The rank's process was told to stop, and not by us.")
    exit_status: Annotated[int, Field(ge=-256, le=256)] | None = Field(
        default=None, description="The engine's, when it ended."
    )


class Facts(Asked):
    bound_s: Annotated[float, Field(ge=0.1, le=60, allow_inf_nan=False)] = Field(
        default=1.0, description="Longest time for one reader; what is not read in time is named."
    )


class Listen(Asked):
    test: Literal["tcp-echo", "rdma-write", "collective"] = Field(description="What to listen for.")
    rail: Text = Field(default="", description="The rail whose address is listened on.")
    seconds: Wait = Field(description="The door closes by itself after this long, at most two minutes.")


class Send(Asked):
    test: Literal["warm-up", "mtu-ping", "tcp-echo", "rdma-write"] = Field(description="What to send.")
    rail: Text = Field(description="The rail, by its name in the fleet file.")
    target: Text = Field(description="The node at the other end.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="Where the other end listens.")
    token: Annotated[str, StringConstraints(max_length=128)] = Field(default="", description="What opens its door.")
    seconds: Wait = Field(description="Bound of the test.")


class Program(Asked):
    test: Literal["collective", "clock"] = Field(description="What to run in the engine's environment.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="Where the ranks meet on the head.")
    seconds: Wait = Field(description="Bound of the test.")


class Who(StrEnum):
    """What a request must carry."""

    ANYONE = "anyone"
    """Nothing: it tells nothing about the fleet."""
    KEY = "key"
    """The fleet's key. The fleet's name is compared when it is given: a scraper of metrics cannot send it."""
    FLEET = "fleet"
    """The fleet's key and its name: an order, or one supervisor speaking to another."""


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the API; `handler` is the method of Api that answers it."""

    method: str
    path: str
    summary: str
    handler: str
    who: Who = Who.FLEET
    head_only: bool = False
    query: type[Asked] | None = None
    body: type[Asked] | None = None
    success: int = 200
    also: tuple[int, ...] = ()
    media: str = "application/json"


_KEY = Who.KEY
ROUTES: tuple[Route, ...] = (
    Route("GET", "/", "The status page; asks for the key itself.", "page", Who.ANYONE, media="text/html"),
    Route("GET", "/page.js", "The page's script.", "page", Who.ANYONE, media="text/javascript"),
    Route("GET", "/page.css", "The page's looks.", "page", Who.ANYONE, media="text/css"),
    Route("GET", "/liveness", "200 while this supervisor's loop runs; says nothing else.", "liveness", Who.ANYONE),
    Route("GET", "/readiness", "200 when the fleet serves; else 503 with the reason.", "readiness", _KEY, also=(503,)),
    Route("GET", "/status", "The whole fleet (head) or this node.", "status", _KEY),
    Route("GET", "/metrics", "Prometheus text.", "metrics", _KEY, media="text/plain"),
    Route("GET", "/openapi.json", "This document.", "openapi", _KEY),
    Route("POST", "/fleet/up", "Bring the fleet up; changes nothing when it serves.", "fleet_up",
          head_only=True, body=Up, success=202),
    Route("POST", "/fleet/down", "Stop every rank.", "fleet_down", head_only=True, body=Order, success=202),
    Route("POST", "/fleet/drain", "Finish running requests, then stop every rank.", "fleet_drain",
          head_only=True, body=Order, success=202),
    Route("POST", "/fleet/pause", "Start no recovery until resumed.", "fleet_pause",
          head_only=True, body=Order, success=202),
    Route("POST", "/fleet/resume", "Recover by itself again.", "fleet_resume", head_only=True, body=Order, success=202),
    Route("GET", "/fleet/decisions", "The newest decisions with their reasons.", "fleet_decisions",
          head_only=True, query=Decided),
    Route("GET", "/fleet/readiness", "Long poll: may users be served, and by whom.", "fleet_readiness",
          head_only=True, query=Poll),
    Route("GET", "/node/watch", "Long poll of this node's status; renews the lease of the boot named.", "node_watch",
          query=Watch),
    Route("GET", "/node/measure", "Memory and counters of this node's rank.", "node_measure"),
    Route("GET", "/node/fabric", "What stage 2 saw of this node's links, RDMA devices and limits.", "node_fabric"),
    Route("GET", "/node/evidence", "What this node has to say about an incident, without secrets.", "node_evidence"),
    Route("POST", "/incidents", "Keep a bundle of how things stand; answers when it is written.", "incidents_make",
          body=Order, success=201),
    Route("GET", "/incidents", "Bundles kept by this supervisor: the head's are the fleet's.", "incidents"),
    Route("GET", "/incidents/{name}", "One bundle: its parts, or the text of one.", "incident", query=Part,
          also=(404,)),
    Route("GET", "/node/logs", "Last lines of a unit of this node.", "node_logs", query=LogLines),
    Route("POST", "/node/prepare", "Take the lease of a new boot and run stages 2-4.", "node_prepare",
          body=Prepare, success=202),
    Route("POST", "/node/start", "Start this node's rank.", "node_start", body=Start, success=202),
    Route("POST", "/node/stop", "Stop this node's rank; answers what is left.", "node_stop", body=Stop),
    Route("POST", "/node/drain", "Take no new requests.", "node_drain", success=202),
    Route("POST", "/rank/{rank}/admit", "A rank's process asks to start.", "rank_admit", body=Admit),
    Route("POST", "/rank/{rank}/report", "A rank's process reports; answers whether it may go on.", "rank_report",
          body=Report),
    Route("GET", "/doctor/clock", "This node's clock.", "doctor_clock"),
    Route("GET", "/doctor/facts", "What this node looks like: host and fabric.", "doctor_facts", query=Facts),
    Route("POST", "/doctor/listen", "Open one end of a test for a bounded time.", "doctor_listen", body=Listen),
    Route("POST", "/doctor/send", "Send one test over a rail to another node.", "doctor_send", body=Send),
    Route("POST", "/doctor/run", "Run this rank's part of a test in the engine's environment; refused beside a rank.",
          "doctor_run", body=Program),
)  # fmt: skip
