"""Checks of one node's host: memory, GPU, other programs, disks, files, ports. Pure: facts and Settings in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..checks import HOST, Found, Severity, check
from ..errors import Stage
from ..guard.memory import kho_bug
from ..settings import Device, Settings, ShareMode
from .facts import HostFacts

Fleet = Mapping[str, HostFacts]
GIB = 1 << 30
NETWORK_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "9p", "fuse.sshfs")
STATE_BYTES = GIB
"""For the supervisor's state and the logs of a rank. Guess; never measured."""
FLAGGED_DRIVERS = ("590.", "595.")
"""Source: users.md M11, nixpkgs#518710."""


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / GIB:.1f} GiB"


def _on_cuda(settings: Settings) -> bool:
    return settings.engine.device is Device.CUDA


@check("host-unread", kind=HOST, severity=Severity.WARNING, stage=Stage.CONFIG,
       what="Every fact of the host can be read in time; otherwise which one, and how long was waited.",
       source="issue 5: no check hangs; users W11")  # fmt: skip
def _unread(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        for why in facts.unread.values():
            mount = "mount" if "checkpoint" in why or "rows" in why or "disks" in why else "supervisor's log"
            yield Found(node, f"{why}.", f"Look at the {mount} on {node}; dsv41 doctor --timeout 20 waits longer.")


@check("fabric-changed", kind=HOST, severity=Severity.WARNING,
       what="The rails are as they were when the running rank was launched: a GID that moves breaks the next boot.",
       source="users F1, F6, F16; §0.3")  # fmt: skip
def _changed(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        for change in facts.fabric_changes:
            yield Found(
                node, f"{change}.", "Put it back, or run dsv41 down and dsv41 up: the next connection may fail."
            )


# -- memory -------------------------------------------------------------------------------------------------------


@check("memory-available", kind=HOST, severity=Severity.REFUSAL, stage=Stage.RANK,
       what="MemAvailable holds the engine's static share and the guard's floor; a Spark out of memory hangs.",
       source="users M1, M2, §0.2; settings engine.memory.mem_fraction_static, guard.floor_bytes")  # fmt: skip
def _memory(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        memory = facts.memory
        if memory is None:
            continue
        floor = settings.guard.floor_bytes
        if facts.runs and facts.rank_state != "unknown":
            if memory.available < floor * 5 // 4:
                yield Found(
                    node, f"{_gib(memory.available)} of memory are available while rank is {facts.rank_state}; the "
                    f"guard kills below {_gib(floor)}.",
                    "Lower engine.memory.max_total_tokens or stop what else runs there.", severity=Severity.WARNING,
                )  # fmt: skip
            continue
        needed = _needed_memory(settings, memory.total)
        if memory.available < needed:
            yield Found(
                node, f"{_gib(memory.available)} of {_gib(memory.total)} memory are available, expected "
                f"{_gib(needed)} before a start.",
                f"See who holds it: ps -eo pid,rss,comm --sort -rss | head, on {node}.", transient=True,
            )  # fmt: skip


def _needed_memory(settings: Settings, total: int) -> int:
    """What a rank takes at least, and what must stay. On CPU several nodes may share one machine's memory."""
    floor = settings.guard.floor_bytes
    fraction = settings.engine.memory.mem_fraction_static
    return floor + int(total * fraction) if _on_cuda(settings) and fraction is not None else floor


@check("memory-page-cache", kind=HOST, severity=Severity.WARNING, stage=Stage.RANK,
       what="Before a start, free memory is not page cache: the KV budget and the load read it differently each time.",
       source="users M2, M4, M15")  # fmt: skip
def _page_cache(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        memory = facts.memory
        if memory is None or not _on_cuda(settings) or facts.runs:
            continue
        needed = _needed_memory(settings, memory.total)
        if memory.free < needed <= memory.available:
            yield Found(
                node, f"{_gib(memory.free)} of memory are free and {_gib(memory.cached)} are page cache; a rank "
                f"takes {_gib(needed)}.",
                f"Run sync; echo 1 > /proc/sys/vm/drop_caches on {node} before dsv41 up, never while it serves.",
            )  # fmt: skip


@check("memory-swap", kind=HOST, severity=Severity.WARNING, stage=Stage.RANK,
       what="Swap is not in use: pages that the GPU shares must not wait for a disk.", source="users M16")  # fmt: skip
def _swap(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        if facts.memory is None:
            continue
        used = facts.memory.swap_total - facts.memory.swap_free
        if used > GIB:
            yield Found(
                node, f"{_gib(used)} of {_gib(facts.memory.swap_total)} swap are in use.",
                f"Find who was swapped out, then run swapoff -a && swapon -a on {node}; see "
                "engine.memory.mem_fraction_static.",
            )  # fmt: skip


@check("memory-kho", kind=HOST, severity=Severity.REFUSAL, stage=Stage.RANK,
       what="The kernel does not hold 26 GiB back for kexec handover (CmaFree above CmaTotal).",
       source="users F19")  # fmt: skip
def _kho(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        memory = facts.memory
        if memory is None or memory.cma_total is None or memory.cma_free is None:
            continue
        said = kho_bug({"CmaTotal": memory.cma_total, "CmaFree": memory.cma_free})
        if said is not None:
            what, _, do_next = said.partition(" Boot ")
            kernel = f" (kernel {facts.kernel.release})" if facts.kernel else ""
            yield Found(node, what.rstrip(".") + kernel + ".", f"Boot {do_next}" if do_next else "Boot with kho=off.")


@check("memory-other-killers", kind=HOST, severity=Severity.WARNING, stage=Stage.RANK,
       what="No other program kills by memory pressure: it would kill a rank and nobody would know why.",
       source="users M3")  # fmt: skip
def _killers(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        for killer in facts.killers or ():
            yield Found(node, f"{killer.name} (pid {killer.pid}) runs and kills by memory pressure.", killer.why)


# -- GPU ----------------------------------------------------------------------------------------------------------


@check("gpu-driver", kind=HOST, severity=Severity.REFUSAL, stage=Stage.ENGINE,
       what="There is an NVIDIA driver; 590 and 595 are flagged.", source="users M11; not run on GB10")  # fmt: skip
def _driver(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        driver = facts.gpu_driver
        if driver is None:
            if not _on_cuda(settings):
                yield _no_gpu(node)
            elif "gpu_driver" not in facts.unread:
                yield Found(node, "there is no NVIDIA driver (/proc/driver/nvidia), and engine.device is cuda.",
                            "Set hardware.nvidia.open = true in the node's configuration, then reboot.")  # fmt: skip
        elif driver.version.startswith(FLAGGED_DRIVERS):
            yield Found(node, f"the driver is {driver.version}, which is known for trouble on GB10.",
                        "Pin 580.173.02, with which others serve.", severity=Severity.WARNING)  # fmt: skip


@check("gpu-open-module", kind=HOST, severity=Severity.REFUSAL, stage=Stage.ENGINE,
       what="The driver is the open kernel module: the proprietary one does not start a GB10.",
       source="users M11; not run on GB10")  # fmt: skip
def _open_module(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        if facts.gpu_driver is not None and facts.gpu_driver.open_module is False:
            yield Found(node, f"the driver {facts.gpu_driver.version} is the proprietary kernel module.",
                        "Set hardware.nvidia.open = true, switch and reboot.")  # fmt: skip


@check("gpu-clock", kind=HOST, severity=Severity.WARNING, stage=Stage.ENGINE,
       what="No GPU is slowed down by heat now; clocks under load are compared by --deep.",
       source="users M7, M9, M10; not run on GB10")  # fmt: skip
def _thermal(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        if facts.gpu_driver is None:
            if not _on_cuda(settings):
                yield _no_gpu(node)
            continue
        for gpu in facts.gpus or ():
            if gpu.thermal_slowdown:
                yield Found(
                    node, f"{gpu.name} is slowed down by heat now ({_number(gpu.temperature_c)} °C, "
                    f"{_number(gpu.sm_mhz)} MHz).",
                    f"Give {node} air, or cap its clock: nvidia-smi -lgc 0,2200.",
                )  # fmt: skip


@check("gpu-users", kind=HOST, severity=Severity.WARNING, stage=Stage.ENGINE,
       what="Nobody else holds the GPU: co-tenants cost memory and 5-8 % of a rank's speed.",
       source="users M6, M17, S14; not run on GB10")  # fmt: skip
def _gpu_users(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        for user in facts.gpu_users or ():
            yield Found(node, f"{user.name} (pid {user.pid}) {user.why}.", f"Stop it on {node} before dsv41 up.")


def _no_gpu(node: str) -> Found:
    return Found(node, "not applicable: engine.device is cpu.", "Nothing to do.", severity=Severity.SKIPPED)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


# -- kernel -------------------------------------------------------------------------------------------------------


@check("host-cppc", kind=HOST, severity=Severity.WARNING, stage=Stage.RANK,
       what="The processor sets its own frequency (CPPC autonomous mode): without it a thread has a third of the "
       "memory bandwidth.", source="users M13; not run on GB10")  # fmt: skip
def _cppc(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        if facts.kernel is not None and facts.kernel.cppc_autonomous is False:
            yield Found(node, "cppc_cpufreq runs without autonomous mode.",
                        "Boot with cppc_cpufreq.auto_sel_mode=1 on the kernel command line.")  # fmt: skip


@check("host-sysctls", kind=HOST, severity=Severity.WARNING, stage=Stage.RANK,
       what="Kernel settings that a rank needs: enough memory maps, no overcommit refusal, asynchronous reads for the "
       "row store.", source="the kernel's own defaults as the least. Guess; never measured on GB10")  # fmt: skip
def _sysctls(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        if facts.kernel is None:
            continue
        values = {name: int(v) for name, v in facts.kernel.sysctls.items() if v.lstrip("-").isdigit()}
        for name, least in (("vm.max_map_count", 65530), ("fs.aio-max-nr", 4096)):
            if name in values and values[name] < least:
                yield Found(node, f"{name} is {values[name]}, expected {least} or more.",
                            f"Run sysctl -w {name}={least} on {node}, and keep it in boot.kernel.sysctl.")  # fmt: skip
        if values.get("vm.overcommit_memory") == 2:
            yield Found(node, "vm.overcommit_memory is 2: the engine reserves more addresses than there is memory.",
                        f"Run sysctl -w vm.overcommit_memory=0 on {node}.")  # fmt: skip


# -- settings that only matter on a host ---------------------------------------------------------------------------


@check("engine-allocator", kind=HOST, severity=Severity.REFUSAL, stage=Stage.ENGINE,
       what="SGLang does not run with expandable segments: longer prefills give NaN.", source="users M5")  # fmt: skip
def _allocator(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        value = settings.engine.environment.get(name, "")
        if "expandable_segments:true" in value.lower().replace(" ", ""):
            yield Found(None, f"engine.environment.{name} is {value!r}.",
                        "Take expandable_segments out: prefills above 64 tokens give NaN with it.")  # fmt: skip


@check("engine-build-jobs", kind=HOST, severity=Severity.NOTE, stage=Stage.ENGINE,
       what="Compiling kernels at a first boot is bounded (MAX_JOBS): 22 compilers exhaust a Spark's memory.",
       source="users M14; not run on GB10")  # fmt: skip
def _jobs(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    if _on_cuda(settings) and "MAX_JOBS" not in settings.engine.environment:
        yield Found(None, "engine.environment.MAX_JOBS is not set.", 'Set it to "2" when kernels are compiled at boot.')


# -- disks and files ------------------------------------------------------------------------------------------------


@check("disk-space", kind=HOST, severity=Severity.REFUSAL, stage=Stage.PACK,
       what="There is room for the rows that are still to be packed, and for state and logs.",
       source="users W12")  # fmt: skip
def _space(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        to_pack = facts.rows.bytes_to_pack if facts.rows is not None else None
        for disk in facts.disks or ():
            needed = {"state": STATE_BYTES, "rows": to_pack or 0}.get(disk.purpose, 0)
            if disk.free < needed:
                severity = Severity.REFUSAL if disk.purpose == "rows" else Severity.WARNING
                yield Found(
                    node, f"{disk.path} ({disk.purpose}, on {disk.mount_point}) has {_gib(disk.free)} free, expected "
                    f"{_gib(needed)}.",
                    f"Free some space on {disk.mount_point}, or set another directory.", where=disk.path,
                    severity=severity, transient=True,
                )  # fmt: skip


@check("checkpoint-whole", kind=HOST, severity=Severity.REFUSAL, stage=Stage.SHARE,
       what="Every checkpoint file that the index names is there, and as long as its header says: a file cut short "
       "loads as zeros.", source="users W3, W5")  # fmt: skip
def _checkpoint(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        for problem in facts.checkpoint.problems if facts.checkpoint else ():
            yield Found(node, problem, f"Fetch the checkpoint again on {node}, or correct checkpoint.path.")


@check("checkpoint-source", kind=HOST, severity=Severity.REFUSAL, stage=Stage.SHARE,
       what="The weights come from where share.mode says: local disk or the head's export.",
       source="users W4")  # fmt: skip
def _source(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        disk = next((d for d in facts.disks or () if d.purpose == "checkpoint"), None)
        if disk is None:
            continue
        remote = disk.filesystem in NETWORK_FILESYSTEMS
        where = f"{disk.path} is on {disk.filesystem} from {disk.source}"
        if settings.share.mode is ShareMode.LOCAL and remote:
            yield Found(node, f"{where}, and share.mode is local.",
                        f"Unmount {disk.mount_point} on {node}, or set share.mode to nfs.",
                        where=disk.path)  # fmt: skip
        elif settings.share.mode is ShareMode.NFS and node != settings.fleet.head and not remote:
            yield Found(node, f"{where}, and share.mode is nfs: this is not the head's copy.",
                        f"Mount the head's export on {node} (its .mount unit), or set share.mode to local.",
                        where=disk.path)  # fmt: skip


@check("rows-packed", kind=HOST, severity=Severity.REFUSAL, stage=Stage.PACK,
       what="This rank's Engram rows are packed, for this rank, world size, partition and revision: one unpacked rank "
       "holds all of them back 11 ms a step.", source="users W6, W7, W9")  # fmt: skip
def _rows(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        if facts.rows is None:
            continue
        if facts.rows.to_pack:
            n_files = len(facts.rows.to_pack) + len(facts.rows.good)
            # `up` packs by itself; it takes ten minutes, so that nobody should learn of it then.
            yield Found(
                node, f"{len(facts.rows.to_pack)} of {n_files} files of packed rows are not good: "
                f"{facts.rows.to_pack[0]}.",
                f"Run dsv41 pack on {node} (dsv41 up does it too, and takes that much longer).", transient=True,
            )  # fmt: skip
        for problem in facts.rows.problems:
            if facts.checkpoint is None or not facts.checkpoint.problems:
                yield Found(node, problem, "Correct checkpoint.path; rows are packed from config.json's tables.")


# -- ports ----------------------------------------------------------------------------------------------------------


@check("ports-free", kind=HOST, severity=Severity.REFUSAL, stage=Stage.RANK,
       what="The ports of engine, supervisor, gateway and rendezvous are free, or held by this fleet.",
       source="users S4, S14")  # fmt: skip
def _ports(fleet: Fleet, settings: Settings) -> Iterator[Found]:
    for node, facts in fleet.items():
        meeting = []
        for port in facts.ports or ():
            holder = port.holder
            if holder is None or port.ours:
                continue
            if port.purpose == "rendezvous":
                meeting.append(port)
            elif port.purpose == "gateway" or (port.purpose == "supervisor" and facts.supervised):
                # The gateway has a unit of its own; who answered as the supervisor is the supervisor.
                continue
            elif port.purpose == "engine" and facts.runs:
                continue  # The rank's own engine, seen by somebody who does not know its processes.
            else:
                pid = f" (pid {holder.pid})" if holder.pid else ""
                find = "" if holder.pid else f"Run ss -ltnp 'sport = :{port.port}' as root to see whose it is. "
                yield Found(
                    node, f"port {port.port} ({port.purpose}) is held by {holder.name}{pid}.",
                    f"{find}Stop it on {node}, or set another {port.purpose}_port.", transient=True,
                )  # fmt: skip
        n_ports = settings.engine.rendezvous.n_ports
        if len(meeting) > n_ports // 2:
            first = meeting[0]
            yield Found(
                node, f"{len(meeting)} of {n_ports} rendezvous ports are held, {first.port} by "
                f"{first.holder.name if first.holder else '?'}.",
                "Stop what holds them, or move engine.rendezvous.first_port.",
                severity=Severity.WARNING, transient=True,
            )  # fmt: skip
