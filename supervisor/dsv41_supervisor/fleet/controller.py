"""Up, down and back again: the one owner of the fleet's boot. Runs in the head's supervisor.

Workers first: every node passes its stages, every worker waits at the rendezvous, then the head's rank is started and
admitted. One rank lost means that all stop, are seen to be gone, and start in order again: at most `max_recoveries`
times in a window, with a growing pause, and only for boots that had served.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

from ..changes import Changes
from ..checks import unknown_ids
from ..deadline import Deadline
from ..errors import Dsv41Error, PeerUnreachable, Refusal, Refused, Stage
from ..fabric.check import FabricReport, check_fabric
from ..journal import Event, event, log
from ..node import NodeAgent
from ..rank.kv_budget import unequal
from ..rank.plan import Boot
from ..settings import Settings
from .desk import Desk
from .judge import Seen
from .members import WATCH_S, LocalMember, Member, RemoteMember
from .record import FleetRecord
from .samebits import differences, mixed

PEERS_TIMEOUT_S = 20
PACKING_TIMEOUT_S = 4 * 3600
START_TIMEOUT_S = 3600
BOOT_TIMEOUT_S = 24 * 3600
"""Last resorts: what ends a boot that stands still are the stall timers of each phase."""
LOST_GRACE_S = 2.0
STALE_COUNT_S = 5.0


class FleetState(StrEnum):
    """What users are told; derived from the ranks and from what was asked for."""

    DOWN = "down"
    STARTING = "starting"
    SERVING = "serving"
    RECOVERING = "recovering"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"


def _unreachable(member: Member) -> dict[str, Any]:
    return {"node": member.name, "unreachable_s": round(member.silent_s, 1), "trouble": member.trouble}


class FleetController:
    """See the module's docstring. All methods run in one event loop."""

    def __init__(self, settings: Settings, agent: NodeAgent, key: str) -> None:
        self.settings = settings
        self.changes = Changes()
        self.state = FleetState.DOWN
        self.reason: str | None = None
        self.refusals: tuple[Refusal, ...] = ()
        self._agent = agent
        self.members: dict[str, Member] = {
            name: LocalMember(agent, self.changes) if name == agent.node
            else RemoteMember(settings, name, key, self.changes)
            for name in settings.fleet.in_rank_order
        }  # fmt: skip
        self._record = FleetRecord.load(settings.state_dir(agent.node))
        self.fabric: FabricReport | None = None
        self._order = asyncio.Event()
        self._boot_began_s = 0.0
        self.desk = Desk(settings, agent.node, self.members, self._about)

    # -- what others ask ---------------------------------------------------------------------------------------------

    def up(self, by: str, override: tuple[str, ...] = ()) -> str:
        """Ask for the fleet to serve. Changes nothing when it already does; returns one sentence.

        `override` names checks whose refusal does not stop this boot and its recoveries. Raises Dsv41Error for a name
        that no check has.
        """
        if unknown := unknown_ids(override):
            raise Dsv41Error(
                f"no check is called {', '.join(unknown)}.", stage=Stage.CONFIG,
                hint="Run dsv41 doctor --list: it shows every check with its id.",
            )  # fmt: skip
        if self._record.wanted_up and self.state in (FleetState.SERVING, FleetState.STARTING, FleetState.RECOVERING):
            return f"the fleet is already {self.state}; nothing was changed"
        allowed = f", overriding {', '.join(override)}" if override else ""
        self._record.decide(f"up was asked for by {by}{allowed}")
        self._record.override = tuple(override)
        self._record.recoveries.clear()
        self.refusals = ()
        if self.state is FleetState.FAILED:
            self._set_state(FleetState.DOWN, None)
        self._set_wanted(True)
        return "starting"

    def down(self, by: str) -> str:
        """Ask for everything to stop."""
        if not self._record.wanted_up and self.state is FleetState.DOWN:
            return "the fleet is already down; nothing was changed"
        self._record.decide(f"down was asked for by {by}")
        if self.state is FleetState.FAILED:
            # Whatever failed, every node is stopped and looked at again.
            self._set_state(FleetState.STOPPING, "stopping")
        self._set_wanted(False)
        return "stopping"

    def drain(self, by: str) -> str:
        """Take no new requests, let the running ones finish, then stop."""
        if self.state is not FleetState.SERVING:
            return self.down(by)
        self._record.decide(f"drain was asked for by {by}")
        self._set_state(FleetState.DRAINING, "draining")
        self._set_wanted(False)
        return "draining"

    def readiness(self) -> dict[str, Any]:
        """What the gateway is handed."""
        serving = self.state is FleetState.SERVING
        port = self.settings.fleet.nodes[self.settings.fleet.head].engine_port
        return {
            "version": self.changes.version,
            "ready": serving,
            "reason": None if serving else self.reason or f"the fleet is {self.state}",
            "state": str(self.state),
            "boot": self._record.boot.id if self._record.boot else None,
            "upstream": f"http://127.0.0.1:{port}",
            "served_model_name": self.settings.engine.served_model_name,
            "retry_after_s": self._retry_after_s(),
            "detail": self._seen().detail(),
        }

    async def status(self) -> dict[str, Any]:
        """The whole fleet, for `dsv41 status`."""

        async def measured(member: Member) -> dict[str, Any]:
            try:
                return await member.measure()
            except Dsv41Error:
                return {}

        figures = await asyncio.gather(*(measured(m) for m in self.members.values()))
        return {
            "fleet": self.settings.fleet.name,
            "state": str(self.state),
            "reason": self.reason,
            "refusals": [r.to_json() for r in self.refusals],
            "boot": self._record.boot.to_json() if self._record.boot else None,
            "wanted": "up" if self._record.wanted_up else "down",
            "recoveries": len(self._record.recoveries),
            "override": sorted({*self._record.override, *self.settings.checks.override}),
            "findings": [f.to_json() for f in self.fabric.told] if self.fabric is not None else [],
            "readiness": self.readiness(),
            "timeline": self._record.timeline[-60:],
            "desk": self.desk.status(),
            "nodes": {
                name: (member.status or _unreachable(member)) | {"measured": m}
                for (name, member), m in zip(self.members.items(), figures, strict=True)
            },
        }

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Drive the fleet until cancelled."""
        async with asyncio.TaskGroup() as group:
            for member in self.members.values():
                group.create_task(member.watch())
            group.create_task(self.desk.run(pick_up=True))
            group.create_task(self._drive())

    def _about(self) -> dict[str, Any]:
        """What a bundle says about the fleet."""
        record = self._record
        return {
            "boot": record.boot.to_json() if record.boot else None,
            "state": str(self.state), "reason": self.reason, "refusals": [r.to_json() for r in self.refusals],
            "wanted": "up" if record.wanted_up else "down", "recoveries": list(record.recoveries),
            "last_boot_s": record.last_boot_s, "timeline": list(record.timeline),
        }  # fmt: skip

    async def close(self) -> None:
        for member in self.members.values():
            if isinstance(member, RemoteMember):
                await member.close()

    async def _drive(self) -> None:
        if self._record.boot is not None:
            await self._or_new_order(self._adopt)
        while True:
            if not self._record.wanted_up:
                if self.state not in (FleetState.DOWN, FleetState.FAILED):
                    await self._or_new_order(self._bring_down)
                if not self._record.wanted_up:
                    await self._next_order()
                continue
            if self.state is FleetState.SERVING:
                await self._or_new_order(self._serve)
                continue
            if self.state is FleetState.FAILED:
                await self._next_order()
                continue
            await self._or_new_order(self._start)

    async def _start(self) -> None:
        """One boot, from checks to serving; on failure everything is stopped and it is decided what comes next."""
        recovering = self.state is FleetState.RECOVERING
        if recovering:
            self._set_state(FleetState.RECOVERING, self.reason)
        else:
            self._set_state(FleetState.STARTING, None)
        try:
            await self._boot_in_order()
        except Dsv41Error as error:
            await self._failed_boot(error, recovering)
            return
        self._record.last_boot_s = time.monotonic() - self._boot_began_s
        self.refusals = ()
        self._set_state(FleetState.SERVING, None)
        assert self._record.boot is not None
        event(
            Event.FLEET_SERVING,
            f"boot {self._record.boot.id} serves after {self._record.last_boot_s:.1f} s",
            stage=Stage.ENGINE,
        )
        if recovering:
            self.desk.tell("recovered", f"boot {self._record.boot.id} serves again")

    async def _boot_in_order(self) -> None:
        fleet = self.settings.fleet
        self._boot_began_s = time.monotonic()
        await self._all_heard()
        # A process that waits to be admitted is what asked for this boot (systemctl start dsv41-rank@0).
        await self._stop_all("a new boot begins", LOST_GRACE_S, keep_waiting=True)
        boot = self._new_boot()
        event(Event.BOOT_STARTED, f"boot {boot.id} (generation {boot.generation}) starts", stage=Stage.RANK)
        self._record.note("checks")
        await self._each(list(self.members), lambda m: m.prepare(boot, self._record.override))
        for member in self.members.values():
            member.lease_boot = boot.id
        await self._until(lambda seen: seen.all_prepared(boot.id), PACKING_TIMEOUT_S, "the checks of every node")
        self._refuse_mixture("same")
        await self._check_cables()
        workers = [name for name in fleet.in_rank_order if name != fleet.head]
        self._record.note("workers start")
        await self._each(workers, lambda m: m.start(boot.id))
        await self._until(
            lambda seen: all(seen.waits_at_rendezvous(w) for w in workers), START_TIMEOUT_S, "the workers to wait"
        )
        self._record.note("head starts")
        await self._each([fleet.head], lambda m: m.start(boot.id))
        await self._until(Seen.all_ready, BOOT_TIMEOUT_S, "every rank to be ready")
        self._refuse_mixture("same_running")
        self._record.note("serving")

    def _refuse_mixture(self, facts: str) -> None:
        """Raises Refused when the ranks differ in what they must have in common; notes what is tolerated."""
        statuses = {n: m.status for n, m in self.members.items() if m.status is not None}
        tolerated = self.settings.supervisor.tolerated_differences
        refusals = differences(statuses, facts=facts, tolerated=tolerated)
        notes = [f"tolerated: the nodes differ in {n}" for n in mixed(statuses, facts) if n in tolerated]
        if facts == "same_running":
            unlike, notes = unequal(statuses)
            refusals += unlike
        for note in notes:
            self._record.note(note)
        if refusals:
            raise Refused(refusals)

    async def _check_cables(self) -> None:
        """Each node passed alone; now both ends of every cable together. Raises Refused."""
        facts = await self._each(list(self.members), lambda m: m.fabric())
        self.fabric = check_fabric(self.settings, facts, self._record.override)
        for finding in self.fabric.overridden:
            event(Event.CHECK_OVERRIDDEN, f"overridden: {finding}", logging.WARNING, stage=Stage.FABRIC)
            self._record.decide(f"check {finding.check} was overridden: {finding.node or 'fleet'}: {finding.what}")
        if self.fabric.refusals:
            raise Refused(self.fabric.refusals)

    async def _serve(self) -> None:
        """Watch until a rank is lost."""
        while True:
            seen = self.changes.version
            lost = self._seen().lost(self._record.boot.id if self._record.boot else None)
            if lost is not None:
                break
            await self.changes.newer_than(seen, 0.5)
        self._record.note(f"lost: {lost}")
        event(Event.RANK_LOST, lost, logging.ERROR, stage=Stage.ENGINE)
        self._set_state(FleetState.RECOVERING, lost)
        self.desk.tell("lost", lost, incident=True)
        await self._recover(lost)

    async def _recover(self, why: str) -> None:
        """Stop all, look that all is gone, pause; the next turn of the loop starts again. Or give up."""
        recovery = self.settings.recovery
        try:
            await self._stop_all(why, LOST_GRACE_S)
        except Dsv41Error as error:
            # Nothing may be started beside what is left; a person has to look.
            self.refusals = error.refusals
            await self._give_up(f"after {why}, not everything could be stopped: {error}")
            return
        self._record.note("all ranks stopped")
        now = time.time()
        self._record.recoveries = [t for t in self._record.recoveries if now - t < recovery.window_s]
        if len(self._record.recoveries) >= recovery.max_recoveries:
            sentence = (f"{len(self._record.recoveries)} recoveries within {recovery.window_s:.0f} s did not hold; "
                        f"staying down. Last reason: {why}")  # fmt: skip
            await self._give_up(sentence)
            return
        pause_s = recovery.backoff_s * 2 ** len(self._record.recoveries)
        self._record.recoveries.append(now)
        self._record.save()
        self._record.decide(
            f"recovery {len(self._record.recoveries)} of {recovery.max_recoveries} in {pause_s:.0f} s, because {why}"
        )
        event(Event.RECOVERY_STARTED, f"recovering: {why}", logging.WARNING, stage=Stage.RANK)
        await asyncio.sleep(pause_s)

    async def _give_up(self, sentence: str) -> None:
        """Stay down, tell a person, and write down why."""
        event(Event.RECOVERY_GIVEN_UP, sentence, logging.ERROR, stage=Stage.RANK)
        self.desk.tell("gave-up", sentence, incident=True)
        self._record.decide(sentence)
        self._set_state(FleetState.FAILED, sentence)

    async def _failed_boot(self, error: Dsv41Error, recovering: bool) -> None:
        self.refusals = error.refusals
        why = str(error)
        self._record.note(f"boot failed: {why.splitlines()[0]}")
        log.error("the boot failed:\n%s", why)
        self.desk.tell("boot-failed", why, incident=True)
        try:
            await self._stop_all("the boot failed", LOST_GRACE_S)
        except Dsv41Error as left:
            self.refusals = tuple(dict.fromkeys((*self.refusals, *left.refusals)))
        if recovering and all(r.transient for r in error.refusals):
            await self._recover(why)
            return
        # A boot that never worked is not tried again as if it had: the same thing would happen.
        self._record.decide(f"the boot failed and is not tried again: {why}")
        self._record.wanted_up = False
        self._record.save()
        self._set_state(FleetState.FAILED, why)

    async def _bring_down(self) -> None:
        if self.state is FleetState.DRAINING:
            await self.members[self.settings.fleet.head].drain()
            await self._drained()
        self._set_state(FleetState.STOPPING, "stopping")
        try:
            await self._stop_all("down was asked for", self.settings.recovery.stop_timeout_s)
        except Dsv41Error as error:
            self.refusals = error.refusals
            self._set_state(FleetState.FAILED, str(error))
            return
        self.refusals = ()
        self._set_state(FleetState.DOWN, None)
        event(Event.FLEET_STOPPED, "every rank is gone", stage=Stage.RANK)

    async def _drained(self) -> None:
        """Wait for running requests, within the limit. A count that stands still while no token moves is an old one."""
        deadline = Deadline.after(self.settings.recovery.stop_timeout_s, "running requests to finish")
        probe = self._agent.probe
        before, moved_at_s = None, time.monotonic()
        while not deadline.expired:
            load = await probe.load()
            if load is None or load.n_running + load.n_queued == 0:
                return
            if before is None or load.moved(before):
                before, moved_at_s = load, time.monotonic()
            elif time.monotonic() - moved_at_s > STALE_COUNT_S:
                return
            await asyncio.sleep(0.25)

    async def _adopt(self) -> None:
        """After a restart of this supervisor: keep what is healthy and the same, else start cleanly."""
        assert self._record.boot is not None
        boot = self._record.boot
        self._set_state(FleetState.STARTING, "looking whether the ranks of the boot before still serve")
        for member in self.members.values():
            member.lease_boot = boot.id
        deadline = Deadline.after(PEERS_TIMEOUT_S + self.settings.engine.stall.warmup_s, "the ranks of the boot before")
        while not deadline.expired:
            statuses = [m.status for m in self.members.values()]
            if all(s is not None for s in statuses):
                ranks = [s["rank"] for s in statuses if s is not None]
                states = {"taken up" if rank.get("taken_up") else rank["state"] for rank in ranks}
                boots = {(s["boot"] or {}).get("id") for s in statuses if s is not None}
                if boots != {boot.id} or states & {"failed", "stopped"}:
                    break
                tolerated = self.settings.supervisor.tolerated_differences
                known = {s["node"]: s for s in statuses if s is not None}
                if states == {"ready"} and not differences(known, tolerated=tolerated):
                    self._record.decide(f"adopted boot {boot.id}: every rank is ready and the same")
                    event(Event.FLEET_ADOPTED, f"adopted boot {boot.id}", stage=Stage.RANK)
                    self._set_state(FleetState.SERVING, None)
                    return
                if states == {"absent"}:
                    break
            seen = self.changes.version
            await self.changes.newer_than(seen, 0.5)
        self._record.decide(f"boot {boot.id} cannot be adopted; stopping what is left of it")
        try:
            await self._stop_all("the boot before cannot be adopted", LOST_GRACE_S)
        except Dsv41Error as error:
            log.warning("%s", error)
        self._set_state(FleetState.DOWN, None)

    # -- pieces ------------------------------------------------------------------------------------------------------

    async def _all_heard(self) -> None:
        """Every node's supervisor has answered. Raises Refused naming those that did not."""
        deadline = Deadline.after(PEERS_TIMEOUT_S, "every node's supervisor")
        while (silent := [n for n, m in self.members.items() if m.status is None]) and not deadline.expired:
            seen = self.changes.version
            await self.changes.newer_than(seen, min(0.5, deadline.left_s))
        if silent:
            nodes = self.settings.fleet.nodes
            troubles = {n: self.members[n].trouble for n in silent}
            raise Refused(
                Refusal(Stage.RANK, trouble, f"Mend it on {n}, then run dsv41 up.", node=n, rank=nodes[n].rank,
                        check="supervisor-understood")
                if (trouble := troubles[n]) is not None
                else Refusal(
                    Stage.RANK,
                    f"its supervisor does not answer at {nodes[n].management_address}:{nodes[n].supervisor_port}.",
                    f"Check that dsv41-supervisor runs on {n}, and the management network.",
                    node=n, rank=nodes[n].rank, transient=True, check="supervisor-reachable",
                )
                for n in silent
            )  # fmt: skip
        # Before anything is asked of them: an order to a supervisor of another version may mean another thing there.
        versions = {n: m.status["same"].get("supervisor version") for n, m in self.members.items() if m.status}
        mixed = differences({n: {"same": {"supervisor version": v}} for n, v in versions.items()})
        if mixed:
            raise Refused(mixed)

    def _new_boot(self) -> Boot:
        seen = [m.status["highest_generation"] for m in self.members.values() if m.status is not None]
        self._record.generation = max([self._record.generation, *seen]) + 1
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        boot = Boot(f"{stamp}-{secrets.token_hex(4)}", self._record.generation, self._free_port())
        self._record.boot = boot
        self._record.save()
        return boot

    def _free_port(self) -> int:
        """A rendezvous port that no boot used lately and nobody listens on."""
        rendezvous = self.settings.engine.rendezvous
        address = str(self.settings.fleet.nodes[self.settings.fleet.head].management_address)
        taken = []
        for i in range(rendezvous.n_ports):
            port = rendezvous.first_port + (self._record.generation + i) % rendezvous.n_ports
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

    async def _each(self, names: list[str], order: Callable[[Member], Awaitable[Any]]) -> dict[str, Any]:
        """Give an order to several nodes at once; all their refusals together."""
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

    async def _stop_all(self, why: str, grace_s: float, *, keep_waiting: bool = False) -> None:
        """Stop every rank and look that it is gone. Raises Refused naming what is left."""
        for member in self.members.values():
            member.lease_boot = None
        self._record.boot = None
        self._record.save()

        async def stop(member: Member) -> dict[str, Any]:
            deadline = Deadline.after(WATCH_S + self.settings.supervisor.peer_timeout_s + 2, f"{member.name}")
            while True:
                try:
                    return await member.stop(why, grace_s, keep_waiting)
                except PeerUnreachable as error:
                    if member.status is None or deadline.expired:
                        # Out of reach: its lease is not renewed any more, so its rank stops by itself, and no boot
                        # begins before its supervisor is heard again.
                        log.warning("%s", error)
                        return {"members": [], "port_free": True}
                    await asyncio.sleep(0.2)

        left = await self._each(list(self.members), stop)
        refusals = []
        for name, what in left.items():
            rank = self.settings.fleet.nodes[name].rank
            if what["members"]:
                refusals.append(
                    Refusal(Stage.RANK, f"processes {what['members']} of the rank cannot be stopped.",
                            f"Look at them on {name}: ps -o pid,stat,wchan -p {','.join(map(str, what['members']))}",
                            node=name, rank=rank, transient=True)
                )  # fmt: skip
            if not what["port_free"]:
                port = self.settings.fleet.nodes[name].engine_port
                refusals.append(
                    Refusal(Stage.RANK, f"port {port} is taken by a process that is not ours.",
                            f"See who holds it on {name}: ss -ltnp 'sport = :{port}', or set another engine_port.",
                            node=name, rank=rank, transient=True, check="engine-port")
                )  # fmt: skip
        if refusals:
            raise Refused(refusals)

    def _seen(self) -> Seen:
        """One look at every node."""
        return Seen(
            self.settings.fleet,
            {name: member.status for name, member in self.members.items()},
            {name: member.silent_s for name, member in self.members.items()},
        )

    async def _until(self, condition: Callable[[Seen], bool], timeout_s: float, waiting_for: str) -> None:
        """Wait for a condition over the nodes' statuses; a lost rank, a silent node or a failed check ends the wait."""
        boot = self._record.boot
        assert boot is not None
        deadline = Deadline.after(timeout_s, waiting_for)
        while True:
            seen = self.changes.version
            look = self._seen()
            failures = look.failures(boot.id)
            if failures:
                raise Refused(failures)
            if condition(look):
                return
            if deadline.expired:
                raise deadline.error()
            await self.changes.newer_than(seen, min(0.5, max(deadline.left_s, 0.01)))

    async def _or_new_order(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` until it ends or someone asks for something else."""
        self._order.clear()
        task = asyncio.ensure_future(work())
        ordered = asyncio.ensure_future(self._order.wait())
        try:
            await asyncio.wait({task, ordered}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ordered.cancel()
            if not task.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            log.error("the fleet's loop failed; stopping the fleet", exc_info=failure)
            try:
                await self._stop_all("the head's loop failed", LOST_GRACE_S)
            except Dsv41Error as left:
                self.refusals = left.refusals
            except Exception:
                # The leases are not renewed any more: what is left stops by itself.
                log.exception("stopping the fleet failed too")
            self._record.wanted_up = False
            self._record.save()
            await self._give_up(f"a bug: {failure!r}")

    async def _next_order(self) -> None:
        await self._order.wait()
        self._order.clear()

    def _set_wanted(self, up: bool) -> None:
        self._record.wanted_up = up
        self._record.save()
        self._order.set()
        self.changes.bump()

    def _set_state(self, state: FleetState, reason: str | None) -> None:
        if state is not self.state or reason != self.reason:
            log.info("fleet: %s -> %s%s", self.state, state, f": {reason}" if reason else "")
        self.state, self.reason = state, reason
        self.changes.bump()

    def _retry_after_s(self) -> float:
        """An estimate from the last boot: what is left of it, at least a second."""
        if self.state is FleetState.SERVING:
            return 0.0
        if self.state in (FleetState.STARTING, FleetState.RECOVERING):
            return round(max(1.0, self._record.last_boot_s - (time.monotonic() - self._boot_began_s)), 1)
        return 60.0
