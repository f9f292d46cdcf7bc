"""Real SGLang servers on one GPU, side by side: a tiny DeepSeek-V4.1 of the real widths, rows from packed files.

The checkpoint comes from outside (`DSV41_GPU_CHECKPOINT`: the published tensor names, 8 layers, Engram at layers 1 and
4), and so does an environment in which `sglang` can be imported. adapters/GPU.md says how both are made.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv41_rowstore import Partition, pack_layer, rows_path

from tests.engine.drive import Drive
from tests.engine.engines import Engine, Rank, write_plan
from tests.harness.ports import free_port

LAYERS = (1, 4)
O_LORA_RANK = 1024
WITNESS = Path(__file__).parent / "witness"
ARGV = (
    "--attention-backend", "dsv4", "--moe-runner-backend", "marlin", "--context-length", "4096",
    "--max-total-tokens", "16384", "--max-running-requests", "8", "--mem-fraction-static", "0.5",
    "--chunked-prefill-size", "2048", "--sampling-backend", "pytorch", "--trust-remote-code",
    "--tool-call-parser", "deepseekv41", "--reasoning-parser", "deepseek-v41", "--skip-server-warmup",
)  # fmt: skip
PREFILL_EAGER = ("--cuda-graph-backend-prefill", "disabled")
EAGER = (*PREFILL_EAGER, "--cuda-graph-backend-decode", "disabled")
GRAPH = (*PREFILL_EAGER, "--cuda-graph-max-bs-decode", "4")
PREFILL_GRAPH = (
    "--cuda-graph-backend-prefill", "breakable", "--cuda-graph-max-bs-prefill", "512",
    "--cuda-graph-max-bs-decode", "4",
)  # fmt: skip
"""Prefills up to a size are replayed in pieces, with the hash between two of them. SGLang leaves it off for V4."""
SPECULATIVE = ("--speculative-algorithm", "DSPARK", "--speculative-dspark-block-size", "5")
EAGER_DSPARK = (*EAGER, *SPECULATIVE)
TWO_EAGER = (*EAGER, "--disable-custom-all-reduce")
TWO_GRAPH = (*GRAPH, "--disable-custom-all-reduce")
DSPARK = (*GRAPH, *SPECULATIVE)
THREE_EP = (*TWO_GRAPH, *SPECULATIVE, "--ep-size", "3")
"""The draft's 16 experts become 18. The model's own have to divide: a checkpoint of 18, see adapters/GPU.md."""


@dataclass(frozen=True)
class Kind:
    """One server of the session."""

    name: str
    argv: tuple[str, ...]
    settings: dict[str, Any] | None
    """engram_nvme's; None is the stock engine without a plan."""
    witness: bool = True
    drive: bool = True
    world_size: int = 1
    """Ranks, as that many nodes would be; the last one has the drive."""
    n_gpus: int = 0
    """GPUs for them, at least; 0 is one for each rank. With fewer than ranks, some share one."""
    others: dict[str, Any] = field(default_factory=dict)
    """Other adapters asked for, with their settings."""
    tensors: bool = False
    """What attention took and gave, and the last hidden states, go to files. Eager passes only."""
    dented: bool = False
    """A checkpoint that lost one group of heads of the first layer: what a wrong padding would do."""


def padded_to(groups: int) -> dict[str, Any]:
    """16 groups at two ranks: the second has padding alone, as the third of three has. 12: both are partly real."""
    return {"tp_pad": {"force_groups": groups}}


NEEDED: dict[str, Any] = {"tp_pad": {}}
"""What three ranks need: 96 heads in 12 groups."""
LOOPS: dict[str, Any] = {"loop_abort": {"base_tokens": 64}}
KINDS = (
    Kind("eager", EAGER, {"staging_tokens": 256}),
    Kind("graph", GRAPH, {"staging_tokens": 256}),
    Kind("dspark", DSPARK, {"staging_tokens": 256}),
    Kind("prefill-graph", PREFILL_GRAPH, {"staging_tokens": 256}),
    Kind("uring", GRAPH, {}, drive=False),
    Kind("ahead", GRAPH, {}, witness=False),
    Kind("late", GRAPH, {"prefetch": False}, witness=False),
    Kind("eager-ahead", EAGER, {}, witness=False),
    Kind("eager-late", EAGER, {"prefetch": False}, witness=False),
    Kind("real", GRAPH, {}, witness=False, drive=False),
    Kind("stock", GRAPH, None, witness=False, drive=False),
    Kind("tp2", TWO_GRAPH, {"staging_tokens": 256}, world_size=2),
    Kind("stock-eager", EAGER, None, witness=False, drive=False, tensors=True),
    Kind("stock-eager-again", EAGER, None, witness=False, drive=False, tensors=True),
    Kind("dented", EAGER, None, witness=False, drive=False, tensors=True, dented=True),
    Kind("padded", EAGER, None, witness=False, drive=False, tensors=True, others=padded_to(16)),
    Kind("stock-tp2", TWO_EAGER, None, witness=False, drive=False, tensors=True, world_size=2),
    Kind(
        "padded-tp2-12", TWO_EAGER, None, witness=False, drive=False, tensors=True, world_size=2, others=padded_to(12)
    ),
    Kind(
        "padded-tp2-16", TWO_EAGER, None, witness=False, drive=False, tensors=True, world_size=2, others=padded_to(16)
    ),
    Kind(
        "padded-tp3", TWO_EAGER, None, witness=False, drive=False, tensors=True, world_size=3, n_gpus=2, others=NEEDED
    ),
    Kind("stock-dspark", EAGER_DSPARK, None, witness=False, drive=False, tensors=True),
    Kind("padded-dspark", EAGER_DSPARK, None, witness=False, drive=False, tensors=True, others=padded_to(16)),
    Kind("all", GRAPH, {}, drive=False, others=padded_to(16) | LOOPS),
    Kind("all-dspark", DSPARK, {}, drive=False, others=padded_to(16) | LOOPS),
    Kind("all-tp2", TWO_GRAPH, {}, drive=False, world_size=2, others=padded_to(12) | LOOPS),
    Kind("all-tp3", TWO_GRAPH, {}, drive=False, world_size=3, n_gpus=2, others=NEEDED | LOOPS),
    Kind("all-ep3", THREE_EP, {}, drive=False, world_size=3, n_gpus=2, others=NEEDED | LOOPS),
)
ALONE = frozenset(kind.name for kind in KINDS if not kind.tensors and not kind.others)
"""`engram_nvme` and the stock server beside it: booted when nothing else is asked for. All kinds fit on no one GPU."""


@dataclass
class Checkpoints:
    """Views of one checkpoint: `stock` has the tables, `pruned` has their files without a byte in them."""

    stock: Path
    pruned: Path
    whole: Path
    """As `stock`, with its own copy of the tables, to see whether they are read."""
    dented: Path
    """As `stock`, without the last group of heads of the first layer."""

    def tables(self, folder: Path) -> list[Path]:
        return [folder / f"tables-l{layer}.safetensors" for layer in LAYERS]


def prepare(source: Path, target: Path) -> Checkpoints:
    """The tables go to files of their own, as in the released checkpoint."""
    from safetensors.torch import load_file, save_file

    index = json.loads((source / "model.safetensors.index.json").read_text())
    weight_map: dict[str, str] = index["weight_map"]
    found = Checkpoints(target / "stock", target / "pruned", target / "whole", target / "dented")
    for folder in (found.stock, found.pruned, found.whole):
        folder.mkdir(parents=True)
    mixed = {}
    for layer in LAYERS:
        names = [f"layers.{layer}.engram.embed.{plane}" for plane in ("weight", "scale")]
        (file,) = {weight_map[name] for name in names}
        tensors = load_file(source / file)
        save_file({name: tensors.pop(name) for name in names}, found.stock / f"tables-l{layer}.safetensors")
        save_file(tensors, found.stock / file)
        mixed[file] = names
        weight_map |= dict.fromkeys(names, f"tables-l{layer}.safetensors")
    for file in source.iterdir():
        if file.name in mixed or file.name == "model.safetensors.index.json":
            continue
        for folder in (found.stock, found.pruned, found.whole):
            (folder / file.name).symlink_to(file.resolve())
    for folder in (found.stock, found.pruned, found.whole):
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        for file in mixed if folder is not found.stock else ():
            (folder / file).symlink_to(found.stock / file)
    for stock, whole, pruned in zip(*map(found.tables, (found.stock, found.whole, found.pruned)), strict=True):
        shutil.copyfile(stock, whole)
        pruned.touch()
    dent(found.stock, found.dented, weight_map)
    return found


def dent(stock: Path, target: Path, weight_map: dict[str, str]) -> None:
    """Zero the inputs of the output projection that come from the last of the first layer's groups."""
    import torch
    from safetensors.torch import load_file, save_file

    name = "layers.0.attn.wo_b.weight"
    tensors = load_file(stock / weight_map[name])
    tensors[name].view(torch.uint8)[:, -O_LORA_RANK:] = 0
    target.mkdir()
    save_file(tensors, target / weight_map[name])
    for file in stock.iterdir():
        if file.name != weight_map[name]:
            (target / file.name).symlink_to(file.resolve())


class Server(Engine):
    """One rank, with the drive it reads from and what its witness saw."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        super().__init__(kind.world_size)
        self.kind, self.directory = kind, directory
        self.rows = directory
        self._drive: Drive | None = None
        self.problem: str | None = None
        self.started = time.monotonic()

    @property
    def drive(self) -> Drive:
        assert self._drive is not None, f"{self.kind.name} reads from this machine's own drive"
        return self._drive

    @drive.setter
    def drive(self, drive: Drive) -> None:
        self._drive = drive

    def wait(self, *, deadline: float) -> None:
        """Until it is ready; `problem` says why it is not."""
        while time.monotonic() < deadline:
            if self.ranks[0].process.poll() is not None:
                self.problem = (
                    f"{self.kind.name} ended with {self.ranks[0].process.returncode}:\n{self.ranks[0].tail(60)}"
                )
                return
            with contextlib.suppress(OSError):
                self._open("/ready", None, timeout_s=5)
                self.ready_s = time.monotonic() - self.started
                return
            time.sleep(0.25)
        self.problem = f"{self.kind.name} was not ready in time:\n{self.ranks[0].tail(60)}"

    def ask(self, ids: list[int], n_tokens: int, **more: Any) -> dict[str, Any]:
        return self.post("/generate", request(ids, n_tokens, **more))

    def seen(self) -> dict[str, Any]:
        """What the witness counted, once it no longer changes."""
        path = self.ranks[0].directory / "witness.json"
        before: dict[str, Any] | None = None
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            time.sleep(0.15)
            now = json.loads(path.read_text())
            if now == before:
                return now
            before = now
        raise AssertionError("the witness still counts after 20 s without a request")

    def n_seen(self, mode: str) -> tuple[int, int]:
        """Rows looked up and rows that differ, over both layers."""
        counts = [layer[mode] for layer in self.seen()["counts"]]
        return sum(n for n, _ in counts), sum(differ for _, differ in counts)

    def n_different(self) -> int:
        return sum(differ for layer in self.seen()["counts"] for _, differ in layer.values())


def request(ids: list[int], n_tokens: int, **more: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": n_tokens, "temperature": 0, "ignore_eos": True} | more.pop("sampling", {})
    return {"input_ids": ids, "sampling_params": sampling, **more}


def prompt(n_tokens: int, salt: int = 0) -> list[int]:
    """Ids of the tiny vocabulary, the special ones left out."""
    return [20 + (i * (7 + salt) + salt * 31 + i * i // 5) % 440 for i in range(n_tokens)]


def launch(kind: Kind, checkpoints: Checkpoints, base: Path) -> Server:
    server = Server(kind, base / kind.name)
    rendezvous = free_port()
    for rank in range(kind.world_size):
        server.ranks.append(_launch_rank(server, rank, checkpoints, rendezvous))
    return server


def _launch_rank(server: Server, rank: int, checkpoints: Checkpoints, rendezvous: int) -> Rank:
    kind, n_ranks = server.kind, server.kind.world_size
    directory = server.directory / f"rank-{rank}"
    directory.mkdir(parents=True)
    available = n_gpus()
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": str(rank % available)}
    if n_ranks > 1:
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        if n_ranks > available:  # NCCL refuses two ranks of one host on one GPU: each says it is a host of its own
            environment |= {"NCCL_HOSTID": f"rank-{rank}", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}
        environment["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "0"  # other servers load beside it
    if kind.settings is not None:
        server.rows = server.directory / "rows"
        for layer in LAYERS:
            pack_layer(
                checkpoints.stock, server.rows, layer=layer, rank=rank, world_size=n_ranks,
                partition=Partition.BALANCED, revision="tiny",
            )  # fmt: skip
        plan = write_plan(
            directory, rank=rank, world_size=n_ranks, rows=server.rows, revision="tiny",
            adapters={"engram_nvme": kind.settings} | kind.others,
            cache_bytes=0 if kind.drive else 1 << 20, reader="threads" if kind.drive else "auto",
        )  # fmt: skip
        environment |= {"DSV41_RANK_PLAN": str(plan), "SGLANG_PLUGINS": "dsv41"}
    elif kind.others:
        plan = write_plan(directory, rank=rank, world_size=n_ranks, adapters=kind.others)
        environment |= {"DSV41_RANK_PLAN": str(plan), "SGLANG_PLUGINS": "dsv41"}
    if kind.drive and rank == n_ranks - 1:
        server.drive = Drive(directory / "drive")
        environment |= server.drive.environment
    if kind.witness or kind.tensors:
        environment |= {"SGLANG_PLUGINS": "dsv41,witness", "PYTHONPATH": f"{environment['PYTHONPATH']}:{WITNESS}"}
    if kind.witness:
        environment["DSV41_WITNESS"] = str(directory / "witness.json")
        environment["DSV41_WITNESS_TABLES"] = str(checkpoints.stock)
    if kind.tensors:
        environment["DSV41_WITNESS_TENSORS"] = str(directory / "tensors")
    if kind.settings is None:
        folder = checkpoints.dented if kind.dented else checkpoints.stock
    else:
        folder = checkpoints.pruned if kind.drive else checkpoints.whole
    port = free_port()
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder), "--served-model-name", "demo"]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--tp-size", str(n_ranks)]
    if n_ranks > 1:
        argv += ["--nnodes", str(n_ranks), "--node-rank", str(rank), "--dist-init-addr", f"127.0.0.1:{rendezvous}"]
    with open(directory / "engine.log", "wb") as log:
        process = subprocess.Popen(
            [*argv, *ARGV, *kind.argv],
            env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    return Rank(rank, port, directory, process)


def n_gpus() -> int:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def zero_row(rows: Path, layer: int, row: int) -> bytes:
    """Put zeros where a row is; gives what was there. World size 1: the id is the place in the file."""
    return write_row(rows, layer, row, bytes(264))


def write_row(rows: Path, layer: int, row: int, content: bytes) -> bytes:
    with open(rows_path(rows, layer, 0, 1), "r+b") as file:
        file.seek(4096 + 264 * row)
        before = file.read(264)
        file.seek(4096 + 264 * row)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return before


def resident_bytes(path: Path) -> int:
    """How much of a file is in the page cache."""
    n_bytes = path.stat().st_size
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), n_bytes) as mapped:
        pages = (ctypes.c_ubyte * -(-n_bytes // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        status = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(n_bytes), pages)
        del first
        assert status == 0, os.strerror(ctypes.get_errno())
        return sum(page & 1 for page in pages) * mmap.PAGESIZE


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
