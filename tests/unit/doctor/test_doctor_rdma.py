"""perftest's output: what is read from it, and what a figure means. Text of our own in the tool's shape."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from dsv41_supervisor.doctor.deep import rdma
from hypothesis import given
from hypothesis import strategies as st

HEAD = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : rocep1s0f1
 Number of qps   : 1\t\tTransport type : IB
 TX depth        : 128
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 5
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0123 PSN 0x9abcde RKey 0x1fff00 VAddr 0x00f0f0f0f0f000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:61:12:01
---------------------------------------------------------------------------------------
"""
ROWS = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"


def output(*averages: float, unit: str = "Gb/sec") -> str:
    rows = ROWS.replace("Gb/sec", unit)
    return HEAD + rows + "".join(f" 65536      600123           0.00               {a:.2f}\t0.181\n" for a in averages)


def test_device_gid_mtu_and_the_last_average_are_read() -> None:
    found = rdma.parse(output(88.01, 96.5))
    assert found == rdma.Bandwidth("rocep1s0f1", 5, 4096, 96.5, None)
    assert found.verdict is rdma.Verdict.GOOD


@pytest.mark.parametrize(
    ("average", "verdict"),
    [(90.0, "good"), (89.9, "slow"), (25.1, "slow"), (25.0, "power-state"), (13.2, "power-state"), (8.0, "power-state"),
     (7.9, "slow"), (0.0, "slow")],
)  # fmt: skip
def test_the_verdict_of_a_twin_by_its_figure(average: float, verdict: str) -> None:
    assert rdma.parse(output(average)).verdict == verdict


def test_megabytes_a_second_are_turned_into_gigabits() -> None:
    assert rdma.parse(output(11_500.0, unit="MB/sec")).average_gbit_s == pytest.approx(92.0)
    assert rdma.parse(output(1024.0, unit="MiB/sec")).average_gbit_s == pytest.approx(8.589934592)


SOFT_ROCE = """\
 WARNING: BW peak won't be measured in this run.
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : rocep1s0f0
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 PCIe relax order: ON\t\tLock-free      : OFF
 ibv_wr* API     : OFF\t\tUsing DDP      : OFF
 TX depth        : 128
 CQ Moderation   : 1
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 1
 Max inline data : 0[B]
 rdma_cm QPs\t : OFF
 Data ex. method : Ethernet
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0013 PSN 0xd7b2db RKey 0x0004ae VAddr 0x007fc9f0be6000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:41:12:01
 remote address: LID 0000 QPN 0x0013 PSN 0xb086af RKey 0x00041e VAddr 0x007f306c4e7000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:41:12:02
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
{row}
---------------------------------------------------------------------------------------
"""
"""perftest 25.01 over rdma_rxe in an emulated machine, 2026-11-30."""


def test_what_perftest_printed_over_soft_roce_is_read() -> None:
    text = SOFT_ROCE.replace("{row}", " 65536      739              0.00               0.13   \t\t     0.000245")
    assert rdma.parse(text, 3) == rdma.Bandwidth("rocep1s0f0", 1, 4096, 0.13, None)


def test_where_perftest_could_not_measure_its_clock_the_figure_is_what_it_counted() -> None:
    text = SOFT_ROCE.replace("{row}", " 65536      520           0.000000            0.000000            0.000000")
    assert rdma.parse(text, 3).average_gbit_s == pytest.approx(520 * 65536 * 8 / 3e9)
    fast = text.replace("520 ", "550000 ")
    assert rdma.parse(fast, 3).verdict is rdma.Verdict.GOOD
    assert rdma.parse(text.replace("520 ", "0 "), 3).average_gbit_s == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Couldn't connect to 10.61.12.2:18515\n", "Couldn't connect to 10.61.12.2:18515"),
        (HEAD + " Failed to modify QP 299 to RTR\n Unable to Connect the HCA's through the link\n",
         "Failed to modify QP 299 to RTR"),
        ("", "it printed nothing"),
    ],
)  # fmt: skip
def test_without_a_figure_the_first_error_is_told(text: str, problem: str) -> None:
    found = rdma.parse(text)
    assert (found.verdict, found.problem) == (rdma.Verdict.FAILED, problem)


@given(st.text(max_size=400))
def test_no_text_breaks_the_parser(text: str) -> None:
    found = rdma.parse(text)
    assert (found.average_gbit_s is None) == (found.verdict is rdma.Verdict.FAILED)
    assert (found.problem is None) == (found.average_gbit_s is not None)


@given(st.lists(st.floats(0, 200), min_size=1, max_size=6))
def test_rows_in_any_number_give_the_last_one(averages: list[float]) -> None:
    assert rdma.parse(output(*averages)).average_gbit_s == pytest.approx(averages[-1], abs=0.01)


def test_both_ends_are_called_alike_and_only_one_names_the_other() -> None:
    server, client = rdma.argv("rocep1s0f0", 3, 18600, 2), rdma.argv("rocep1s0f0", 3, 18600, 2, server="10.61.12.2")
    assert client == [*server, "10.61.12.2"]
    assert server[:5] == ["ib_write_bw", "-d", "rocep1s0f0", "-i", "1"]
    assert tuple(server[server.index("-x") :][:2]) == ("-x", "3")


async def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    program = tmp_path / "ib_write_bw"
    program.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {tmp_path}/child\nwait\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    said = await rdma.run([str(program)], 1.0)
    assert "timed out after 1 s" in said
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    # Killed by the group's signal: gone, or a zombie until whoever adopted it reaps it.
    assert not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] in "ZX"
