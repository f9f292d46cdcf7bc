"""What the packet filter does with new TCP connections on the rails, from `nft -j list ruleset`.

The rules are walked with a made-up packet. A match that is not understood may hold or not, so both ways are followed:
the answer is `accept` or `drop` only when every way leads there, and `unknown` otherwise. Of the hooks before input,
and of output, only a certain drop counts: what stands there is mostly no verdict (reverse path filters, marks), and
doubt about it would hide what the input hook says. RoCE itself is handled by the adapter and never meets any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network
from typing import Any

from .facts import Firewall
from .roots import Roots, Unreadable, text
from .ruleset import Ruleset, nft

ACCEPT, DROP, UNKNOWN = "accept", "drop", "unknown"
EPHEMERAL_PORT = 40000
"""A port as the kernel gives them out to whoever asks for any: what Gloo and NCCL listen on."""
_GO_ON = "go on"
_MAX_DEPTH = 16
_XT_ENDS = ("REJECT", "DROP")
_XT_GOES_ON = (
    "AUDIT", "CHECKSUM", "CLASSIFY", "CONNMARK", "CONNSECMARK", "CT", "DSCP", "HMARK", "LOG", "MARK", "NFLOG",
    "NOTRACK", "SECMARK", "SET", "TCPMSS", "TOS", "TRACE", "TTL",
)  # fmt: skip
"""Targets of iptables-nft by name: nft's JSON has no words of its own for them, not even for REJECT."""


@dataclass(frozen=True, slots=True)
class Packet:
    """The first packet of a TCP connection: from where, on which interface, and where it leaves when forwarded."""

    iif: str
    saddr: IPv4Address | None = None
    dport: int = EPHEMERAL_PORT
    oif: str | None = None
    daddr: IPv4Address | None = None


async def read_firewall(
    roots: Roots, incoming: Sequence[Packet], forwarded: Sequence[Packet], ruleset: Ruleset = nft
) -> Firewall:
    """Verdicts by interface; the worst one where an interface has several packets. Raises Unreadable."""
    legacy = [name for name in ("ip_tables_names",) if (text(roots.proc / "net" / name) or "").strip()]
    shown = await ruleset()
    if legacy:
        raise Unreadable("iptables-legacy holds rules that nft does not show")
    return judge(shown, incoming, forwarded)


def judge(shown: Any, incoming: Iterable[Packet], forwarded: Iterable[Packet]) -> Firewall:
    """Verdicts from a ruleset as nft prints it. Raises Unreadable."""
    ruleset = _Ruleset(shown)
    ins: dict[str, str] = {}
    outs: dict[str, str] = {}
    for packet in incoming:
        way_in = ruleset.verdict("input", packet)
        if DROP in (ruleset.verdict("ingress", packet), ruleset.verdict("prerouting", packet)):
            way_in = DROP
        ins[packet.iif] = _worst(ins.get(packet.iif, ACCEPT), way_in)
        # Peers are connected to as well as from: the same port and address, the other way round.
        away = Packet("", dport=packet.dport, oif=packet.iif, daddr=packet.saddr)
        if ruleset.verdict("output", away) == DROP:
            outs[packet.iif] = DROP
    through = {f"{p.iif}>{p.oif}": ruleset.verdict("forward", p) for p in forwarded}
    return Firewall(incoming=ins, outgoing=outs, forwarded=through, tables=tuple(sorted(ruleset.tables))[:64])


def _worst(one: str, other: str) -> str:
    return min(one, other, key=[DROP, UNKNOWN, ACCEPT].index)


class _Ruleset:
    def __init__(self, shown: Any) -> None:
        items = shown.get("nftables") if isinstance(shown, dict) else None
        if not isinstance(items, list):
            raise Unreadable("nft printed no ruleset")
        self.chains: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.rules: dict[tuple[str, str, str], list[list[Any]]] = {}
        self.sets: dict[tuple[str, str, str], Any] = {}
        self.tables: set[str] = set()
        for item in items:
            for kind, body in item.items() if isinstance(item, dict) else ():
                if not isinstance(body, dict) or body.get("family") not in ("ip", "inet", "netdev"):
                    continue
                table = (body["family"], body.get("table", body.get("name", "")))
                if kind == "table":
                    self.tables.add(f"{body['family']} {body.get('name', '')}"[:64])
                elif kind == "chain":
                    self.chains[(*table, body["name"])] = body
                elif kind == "rule":
                    self.rules.setdefault((*table, body["chain"]), []).append(body.get("expr", []))
                elif kind in ("set", "map"):
                    self.sets[(*table, body["name"])] = body.get("elem", [])

    def verdict(self, hook: str, packet: Packet) -> str:
        """A packet passes when every chain of the hook lets it; one drop is the end of it."""
        base = [
            (key, chain) for key, chain in self.chains.items()
            if chain.get("hook") == hook and chain.get("type") in ("filter", "route") and _is_of(chain, packet.iif)
        ]  # fmt: skip
        doubtful = False
        for key, chain in sorted(base, key=lambda item: item[1].get("prio", 0)):
            ways = self._walk(key, packet, 0)
            if _GO_ON in ways:
                ways = (ways - {_GO_ON}) | {DROP if chain.get("policy") == DROP else ACCEPT}
            if ways == {DROP}:
                # Chains before this one either let it through or dropped it as well.
                return DROP
            doubtful |= DROP in ways
        return UNKNOWN if doubtful else ACCEPT

    def _walk(self, chain: tuple[str, str, str], packet: Packet, depth: int) -> set[str]:
        """Every way a packet may leave a chain: accept, drop, or back to whoever jumped here."""
        if depth > _MAX_DEPTH:
            return {ACCEPT, DROP, _GO_ON}
        ways: set[str] = set()
        for rule in self.rules.get(chain, ()):
            holds: bool | None = True
            for expression in rule:
                kind, body = next(iter(expression.items())) if expression else ("", None)
                if kind == "match":
                    holds = _and(holds, _match(body, packet, lambda name: self.sets.get((*chain[:2], name))))
                elif kind in ("limit", "quota") or (kind == "xt" and _xt(body) != "target"):
                    holds = _and(holds, None)
                if holds is False:
                    break
                left = self._action(kind, body, chain, packet, depth)
                if left is not None:
                    ways |= left - {_GO_ON}
                    if _GO_ON not in left or kind in ("return", "goto"):
                        if _GO_ON in left:
                            ways.add(_GO_ON)
                        if holds:
                            return ways
                        break
        return ways | {_GO_ON}

    def _action(self, kind: str, body: Any, chain: tuple[str, str, str], packet: Packet, depth: int) -> set[str] | None:
        """How the packet may leave through this statement; None when the statement decides nothing."""
        if kind == "accept":
            return {ACCEPT}
        if kind in ("drop", "reject"):
            return {DROP}
        if kind == "return":
            return {_GO_ON}
        if kind in ("jump", "goto"):
            return self._walk((*chain[:2], body["target"]), packet, depth + 1)
        if kind == "vmap":
            return self._vmap(body, chain, packet, depth)
        if kind == "xt":
            name = body.get("name") if _xt(body) == "target" else None
            if name in _XT_ENDS:
                return {DROP}
            # Older nft names neither kind nor name: then it may be either.
            return None if name in _XT_GOES_ON or _xt(body) in ("match", "watcher") else {ACCEPT, DROP, _GO_ON}
        if kind in ("queue", "tproxy"):
            return {ACCEPT, DROP, _GO_ON}
        return None

    def _vmap(self, body: Any, chain: tuple[str, str, str], packet: Packet, depth: int) -> set[str]:
        data = body.get("data")
        pairs = data.get("set") if isinstance(data, dict) else self.sets.get((*chain[:2], str(data).lstrip("@")))
        if not isinstance(pairs, list):
            return {ACCEPT, DROP, _GO_ON}
        ways: set[str] = set()
        for pair in pairs:
            key, verdict = pair[0], pair[1]
            holds = _match({"op": "==", "left": body["key"], "right": key}, packet, lambda _: None)
            if holds is False:
                continue
            kind, target = next(iter(verdict.items()))
            ways |= self._action(kind, target, chain, packet, depth) or {_GO_ON}
            if holds:
                return ways
        return ways | {_GO_ON}


def _is_of(chain: dict[str, Any], interface: str) -> bool:
    """Whether a packet of that interface meets a chain: those of the ingress hook belong to some interfaces only."""
    devices = chain.get("dev")
    return devices is None or interface in ([devices] if isinstance(devices, str) else devices)


def _xt(body: Any) -> str | None:
    """match, target or watcher; None where nft does not say it."""
    return body.get("type") if isinstance(body, dict) else None


def _and(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _match(body: Any, packet: Packet, named_set: Any) -> bool | None:
    """Whether a match holds for the packet; None when that cannot be told."""
    op, left, right = body.get("op"), body.get("left"), body.get("right")
    value = _value(left, packet)
    if value is None:
        return None
    if isinstance(right, str) and right.startswith("@"):
        right = {"set": named_set(right[1:])}
        if right["set"] is None:
            return None
    found = _holds(value, right)
    if found is None or op not in ("==", "!=", "in"):
        return None
    return found != (op == "!=")


def _value(left: Any, packet: Packet) -> str | int | IPv4Address | None:
    """What the left side of a match is for our packet; "" for an interface that it does not have."""
    if not isinstance(left, dict):
        return None
    if "meta" in left:
        return {
            "iifname": packet.iif, "iif": packet.iif, "oifname": packet.oif or "", "oif": packet.oif or "",
            "l4proto": "tcp", "nfproto": "ipv4", "protocol": "ip",
        }.get(left["meta"].get("key"))  # fmt: skip
    if "ct" in left:
        return "new" if left["ct"].get("key") == "state" else None
    if "payload" in left:
        protocol, field = left["payload"].get("protocol"), left["payload"].get("field")
        if (protocol, field) == ("tcp", "dport") or (protocol, field) == ("th", "dport"):
            return packet.dport
        if (protocol, field) == ("ip", "saddr"):
            return packet.saddr
        if (protocol, field) == ("ip", "daddr"):
            return packet.daddr
        if (protocol, field) == ("ip", "protocol"):
            return "tcp"
        # A rule about another protocol: its fields are nothing that this packet has.
        return "no such field" if protocol in ("udp", "icmp", "icmpv6", "ip6", "sctp", "dccp") else None
    return None


def _holds(value: str | int | IPv4Address, right: Any) -> bool | None:
    if isinstance(right, dict) and "set" in right:
        right = right["set"]
    if isinstance(right, dict) and "elem" in right:
        right = right["elem"].get("val")
    if isinstance(right, list):
        each = [_holds(value, item) for item in right]
        return True if True in each else None if None in each else False
    if value == "no such field":
        return False
    try:
        if isinstance(right, dict) and "range" in right:
            low, high = right["range"]
            if isinstance(value, IPv4Address):
                return ip_address(low) <= value <= ip_address(high)
            return int(low) <= int(value) <= int(high)
        if isinstance(right, dict) and "prefix" in right:
            network = ip_network(f"{right['prefix']['addr']}/{right['prefix']['len']}")
            return isinstance(network, IPv4Network) and value in network
        if isinstance(value, IPv4Address):
            return value == ip_address(right)
    except (TypeError, ValueError):
        return None
    if isinstance(value, int):
        return value == right if isinstance(right, int) else None
    return fnmatchcase(value, right) if isinstance(right, str) else None
