"""A process of the demo that ended: signal or status, the errors in its log, and nothing that only came last."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from dsv41_supervisor.demo.ended import hint, how, last_errors, sentence
from dsv41_supervisor.demo.session import _stay
from dsv41_supervisor.errors import Dsv41Error

from tests.harness.fleet import kill, running_fleet

END = time.mktime((2026, 11, 30, 6, 0, 5, 0, 0, -1))
LOG = [
    "06:00:01.000 info    spark2 rank 1: stage share passed [STAGE_DONE]",
    "06:00:02.000 error   spark2 rank 1: the memory guard is gone",
    "06:00:03.000 warning spark2 rank 1: spark1 has been silent for 3.1 s",
    "an error of something else, in passing",
]


def test_a_signal_is_named_and_a_status_is_a_number() -> None:
    assert how(-9) == "was killed by SIGKILL"
    assert how(-64) == "was killed by SIGRTMAX"
    assert how(-99) == "was killed by signal 99"
    assert how(78) == "ended with status 78"


def test_only_lines_about_errors_are_quoted() -> None:
    assert last_errors(LOG, END) == [LOG[1]]
    assert last_errors(["dsv41: spark1, config: cannot listen on 127.0.0.1:7141."], END) == [
        "spark1, config: cannot listen on 127.0.0.1:7141."
    ]
    assert sentence("the supervisor of spark2", -9, LOG[2:], END) == (
        "the supervisor of spark2 was killed by SIGKILL. Its log has no error of its last 10 s."
    )
    said = sentence("the gateway of spark1", 70, [], END)
    assert said == "the gateway of spark1 ended with status 70. Its log is empty."


def test_errors_of_long_before_the_end_are_not_why_it_ended() -> None:
    assert last_errors(LOG, END + 7) == [LOG[1]]
    assert last_errors(LOG, END + 8) == []
    # Over midnight, too.
    midnight = time.mktime((2026, 11, 30, 0, 0, 2, 0, 0, -1))
    late = "23:59:58.000 error   spark2: the last"
    assert last_errors(["23:59:40.000 error   spark2: long before", late], midnight) == [late]


def test_the_log_is_always_named() -> None:
    assert "/x/supervisor.log" in hint(-9, "/x/supervisor.log")
    assert hint(78, "/x/supervisor.log") == "Its log is /x/supervisor.log."


class _Shown:
    """In the place of the terminal."""

    def __init__(self) -> None:
        self.first: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def say(self, line: str) -> None:
        if not self.first.done():
            self.first.set_result(line)


async def test_a_supervisor_that_is_killed_is_told_with_its_signal_and_its_log(
    tmp_path: Path, demo_checkpoint: Path
) -> None:
    async with running_fleet(tmp_path, demo_checkpoint, nodes=1, loopback=True, gateway=False) as fleet:
        daemon = fleet.supervisor("spark1")
        with daemon.log_path.open("a") as log:
            log.write("06:00:01.000 info    spark1: what it happened to say last\n")
        kill(daemon.process.pid)
        await daemon.process.wait()
        with pytest.raises(Dsv41Error) as caught:
            await fleet.demo.status(fleet.head)
        said = str(caught.value)
        assert "the supervisor of spark1 was killed by SIGKILL." in said
        assert str(daemon.log_path) in said
        assert "what it happened to say last" not in said
        shown = _Shown()
        staying = asyncio.create_task(_stay(fleet.demo, fleet.head, shown))  # type: ignore[arg-type]
        line = await asyncio.wait_for(shown.first, 60)
        staying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await staying
        assert line.endswith("The demo does not start it again: Ctrl-C, then make demo.")
        # The guard outlives it, and is stopped by the next one.
        fleet.demo.daemons.remove(daemon)
        await fleet.start_supervisor("spark1")
        await fleet.until_answering(lambda s: s["state"] == "down", "the next supervisor answers")
