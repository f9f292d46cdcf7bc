"""A small world for the lease: heads, nodes with ranks, a network that loses, delays, repeats and reorders, a clock.

Heads and nodes are the machines that the supervisor runs (`fleet/lease.py`, `fleet/sequence.py`); only what carries
messages, starts processes and tells the time is made up here. A world is a value: every step gives a new one, so that
hypothesis can walk it and a search can visit all of it. Time is counted in ticks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dsv41_supervisor.fleet.lease import (
    Failed,
    Gone,
    Grant,
    Happening,
    Hold,
    LeaseBook,
    Looked,
    RankLease,
    Refuse,
    Renew,
    Save,
    Stamp,
    Start,
    StartRank,
    Stop,
    StopRank,
    Tick,
)  # fmt: skip
from dsv41_supervisor.fleet.sequence import Order, Said, Sequence, Stand, What
from dsv41_supervisor.rank.plan import Boot


@dataclass(frozen=True, slots=True)
class Times:
    """In ticks."""

    ttl: int = 4
    stop: int = 2
    """A rank that was told to end is gone after this long, at the latest."""
    patience: int = 6
    """What a head waits for a boot that it takes up again, or for a boot to come up."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The processes of one rank, as they really are."""

    boot: Boot
    lease: RankLease
    stand: Stand = Stand.PASSED
    dying: int | None = None
    """Ticks until it is gone."""


@dataclass(frozen=True, slots=True)
class Disk:
    highest_generation: int = 0
    boot: Boot | None = None


@dataclass(frozen=True, slots=True)
class Node:
    book: LeaseBook
    disk: Disk = Disk()
    rank: Rank | None = None
    up: bool = True
    """Its supervisor runs. The rank does not need it to go on, only to be told so."""
    life: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """What a node answers to everything."""

    said: Said
    stand: Stand
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Head:
    sequence: Sequence
    disk: Disk = Disk()
    up: bool = True
    wanted: bool = False
    serving: bool = False
    taking_up: bool = False
    stood_back: bool = False
    """Gives no order until a person says something."""
    since: int = 0
    stands: tuple[Stand, ...] = ()
    stamps: tuple[Stamp | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    head: int
    node: int
    body: Happening | Status | None
    """A happening goes to the node, a status to the head; None only asks for a status."""


@dataclass(frozen=True, slots=True)
class World:
    nodes: tuple[Node, ...]
    heads: tuple[Head, ...]
    now: int = 0
    network: tuple[Message, ...] = ()
    cut: frozenset[tuple[int, int]] = frozenset()
    meant: tuple[tuple[str, int], ...] = ()
    """When a head last granted or renewed each boot."""
    newest_started: int = 0
    n_boots: int = 0
    max_messages: int = 64
    times: Times = Times()
    answers_at_once: bool = False
    """Answers are never late, only lost with their question; makes the exhaustive search small enough."""
    log: dict[str, int] = field(default_factory=dict, compare=False, hash=False)
    """Counts for the statistics; shared by all worlds of a walk."""

    # -- what the heads do -----------------------------------------------------------------------------------------

    def messages_due(self, h: int) -> list[Message]:
        """Everything that a head would send now."""
        head = self.heads[h]
        if not head.up:
            return []
        boot, out = head.sequence.boot, []
        for n, name in enumerate(head.sequence.nodes):
            renewed, stamp = head.sequence.renews(name), head.stamps[n]
            body = Renew(renewed, stamp) if renewed is not None and stamp is not None else None
            out.append(Message(h, n, body))
        if head.stood_back or (not head.wanted and boot is None and not head.sequence.generation):
            return out
        for order in head.sequence.due(dict(zip(head.sequence.nodes, head.stands, strict=True))):
            out += self._as_message(h, order)
        return out

    def _as_message(self, h: int, order: Order) -> list[Message]:
        head = self.heads[h]
        n = head.sequence.nodes.index(order.node)
        stamp, boot = head.stamps[n], head.sequence.boot
        if order.what is What.STOP:
            return [Message(h, n, Stop(head.sequence.generation))]
        assert boot is not None
        if order.what is What.START:
            return [Message(h, n, Start(boot.id))]
        return [Message(h, n, Grant(boot, stamp))] if stamp is not None else []

    def send(self, message: Message) -> World:
        self.log["sent"] = self.log.get("sent", 0) + 1
        world = self
        if isinstance(message.body, (Grant, Renew)):
            boot_id = message.body.boot.id if isinstance(message.body, Grant) else message.body.boot_id
            world = replace(world, meant=tuple(sorted({**dict(world.meant), boot_id: world.now}.items())))
        if message in self.network and self.max_messages < 10:
            return world
        if (message.head, message.node) in self.cut or len(self.network) >= self.max_messages:
            self.log["lost"] = self.log.get("lost", 0) + 1
            return world
        return replace(world, network=(*world.network, message))

    def order(self, h: int, up: bool) -> World:
        """A person says up or down."""
        head = self.heads[h]
        if not head.up or head.wanted == up:
            return self
        head = replace(head, wanted=up, stood_back=False, since=self.now)
        if not up:
            head = _closed(head, self.now)
        return self._with_head(h, head)

    # -- what the network does -------------------------------------------------------------------------------------

    def deliver(self, i: int, *, keep: bool = False) -> World:
        """One message arrives, in any order; with `keep` it will arrive again."""
        message = self.network[i]
        self.log["repeated" if keep else "delivered"] = self.log.get("repeated" if keep else "delivered", 0) + 1
        world = self if keep else self.drop(i, counted=False)
        if isinstance(message.body, Status):
            return world._head_hears(message.head, message.node, message.body)
        node = world.nodes[message.node]
        if not node.up:
            return world
        if message.body is not None:
            world = world._happens(message.node, message.body)
        node = world.nodes[message.node]
        said = Said(node.book.highest_generation, node.book.boot.id if node.book.boot else None, node.book.hold)
        here = node.rank is not None and node.book.boot is not None and node.rank.boot == node.book.boot
        stand = node.rank.stand if here and node.rank.dying is None else (
            Stand.PASSED if node.book.boot is not None else Stand.NOTHING)  # fmt: skip
        status = Status(said, stand, node.book.stamp(world.now))
        answer = Message(message.head, message.node, status)
        if world.answers_at_once:
            return world._head_hears(answer.head, answer.node, status)
        return world.send(answer)

    def drop(self, i: int, *, counted: bool = True) -> World:
        if counted:
            self.log["lost"] = self.log.get("lost", 0) + 1
        return replace(self, network=self.network[:i] + self.network[i + 1 :])

    def cut_or_heal(self, h: int, n: int) -> World:
        return replace(self, cut=self.cut ^ {(h, n)})

    # -- what time does --------------------------------------------------------------------------------------------

    def tick(self, *, send: bool = True) -> World:
        """One tick: every supervisor looks at its rank, every rank at its lease, every head sends what is due."""
        world = replace(self, now=self.now + 1)
        for n in range(len(world.nodes)):
            world = world._rank_ticks(n)
            if world.nodes[n].up:
                if world.nodes[n].book.hold is Hold.UNKNOWN:
                    rank = world.nodes[n].rank
                    world = world._happens(n, Looked(rank.boot.id if rank else None))
                world = world._happens(n, Tick())
        world = world._ranks_meet()
        for h in range(len(world.heads)):
            world = world._head_ticks(h)
            if send:
                for message in world.messages_due(h):
                    world = world.send(message)
        return world

    def _rank_ticks(self, n: int) -> World:
        node, world = self.nodes[n], self
        rank, book = node.rank, node.book
        if rank is None:
            # Seen gone: the supervisor looks at its unit each tick.
            return world._happens(n, Gone()) if node.up and book.hold in (Hold.STOPPING, Hold.RUNNING) else world
        if rank.dying is not None:
            rank = replace(rank, dying=rank.dying - 1) if rank.dying > 1 else None
            world = world._with_node(n, replace(node, rank=rank))
            return world._happens(n, Failed()) if node.up else world
        if node.up and book.hold is not Hold.UNKNOWN:
            if book.boot != rank.boot or book.hold is not Hold.RUNNING:
                rank = replace(rank, dying=self.times.stop)
            else:
                left = book.left_s(world.now) if book.confirmed else None
                rank = replace(rank, lease=rank.lease.heard(world.now, left))
        if not rank.lease.may_run(world.now):
            rank = replace(rank, dying=rank.dying or self.times.stop)
        return world._with_node(n, replace(node, rank=rank))

    def _ranks_meet(self) -> World:
        """Ranks of one boot come up together, one stand a tick; a boot without its head waits at the rendezvous."""
        world = self
        boots = [n.rank.boot.id if n.rank and n.rank.dying is None else None for n in self.nodes]
        for n, node in enumerate(self.nodes):
            if node.rank is None or node.rank.dying is not None or node.rank.stand is Stand.READY:
                continue
            everyone = all(boot == node.rank.boot.id for boot in boots)
            if node.rank.stand < Stand.WAITING or everyone:
                world = world._with_node(n, replace(node, rank=replace(node.rank, stand=Stand(node.rank.stand + 1))))
        return world

    def _head_ticks(self, h: int) -> World:
        head = self.heads[h]
        if not head.up or not head.wanted:
            return self
        late = self.now - head.since > self.times.patience
        if head.sequence.boot is not None and not head.serving and late:
            return self.gives_up(h)
        if head.sequence.boot is None and head.sequence.empty >= set(head.sequence.nodes):
            return self.open(h)
        if head.sequence.boot is not None and not head.sequence.admitted:
            return self._with_head(h, replace(head, sequence=head.sequence.admit()))
        return self

    def gives_up(self, h: int) -> World:
        """A head is done with its boot: a check failed, a rank was lost, it waited long enough."""
        head = self.heads[h]
        return self._with_head(h, _closed(head, self.now)) if head.up and head.sequence.boot is not None else self

    def open(self, h: int) -> World:
        """A new boot; written down before anyone hears of it."""
        head = self.heads[h]
        n_boots = self.n_boots + 1
        sequence = head.sequence.open(f"boot-{n_boots}-of-head-{h}", 20000 + n_boots)
        self.log["boots"] = self.log.get("boots", 0) + 1
        assert sequence.boot is not None
        head = replace(head, sequence=sequence, since=self.now, disk=Disk(sequence.generation, sequence.boot))
        stands = (Stand.NOTHING,) * len(self.nodes)
        return replace(self._with_head(h, replace(head, stands=stands)), n_boots=n_boots)

    def _head_hears(self, h: int, n: int, status: Status) -> World:
        head = self.heads[h]
        if not head.up:
            return self
        stamps = (*head.stamps[:n], status.stamp, *head.stamps[n + 1 :])
        head = replace(head, stamps=stamps)
        boot, name = head.sequence.boot, head.sequence.nodes[n]
        if boot is not None and head.sequence.overtaken_by(status.said):
            # Another head is at work: this one stands back for good.
            self.log["stood back"] = self.log.get("stood back", 0) + 1
            return self._with_head(h, replace(_closed(head, self.now), wanted=False, stood_back=True))
        had_it = name in head.sequence.granted
        head = replace(head, sequence=head.sequence.hear(name, status.said))
        if boot is not None and status.said.boot_id == boot.id:
            stands = (*head.stands[:n], status.stand, *head.stands[n + 1 :])
            head = replace(head, stands=stands)
            if status.said.hold is Hold.RUNNING and name not in head.sequence.started:
                head = replace(head, sequence=head.sequence.ordered(Order(name, What.START)))
            if all(s is Stand.READY for s in stands):
                if not head.serving:
                    self.log["served"] = self.log.get("served", 0) + 1
                head = replace(head, serving=True, taking_up=False)
            ended = status.said.hold in (Hold.STOPPING, Hold.NONE) and name in head.sequence.started
            if ended:
                head = _closed(head, self.now)
        elif boot is not None and had_it:
            head = _closed(head, self.now)
        return self._with_head(h, head)

    # -- what breaks -----------------------------------------------------------------------------------------------

    def rank_dies(self, n: int) -> World:
        node = self.nodes[n]
        if node.rank is None or node.rank.dying is not None:
            return self
        self.log["ranks killed"] = self.log.get("ranks killed", 0) + 1
        return self._with_node(n, replace(node, rank=replace(node.rank, dying=1)))

    def supervisor_dies(self, n: int) -> World:
        """SIGKILL of a node's supervisor; on the head's node the head goes with it. The rank stays."""
        if not self.nodes[n].up:
            return self
        self.log["supervisors killed"] = self.log.get("supervisors killed", 0) + 1
        world = self._with_node(n, replace(self.nodes[n], up=False))
        return world._with_head(0, replace(world.heads[0], up=False)) if n == 0 else world

    def reboots(self, n: int) -> World:
        """The machine loses power: rank and supervisor are gone, the disk stays."""
        self.log["nodes rebooted"] = self.log.get("nodes rebooted", 0) + 1
        world = self.supervisor_dies(n)
        return world._with_node(n, replace(world.nodes[n], rank=None))

    def disk_lost(self, n: int) -> World:
        """The state file of a node, and of the head on it, is gone. (Told apart from a second head, see README.)"""
        world = self._with_node(n, replace(self.nodes[n], disk=Disk()))
        return world._with_head(0, replace(world.heads[0], disk=Disk())) if n == 0 else world

    def supervisor_starts(self, n: int) -> World:
        node = self.nodes[n]
        if node.up:
            return self
        life = node.life + 1
        book = LeaseBook(f"node-{n}-life-{life}", node.disk.highest_generation, node.disk.boot)
        world = self._with_node(n, replace(node, up=True, book=book, life=life))
        return world._with_head(0, _from_disk(world.heads[0], world.now)) if n == 0 else world

    def head_comes_or_goes(self, h: int) -> World:
        """A second head, such as a box that was given the head's name: it starts with nothing but the settings."""
        head = self.heads[h]
        if head.up:
            return self._with_head(h, replace(head, up=False))
        return self._with_head(h, replace(_from_disk(replace(head, disk=Disk()), self.now), wanted=True))

    # -- machinery -------------------------------------------------------------------------------------------------

    def _happens(self, n: int, what: Happening) -> World:
        node = self.nodes[n]
        book, actions = node.book.step(what, self.now, self.times.ttl)
        world = self._with_node(n, replace(node, book=book))
        for action in actions:
            node = world.nodes[n]
            match action:
                case Save():
                    disk = Disk(book.highest_generation, book.boot)
                    world = world._with_node(n, replace(node, disk=disk))
                case StartRank():
                    assert node.rank is None, f"{action} beside {node.rank}"
                    newest = world.newest_started
                    assert action.boot.generation >= newest, f"{action} after generation {newest} was admitted"
                    rank = Rank(action.boot, RankLease(book.expires_at_s))
                    world = world._with_node(n, replace(node, rank=rank))
                    world = replace(world, newest_started=action.boot.generation)
                    world.log["ranks started"] = world.log.get("ranks started", 0) + 1
                case StopRank():
                    if node.rank is not None:
                        dying = node.rank.dying or self.times.stop
                        world = world._with_node(n, replace(node, rank=replace(node.rank, dying=dying)))
                case Refuse():
                    world.log["refused"] = world.log.get("refused", 0) + 1
        return world

    def _with_node(self, n: int, node: Node) -> World:
        return replace(self, nodes=(*self.nodes[:n], node, *self.nodes[n + 1 :]))

    def _with_head(self, h: int, head: Head) -> World:
        return replace(self, heads=(*self.heads[:h], head, *self.heads[h + 1 :]))

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The safety invariants, after any step."""
        running = {node.rank.boot.id for node in self.nodes if node.rank is not None}
        assert len(running) <= 1, f"ranks of two boots at once: {sorted(running)}"
        meant = dict(self.meant)
        for n, node in enumerate(self.nodes):
            rank = node.rank
            if rank is None:
                continue
            silent = self.now - meant.get(rank.boot.id, -1000)
            # The lease, the tick that notices it, and the time a rank takes to end.
            limit = self.times.ttl + 1 + self.times.stop
            assert silent <= limit, f"node {n} runs {rank.boot.id}, not meant for {silent} ticks"
            if rank.dying is None:
                assert self.now <= rank.lease.until_s + 1, f"node {n} keeps a rank without a lease"
            if node.up and node.book.hold is Hold.NONE:
                raise AssertionError(f"node {n} says that nothing runs, beside {rank}")

    def serving_boot(self) -> str | None:
        """The boot that really serves: every rank ready in it."""
        boots = {n.rank.boot.id if n.rank and n.rank.stand is Stand.READY and n.rank.dying is None else None
                 for n in self.nodes}  # fmt: skip
        return boots.pop() if len(boots) == 1 else None


def _closed(head: Head, now: int) -> Head:
    closed = replace(head, sequence=head.sequence.close(), serving=False, taking_up=False, since=now)
    return replace(closed, disk=Disk(head.sequence.generation, None))


def _from_disk(head: Head, now: int) -> Head:
    nodes = head.sequence.nodes
    sequence = Sequence(nodes, head.disk.highest_generation)
    if head.disk.boot is not None:
        sequence = sequence.taken_up(head.disk.boot)
    return Head(
        sequence, head.disk, wanted=head.wanted, taking_up=head.disk.boot is not None, since=now,
        stands=(Stand.NOTHING,) * len(nodes), stamps=(None,) * len(nodes),
    )  # fmt: skip


def world(n_nodes: int, n_heads: int, max_messages: int = 64, times: Times = Times()) -> World:
    """Everything down; only head 0 is there, and nobody has asked for anything."""
    names = tuple(f"node-{n}" for n in range(n_nodes))
    nodes = tuple(Node(LeaseBook(f"node-{n}-life-0")) for n in range(n_nodes))
    head = _from_disk(Head(Sequence(names)), 0)
    absent = replace(head, up=False)
    return World(nodes, (head, *[absent] * (n_heads - 1)), max_messages=max_messages, times=times)
