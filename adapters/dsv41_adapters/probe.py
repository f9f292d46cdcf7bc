"""One rank of a short collective, or a burn of the GPU: what `dsv41 doctor --deep` runs in the engine's environment.

`python -I probe.py REQUEST.json`: run by its path and with the standard library beside torch, so that it also tells of
an environment whose adapters are missing or older. Always writes its result and always ends: an alarm stands behind
every wait.
"""

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

N_BYTES = 4 << 20
"""About what one decode step of a few streams reduces. Guess; the figure is for comparing nodes, not for tuning."""
N_REPEATS = 20
BEGAN_S = time.monotonic()


PHASE = ["starting"]
"""What is being waited for, for the sentence of a test that hangs."""


class Failed(Exception):
    """Says in words why the test did not pass."""


def collective(request):
    """All ranks add up one tensor, several times. Returns median time and the transport that was really used."""
    PHASE[0] = "torch to be imported"
    import torch
    import torch.distributed as dist

    PHASE[0] = f"all ranks to meet at {request['address']}:{request['port']}"
    rank, world_size = request["rank"], request["world_size"]
    cuda = request["backend"] == "nccl"
    if cuda and not torch.cuda.is_available():
        raise Failed("torch finds no GPU")
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    # Importing torch has taken its part of the bound.
    left_s = max(1.0, request["seconds"] - (time.monotonic() - BEGAN_S))
    dist.init_process_group(
        request["backend"], init_method=f"tcp://{request['address']}:{request['port']}", rank=rank,
        world_size=world_size, timeout=timedelta(seconds=left_s),
    )  # fmt: skip
    PHASE[0] = "an all-reduce"
    expected = world_size * (world_size + 1) / 2
    times = []
    for _ in range(N_REPEATS):
        values = torch.full((N_BYTES // 4,), float(rank + 1), dtype=torch.float32, device=device)
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(values)
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        if not bool((values == expected).all()):
            raise Failed(f"the sum over {world_size} ranks is {values[0].item()}, expected {expected}")
    transport = nccl_transport(request["nccl_log"]) if cuda else gloo_transport(request["port"])
    dist.barrier()
    dist.destroy_process_group()
    return {"figure": statistics.median(times) * 1000, "transport": transport}


def nccl_transport(pattern):
    """Words such as NET/IB from NCCL's own log. Source: NCCL 2.28, INFO lines "... via NET/IB/0"."""
    found = set()
    for path in Path(pattern).parent.glob(Path(pattern).name + "*"):
        found |= set(re.findall(r"via (NET/[A-Za-z]+|P2P/\w+|SHM/\w+)", path.read_text(errors="replace")))
    return sorted(word for word in found if word.startswith("NET/"))


def gloo_transport(rendezvous_port):
    """Interfaces that this process's connections to the other ranks really use, from /proc/self."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    names = interfaces()
    used = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            ports = [int(fields[i].rsplit(":", 1)[1], 16) for i in (1, 2)]
            if fields[3] == "01" and fields[9] in inodes and rendezvous_port not in ports:
                address = ipv4(fields[1].rsplit(":", 1)[0])
                used.add(names.get(address, address))
    return sorted(used)


def ipv4(text):
    """An address of /proc/net/tcp or an IPv4 one of /proc/net/tcp6: little-endian hexadecimal, last word."""
    return socket.inet_ntoa(bytes.fromhex(text[-8:])[::-1])


def interfaces():
    """Names of the interfaces by IPv4 address."""
    import fcntl
    import struct

    names = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                # SIOCGIFADDR
                raw = fcntl.ioctl(sock.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            names[socket.inet_ntoa(raw[20:24])] = name
    return names


def clock(request):
    """Multiply matrices for some seconds and read the clock near the end. `not run on GB10`."""
    import torch

    if not torch.cuda.is_available():
        raise Failed("torch finds no GPU")
    left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    until = time.monotonic() + request["seconds"]
    read_at = time.monotonic() + 0.7 * request["seconds"]
    figure = None
    while time.monotonic() < until:
        for _ in range(50):
            left @ left
        torch.cuda.synchronize()
        if figure is None and time.monotonic() > read_at:
            reader = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            while reader.poll() is None:
                left @ left
                torch.cuda.synchronize()
            figure = float(reader.stdout.read().split()[0])
    return {"figure": figure, "transport": []}


def give_up(request):
    """The bound is over."""
    problem = f"waited {request['seconds']:g} s in all, in the end for {PHASE[0]}"
    write(request, {"problem": problem, "took_s": request["seconds"]})
    os._exit(69)


def write(request, result):
    """Leave the result for the supervisor, whole or not at all."""
    path = Path(request["result"])
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result))
    temporary.replace(path)


def main(argv):
    request = json.loads(Path(argv[1]).read_text())
    # A collective that hangs cannot be cancelled from inside: SIGALRM's default action ends the process.
    signal.alarm(int(request["seconds"]) + 5)
    # Torch's own timeouts start anew with every retry. This thread ends the process in time, and says what hung.
    watchdog = threading.Timer(request["seconds"], give_up, (request,))
    watchdog.daemon = True
    watchdog.start()
    began = time.monotonic()
    try:
        result = {"problem": None, **{"collective": collective, "clock": clock}[request["test"]](request)}
    except Failed as error:
        result = {"problem": str(error)}
    except Exception as error:
        text = " ".join(str(error).split())
        result = {"problem": f"{type(error).__name__}: {text}"[:280]}
    result["took_s"] = time.monotonic() - began
    watchdog.cancel()
    write(request, result)
    return 0 if result["problem"] is None else 69


if __name__ == "__main__":
    status = main(sys.argv)
    sys.stdout.flush()
    # Threads of a collective that failed may wait for peers for ever; there is nothing left to tidy up.
    os._exit(status)
