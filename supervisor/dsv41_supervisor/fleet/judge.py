"""What the nodes' statuses mean for the fleet. Pure: statuses in, refusals and sentences out."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Refusal, Stage
from ..rank.phases import Phase
from ..rank.state import RankState
from ..settings import Fleet
from .lease import Hold, Stamp
from .sequence import Said, Stand

Status = Mapping[str, Any]


def said(status: Status) -> Said:
    """What a status says about the lease."""
    return Said(int(status["highest_generation"]), (status["boot"] or {}).get("id"), Hold(status["hold"]))


N_LINES = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at every node: its status, or None with the seconds for which it has been silent."""

    fleet: Fleet
    statuses: Mapping[str, Status | None]
    silent_s: Mapping[str, float]

    def number(self, node: str) -> int:
        return self.fleet.nodes[node].rank

    def all_prepared(self, boot_id: str) -> bool:
        """Stages 2–4 of this boot passed on every node."""
        return all(
            s is not None and s["prepare"]["boot"] == boot_id and s["prepare"]["state"] == "passed"
            for s in self.statuses.values()
        )

    def all_ready(self) -> bool:
        return all(s is not None and s["rank"]["state"] == RankState.READY for s in self.statuses.values())

    def waits_at_rendezvous(self, node: str) -> bool:
        """The rank's engine has come to where it waits for the others, or further."""
        status = self.statuses[node]
        if status is None:
            return False
        rank = status["rank"]
        return rank["state"] == RankState.LOADING and rank["phase"] != Phase.STARTING

    def stands(self, boot_id: str) -> dict[str, Stand]:
        """How far every node is in this boot."""

        def stand(node: str, status: Status | None) -> Stand:
            if status is None or (status["boot"] or {}).get("id") != boot_id:
                return Stand.NOTHING
            if status["rank"]["state"] in (RankState.WARMING, RankState.READY, RankState.DRAINING):
                return Stand.READY
            return Stand.WAITING if self.waits_at_rendezvous(node) else Stand.PASSED

        return {node: stand(node, status) for node, status in self.statuses.items()}

    def failures(self, boot_id: str, granted: Container[str], lives: Mapping[str, str]) -> tuple[Refusal, ...]:
        """Why this boot cannot go on; empty while it can, and while a slower node's checks still run: all refusals
        of the checks are shown together.

        `granted` are the nodes that have said that they hold the lease of this boot, `lives` the life of each node's
        supervisor that was given it.
        """
        refusals: list[Refusal] = []
        for node, status in self.statuses.items():
            number = self.number(node)
            if status is None:
                what = f"its supervisor has been silent for {self.silent_s[node]:.0f} s."
                hint = f"Check {node}: is it on, is dsv41-supervisor running?"
                refusals.append(Refusal(Stage.RANK, what, hint, node=node, rank=number, transient=True))
                continue
            preparation, rank = status["prepare"], status["rank"]
            if preparation["boot"] != boot_id:
                lost = self._out_of(boot_id, node, status, granted, lives)
                if lost is not None:
                    refusals.append(lost)
                    continue
                if (status["boot"] or {}).get("id") != boot_id:
                    return ()
                # Its supervisor was restarted beside a rank of this boot, whose checks passed before: the rank counts.
            elif preparation["state"] == "running":
                return ()
            elif preparation["state"] == "refused":
                refusals += [Refusal.from_json(r) for r in preparation["refusals"]]
            if rank["state"] in (RankState.FAILED, RankState.STOPPED):
                lines = [line for line in rank["last_lines"] if line.strip()][-N_LINES:]
                said = f" It last said: {' | '.join(lines)}" if lines else ""
                refusals.append(
                    Refusal(
                        Stage.ENGINE,
                        f"{rank['reason'] or rank['state']}.{said}",
                        f"Run dsv41 logs {node} for more.",
                        node=node,
                        rank=number,
                        transient=not rank["refused"],
                    )
                )
        return tuple(refusals)

    def _out_of(
        self, boot_id: str, node: str, status: Status, granted: Container[str], lives: Mapping[str, str]
    ) -> Refusal | None:
        """Why a node is not in the boot whose lease it was given; None when it is, or cannot have taken it yet."""
        restarted = Stamp.parse(status["stamp"]).life != lives.get(node)
        if (status["boot"] or {}).get("id") == boot_id or not (restarted or node in granted):
            return None
        why = "its supervisor was restarted" if restarted else "its lease was ended"
        return Refusal(
            Stage.RANK, f"{why} while the fleet was starting: it is not in boot {boot_id} any more.",
            f"Run dsv41 up again; see the supervisor's log on {node}.", node=node, rank=self.number(node),
            transient=True,
        )  # fmt: skip

    def lost(self, boot_id: str | None) -> str | None:
        """Why the fleet does not serve any more; None while every rank is ready in this boot."""
        for node, status in self.statuses.items():
            where = f"rank {self.number(node)} on {node}"
            if status is None:
                return f"{where}: its supervisor has been silent for {self.silent_s[node]:.1f} s"
            same_boot = (status["boot"] or {}).get("id") == boot_id
            if same_boot and status["rank"].get("taken_up"):
                # Its supervisor was restarted and looks for itself; the rank's own stall timers bound that.
                continue
            if status["rank"]["state"] != RankState.READY or not same_boot:
                return f"{where} is {status['rank']['sentence']}"
        return None

    def detail(self) -> str:
        """Every rank in a few words."""
        parts = []
        for node, status in self.statuses.items():
            where = f"rank {self.number(node)} on {node}"
            if status is None:
                parts.append(f"{where} unreachable")
            elif status.get("waits_for"):
                parts.append(f"{where} waits for {status['waits_for']}")
            elif status["prepare"]["state"] == "running":
                stage = status["prepare"]["stage"]
                parts.append(f"{where} {f'in stage {stage}' if stage else 'begins its checks'}")
            else:
                parts.append(f"{where} {status['rank']['sentence']}")
        return "; ".join(parts)
