"""`dsv41 supervisor`: the daemon on every node. Wires the pieces together and owns their life."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from .api import Api
from .demo.keeper import MARK
from .doctor.deep.probe import PROBE_UNIT
from .errors import Dsv41Error, Exit, Stage
from .fabric.ruleset import FIREWALL_UNIT
from .fleet.controller import FleetController
from .fleet.desk import Desk, Itself
from .fleet.peers import read_fleet_key
from .guard.link import GUARD_UNIT, guard_argv
from .incident.evidence import LAST_LINES
from .journal import log
from .node import NodeAgent
from .rank.container import CONTAINER_UNIT
from .rank.notify import notify, watchdog_beat_s
from .settings import Settings, UnitBackend
from .units import PACK_UNIT, Units, rank_unit
from .units.process import ProcessUnits, UnitDefinition

PASSED_ON = ("PATH", "HOME", "TMPDIR", "LANG", "XDG_CACHE_HOME", MARK)
"""Nothing else of this process's environment reaches a unit. MARK is how the demo finds everything it started."""

STATUS_S = 60.0


async def run(settings: Settings, settings_path: Path, node: str) -> int:
    """Serve until SIGTERM. Raises Dsv41Error when it cannot start."""
    key = read_fleet_key(settings, node)
    for directory in (settings.state_dir(node), settings.run_dir(node)):
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o750)
        except OSError as error:
            raise Dsv41Error(
                f"cannot make {directory}: {error.strerror}.", stage=Stage.CONFIG, node=node,
                hint="Give the supervisor's user that directory.", transient=True,
            ) from None  # fmt: skip
    units = await _units(settings, settings_path, node)
    agent = NodeAgent(settings, node, units)
    units.on_exit = agent.unit_exited
    log.addHandler(LAST_LINES)
    controller = FleetController(settings, agent, key) if node == settings.fleet.head else None
    if controller is not None:
        agent.on_stopped_by_hand = controller.down
    desk = controller.desk if controller is not None else own_desk(settings, agent)
    api = Api(settings, agent, controller, key, desk)
    here = settings.fleet.nodes[node]
    try:
        await api.door.open(api.application(), str(here.management_address), here.supervisor_port)
    except OSError as error:
        await units.close(stop_all=False)
        raise Dsv41Error(
            f"cannot listen on {here.management_address}:{here.supervisor_port}: {os.strerror(error.errno or 0)}.",
            stage=Stage.CONFIG, node=node, transient=True,
            hint=f"See who holds it: ss -ltnp 'sport = :{here.supervisor_port}', or set another supervisor_port.",
        ) from None  # fmt: skip
    stop = asyncio.Event()
    if controller is not None:
        agent.on_going_down = stop.set
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    work = [asyncio.create_task(agent.run())]
    if controller is not None:
        work.append(asyncio.create_task(controller.run()))
    else:
        work.append(asyncio.create_task(desk.run(pick_up=False)))
    work.append(asyncio.create_task(stop.wait()))
    notify("READY=1")
    work.append(asyncio.create_task(_tell_systemd(agent, controller)))
    log.info("supervisor of %s listens on %s:%d", node, here.management_address, here.supervisor_port)
    try:
        done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            failure = task.exception()
            if failure is not None:
                log.error("the supervisor's work ended by a bug", exc_info=failure)
                return Exit.BUG
        return Exit.OK
    finally:
        notify("STOPPING=1")
        for task in work:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*work, return_exceptions=True)
        await agent.close()
        if controller is not None:
            await controller.close()
        # Child processes are this backend's units: with nobody to watch them, they are stopped. Under systemd they
        # are units of their own and live on.
        await units.close(stop_all=settings.supervisor.units is UnitBackend.PROCESS)
        await api.door.close()


def own_desk(settings: Settings, agent: NodeAgent) -> Desk:
    """A worker's: it keeps what only it saw, and tells people when the head cannot."""

    def about() -> dict[str, Any]:
        boot = agent.leases.boot
        return {"boot": boot.to_json() if boot else None}

    desk = Desk(settings, agent.node, {agent.node: Itself(agent)}, about)
    agent.head_is_silent = lambda sentence: desk.tell("head-silent", sentence, node=agent.node, incident=True)
    return desk


async def _tell_systemd(agent: NodeAgent, controller: FleetController | None) -> None:
    """STATUS= at each change, and WATCHDOG=1 as long as this loop really turns, until cancelled."""
    changes = controller.changes if controller is not None else agent.changes
    beat_s = watchdog_beat_s()
    said = ""
    while True:
        seen = changes.version
        sentence = f"rank {agent.rank_number} on {agent.node} {agent.rank.sentence}"
        if controller is not None:
            why = f" ({controller.reason})" if controller.reason else ""
            sentence = f"fleet {controller.state}{why}; {sentence}"
        notify("WATCHDOG=1", *([f"STATUS={sentence}"] if sentence != said else []))
        said = sentence
        await changes.newer_than(seen, beat_s or STATUS_S)


async def _units(settings: Settings, settings_path: Path, node: str) -> Units:
    rank = settings.fleet.nodes[node].rank
    if settings.supervisor.units is UnitBackend.SYSTEMD:
        # Here and not above: the demo never needs a D-Bus library in memory.
        from .units.systemd import SystemdUnits

        units = [rank_unit(rank), PACK_UNIT, GUARD_UNIT, PROBE_UNIT, FIREWALL_UNIT]
        systemd = SystemdUnits(units + [CONTAINER_UNIT] * (settings.engine.container is not None))
        await systemd.open()
        return systemd
    common = ["--settings", str(settings_path), "--node", node]
    me = [sys.executable, "-m", "dsv41_supervisor"]
    argv = {rank_unit(rank): [*me, "rank", str(rank), *common], PACK_UNIT: [*me, "pack", *common],
            GUARD_UNIT: guard_argv(settings, node), PROBE_UNIT: [*me, "probe", *common]}  # fmt: skip
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {"PYTHONUNBUFFERED": "1"}

    def definition(unit: str) -> UnitDefinition:
        name = unit.removeprefix("dsv41-").replace("@", "-")
        return UnitDefinition(
            argv[unit], environment, settings.run_dir(node) / f"{name}.log", oneshot=unit in (PACK_UNIT, PROBE_UNIT)
        )

    return ProcessUnits(definition, settings.run_dir(node) / "units")
