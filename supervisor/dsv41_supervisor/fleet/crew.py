"""All nodes together, as the head sees them: look at them, order them, wait for them, stop them.

Which order is due is said by the pure `Sequence`; this carries it out.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ..changes import Changes
from ..deadline import Deadline
from ..errors import Dsv41Error, PeerUnreachable, Refusal, Refused, Stage
from ..journal import log
from ..node import NodeAgent
from ..rank.plan import Boot
from ..settings import Settings
from .judge import Seen, said
from .lease import Stamp
from .members import LocalMember, Member, RemoteMember, watch_s
from .origin import origin
from .record import FleetRecord
from .samebits import differences
from .sequence import NotYet, Sequence, What

PEERS_TIMEOUT_S = 20
ASKED_AGAIN_S = 3.0
"""A node that answered strangely was asked again by then: somebody may have mended it and run up at once."""
LOST_GRACE_S = 2.0
STOP_LOOK_S = 0.25


class Crew:
    """The members of one fleet and the head's side of their lease. Lives in one event loop."""

    def __init__(self, settings: Settings, agent: NodeAgent, key: str, changes: Changes, record: FleetRecord) -> None:
        self.settings = settings
        self.changes = changes
        self.record = record
        fleet = settings.fleet
        self.members: dict[str, Member] = {
            name: LocalMember(agent, changes) if name == agent.node else RemoteMember(settings, name, key, changes)
            for name in fleet.in_rank_order
        }
        for name, member in self.members.items():
            member.renewed_boot = lambda name=name: self.sequence.renews(name)  # type: ignore[misc]
        self.sequence = Sequence(tuple(fleet.in_rank_order), record.generation)
        self.awaited: set[str] = set()
        """Nodes that were told to stop and have not said what is left."""
        self._stamps: dict[str, Stamp] = {}
        self._lives: dict[str, str] = {}
        """Which life of each node's supervisor was given the lease of this boot."""
        self._origin = origin(settings, agent.node)

    async def watch(self) -> None:
        """Hear every node until cancelled."""
        async with asyncio.TaskGroup() as group:
            for member in self.members.values():
                group.create_task(member.watch())

    async def close(self) -> None:
        for member in self.members.values():
            if isinstance(member, RemoteMember):
                await member.close()

    @property
    def silent(self) -> list[str]:
        """Nodes whose supervisor has not answered lately, or never."""
        return [name for name, member in self.members.items() if member.status is None]

    # -- looking -----------------------------------------------------------------------------------------------------

    def look(self) -> Seen:
        """One look at every node."""
        statuses = {name: member.status for name, member in self.members.items()}
        for name, status in statuses.items():
            if status is not None:
                self._hear(name, status)
        return Seen(self.settings.fleet, statuses, {name: m.silent_s for name, m in self.members.items()})

    def _hear(self, name: str, status: dict[str, Any]) -> None:
        """A status is kept until the next one comes, and an order's answer may be newer."""
        stamp, before = Stamp.parse(status["stamp"]), self._stamps.get(name)
        if before is not None and before.life == stamp.life and stamp.at_s < before.at_s:
            return
        self._stamps[name] = stamp
        self.sequence = self.sequence.hear(name, said(status))

    def other_head(self, look: Seen) -> str | None:
        """Who has begun a boot since ours; None while nobody has."""
        for name, status in look.statuses.items():
            if status is not None and self.sequence.overtaken_by(said(status)):
                other = (status["boot"] or {}).get("id") or f"generation {status['highest_generation']}"
                return f"another head has begun {other}: {name} says so"
        return None

    async def all_heard(self, *, wait_s: float | None = PEERS_TIMEOUT_S) -> None:
        """Every node's supervisor has answered. Raises Refused naming those that did not within `wait_s`."""
        deadline = Deadline.after(wait_s if wait_s is not None else 1e9, "every node's supervisor")
        while self.silent and not deadline.expired:
            asked_again = wait_s is not None and deadline.left_s < wait_s - ASKED_AGAIN_S
            if asked_again and all(self.members[name].trouble for name in self.silent):
                # They have answered, since then too, in a way that waiting does not change.
                break
            seen = self.changes.version
            await self.changes.newer_than(seen, min(0.5, deadline.left_s))
        if self.silent:
            raise Refused(self._unheard(name) for name in self.silent)
        # Before anything is asked of them: an order to a supervisor of another version may mean another thing there.
        versions = {n: m.status["same"].get("supervisor version") for n, m in self.members.items() if m.status}
        if mixed := differences({n: {"same": {"supervisor version": v}} for n, v in versions.items()}):
            raise Refused(mixed)

    async def until(self, condition: Callable[[Seen], bool], timeout_s: float, waiting_for: str) -> None:
        """Wait for a condition over the nodes' statuses; a lost rank, a silent node or a failed check ends the wait."""
        boot = self.sequence.boot
        assert boot is not None
        deadline = Deadline.after(timeout_s, waiting_for)
        while True:
            seen = self.changes.version
            look = self.look()
            if (other := self.other_head(look)) is not None:
                raise Refused([two_heads(other)])
            failures = look.failures(boot.id, self.sequence.granted, self._lives)
            if failures:
                raise Refused(failures)
            if condition(look):
                return
            if deadline.expired:
                raise deadline.error()
            await self.changes.newer_than(seen, min(0.5, max(deadline.left_s, 0.01)))

    def own_newer(self, look: Seen) -> Boot | None:
        """A boot that a node holds, newer than the one meant here, and begun by this very head before it was restarted:
        its record is older than what it did. That is no other head."""
        held = [
            Boot.from_json(status["boot"]) for status in look.statuses.values()
            if status is not None and status["boot"] and self.sequence.overtaken_by(said(status))
        ]  # fmt: skip
        ours = [boot for boot in held if boot.id.split("-")[1:2] == [self._origin]]
        return max(ours, key=lambda boot: boot.generation, default=None)

    # -- ordering ----------------------------------------------------------------------------------------------------

    def take_up(self, boot: Boot) -> None:
        """Mean a boot that the supervisor before this one began."""
        self.sequence = self.sequence.taken_up(boot)
        self.record.boot, self.record.generation = boot, self.sequence.generation
        self.record.save()

    def open_boot(self) -> Boot:
        """A new boot, written down before anyone hears of it.

        Raises Refused naming nodes not seen to be stopped, or Dsv41Error when it cannot be written down: a restarted
        head would give the number away again, and take its own boot for another head's.
        """
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        try:
            self.sequence = self.sequence.open(f"{stamp}-{self._origin}-{secrets.token_hex(4)}", self._free_port())
        except NotYet as error:
            raise Refused([
                Refusal(Stage.RANK, f"no boot can begin: {error}.", "Run dsv41 status: it shows what each node does.",
                        transient=True)
            ]) from None  # fmt: skip
        boot = self.sequence.boot
        assert boot is not None
        try:
            with self.record.kept("no boot can begin, because its number cannot be written down"):
                self.record.boot, self.record.generation = boot, boot.generation
        except Dsv41Error:
            self.sequence = self.sequence.close()
            raise
        return boot

    async def give_due(self) -> None:
        """Give every order that is due now. Raises Refused with what any node says against it."""
        boot = self.sequence.boot
        assert boot is not None
        orders = self.sequence.due(self.look().stands(boot.id))

        async def give(member: Member) -> None:
            (order,) = [o for o in orders if o.node == member.name]
            if order.what is What.GRANT:
                if member.status is not None:
                    self._lives[member.name] = Stamp.parse(member.status["stamp"]).life
                await member.prepare(boot, self.record.override)
            else:
                await member.start(boot.id)
            self.sequence = self.sequence.ordered(order)

        await self.each([order.node for order in orders], give)

    async def each(self, names: Iterable[str], order: Callable[[Member], Awaitable[Any]]) -> dict[str, Any]:
        """Give an order to several nodes at once; all their refusals together."""
        names = list(names)
        results = await asyncio.gather(*(order(self.members[n]) for n in names), return_exceptions=True)
        refusals: list[Refusal] = []
        for name, result in zip(names, results, strict=True):
            if isinstance(result, Dsv41Error):
                refusals += result.refusals
            elif isinstance(result, ValueError):
                refusals.append(Refusal(Stage.RANK, f"{result}.", "Run dsv41 down, then dsv41 up.", node=name))
            elif isinstance(result, Exception):
                log.error("an order to %s failed", name, exc_info=result)
                what, hint = f"a bug: {result!r}.", f"Report it with the supervisor's log of {name}."
                refusals.append(Refusal(Stage.RANK, what, hint, node=name))
            elif isinstance(result, BaseException):
                raise result
        if refusals:
            raise Refused(refusals)
        return dict(zip(names, results, strict=True))

    # -- stopping ----------------------------------------------------------------------------------------------------

    async def stop_all(self, why: str, grace_s: float, *, keep_waiting: bool = False) -> list[str]:
        """Stop every rank and look that it is gone: unit, port and memory. Gives the nodes that could not be asked.

        Raises Refused naming what is left.
        """
        self.look()
        self.sequence = self.sequence.close()
        self.record.boot, self.record.generation = None, self.sequence.generation
        self.record.save()
        generation = self.sequence.generation

        async def stop(member: Member) -> dict[str, Any] | None:
            self.awaited.add(member.name)
            try:
                return await self._stopped(member, generation, why, grace_s, keep_waiting)
            finally:
                self.awaited.discard(member.name)
                self.changes.bump()

        refusals: list[Refusal] = []
        unseen: list[str] = []
        for name, left in (await self.each(self.members, stop)).items():
            if left is None:
                unseen.append(name)
            else:
                self._hear(name, left)
                refusals += self._left(name, left)
        if refusals:
            raise Refused(refusals)
        return unseen

    async def _stopped(
        self, member: Member, generation: int, why: str, grace_s: float, keep_waiting: bool
    ) -> dict[str, Any] | None:
        """What a node says is left there; None when it is out of reach.

        Its lease is not renewed any more then, so its rank stops by itself, and no boot begins before its supervisor is
        heard again and says that nothing runs. One that falls silent meanwhile (frozen, or behind a cut cable) has as
        long to come back as a rank has to end.
        """
        began_s, timeout_s = time.monotonic(), self.settings.supervisor.peer_timeout_s
        order = asyncio.ensure_future(member.stop(generation, why, grace_s, keep_waiting))
        try:
            while True:
                await asyncio.wait({order}, timeout=STOP_LOOK_S)
                waited_s = time.monotonic() - began_s
                if not order.done():
                    if member.status is None and waited_s > grace_s:
                        log.warning("%s has not answered for %.1f s; not waiting for it", member.name, member.silent_s)
                        return None
                    continue
                try:
                    return order.result()
                except PeerUnreachable as error:
                    if member.status is None or waited_s > watch_s(self.settings) + timeout_s + 2:
                        log.warning("%s", error)
                        return None
                await asyncio.sleep(0.2)
                order = asyncio.ensure_future(member.stop(generation, why, grace_s, keep_waiting))
        finally:
            order.cancel()
            await asyncio.gather(order, return_exceptions=True)

    def _left(self, name: str, left: dict[str, Any]) -> list[Refusal]:
        """What of a rank was not seen gone."""
        rank, found = self.settings.fleet.nodes[name].rank, []
        if left["members"]:
            found.append(
                Refusal(Stage.RANK, f"processes {left['members']} of the rank cannot be stopped.",
                        f"Look at them on {name}: ps -o pid,stat,wchan -p {','.join(map(str, left['members']))}",
                        node=name, rank=rank, transient=True)
            )  # fmt: skip
        for container in left.get("containers") or ():
            found.append(
                Refusal(Stage.RANK, f"the container {container} of the rank is still there.",
                        f"See it on {name}: podman ps --all; then podman rm --force {container.partition(' ')[0]}.",
                        node=name, rank=rank, transient=True, check="container-left")
            )  # fmt: skip
        if not left["port_free"]:
            port = self.settings.fleet.nodes[name].engine_port
            found.append(
                Refusal(Stage.RANK, f"port {port} is taken by a process that is not ours{_held_by(left)}.",
                        _free_it(left.get("port_holder_pid"), port, name),
                        node=name, rank=rank, transient=True, check="engine-port")
            )  # fmt: skip
        if left.get("memory_missing_bytes"):
            found.append(
                Refusal(Stage.RANK, f"{left['memory_missing_bytes'] / 2**30:.1f} GiB that were available before the "
                        "rank started did not come back after it was gone.",
                        f"See who holds them on {name}: ps aux --sort=-rss | head; reboot {name} when nobody does.",
                        node=name, rank=rank, transient=True, check="memory-back")
            )  # fmt: skip
        return found

    def _unheard(self, name: str) -> Refusal:
        node, trouble = self.settings.fleet.nodes[name], self.members[name].trouble
        if trouble is not None:
            return Refusal(Stage.RANK, trouble, f"Mend it on {name}, then run dsv41 up.", node=name, rank=node.rank,
                           check="supervisor-understood")  # fmt: skip
        return Refusal(
            Stage.RANK, f"its supervisor does not answer at {node.management_address}:{node.supervisor_port}.",
            f"Check that dsv41-supervisor runs on {name}, and the management network.",
            node=name, rank=node.rank, transient=True, check="supervisor-reachable",
        )  # fmt: skip

    def _free_port(self) -> int:
        """A rendezvous port that no boot used lately and nobody listens on."""
        rendezvous = self.settings.engine.rendezvous
        address = str(self.settings.fleet.nodes[self.settings.fleet.head].management_address)
        taken = []
        for i in range(rendezvous.n_ports):
            port = rendezvous.first_port + (self.sequence.generation + 1 + i) % rendezvous.n_ports
            with socket.socket() as sock:
                try:
                    sock.bind((address, port))
                except OSError as error:
                    taken.append(f"{port} ({error.strerror})")
                    continue
            return port
        raise Dsv41Error(
            f"no port of engine.rendezvous is free on {address}: {', '.join(taken[:3])}, …", stage=Stage.RANK,
            node=self.settings.fleet.head, transient=True, hint="See who holds them: ss -ltnp",
        )  # fmt: skip


def _held_by(left: dict[str, Any]) -> str:
    return f": {left['port_holder']}" if left.get("port_holder") else ""


def _free_it(pid: int | None, port: int, name: str) -> str:
    if pid is not None:
        return f"Stop it on {name} (kill {pid}), or set another engine_port there."
    return f"See who holds it on {name}, as root: ss -ltnp 'sport = :{port}'; or set another engine_port there."


def two_heads(sentence: str) -> Refusal:
    return Refusal(
        Stage.RANK, f"{sentence}. This head stands back.",
        "Find the second supervisor that takes itself for the head (same fleet key, another machine or state "
        "directory), stop it, then run dsv41 up.", check="two-heads",
    )  # fmt: skip
