"""What asking the fleet and sending traffic gave: frozen facts, one value a node. Judged by `fleet_checks.py`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..fabric.facts import Facts, Text, Word

ANSWERS = "answers"
DEEP = "deep"
MAX_RESULTS = 1024


class Answer(Facts):
    """How one node answered. `offset_s`: its clock minus ours, give or take `offset_error_s`."""

    node: Word
    problem: Text | None = None
    do_next: Text | None = None
    wrong_key: bool = False
    """It is there, and its fleet key is another than ours."""
    unasked: bool = False
    """This command has no fleet key to ask with; `problem` says why."""
    took_s: float = 0.0
    offset_s: float | None = None
    offset_error_s: float = 0.0
    settings_hash_here: Word = ""
    """Hash of the settings that the asking `dsv41 doctor` read."""


class Traffic(Facts):
    """One test on one direction of one rail. `figure` in the test's own unit: ms, MB/s or Gbit/s."""

    test: Word
    """warm-up, mtu-ping, tcp-echo or rdma-write"""
    rail: Word
    source: Word
    target: Word
    problem: Text | None = None
    skipped: Text | None = None
    connected: bool | None = None
    figure: float | None = None
    verdict: Word | None = None
    mtu: int | None = None


class Ran(Facts):
    """One rank's part in the collective, or its burn. `figure`: median of one all-reduce in ms, or the SM clock in MHz.

    `transport` is what was read back: NET/IB or NET/Socket of NCCL's own log, or the addresses that Gloo connected.
    """

    test: Word
    """collective or clock"""
    problem: Text | None = None
    skipped: Text | None = None
    transport: Annotated[tuple[Word, ...], Field(max_length=64)] = ()
    wanted_transport: Word = ""
    figure: float | None = None
    took_s: float = 0.0


class DeepFacts(Facts):
    """Everything that started at one node."""

    node: Word
    traffic: Annotated[tuple[Traffic, ...], Field(max_length=MAX_RESULTS)] = ()
    ran: Annotated[tuple[Ran, ...], Field(max_length=8)] = ()
