"""What the command line says about itself: help with an example, version, and a command that was misspelt."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest
from dsv41_supervisor import __version__
from dsv41_supervisor.__main__ import main, parser
from dsv41_supervisor.commands.examples import EXAMPLES
from dsv41_supervisor.errors import Exit


def commands() -> list[str]:
    (group,) = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return list(group.choices)


@pytest.mark.parametrize("command", commands())
def test_every_command_has_help_with_an_example_that_is_understood(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert " ".join(f"example: {EXAMPLES[command]}".split()) in " ".join(capsys.readouterr().out.split())
    program, *argv = shlex.split(EXAMPLES[command])
    assert (program, argv[0]) == ("dsv41", command)
    assert callable(parser().parse_args(argv).run)


def test_every_command_has_an_example_and_every_example_a_command() -> None:
    assert set(EXAMPLES) == set(commands())


def test_an_override_in_an_example_is_a_check_that_may_be_overridden() -> None:
    from dsv41_supervisor.commands.refusals import can_be_overridden

    assert can_be_overridden(shlex.split(EXAMPLES["up"])[-1])


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("stauts", "there is no command 'stauts'. Did you mean dsv41 status? dsv41 --help lists all."),
        ("check_config", "Did you mean dsv41 check-config?"),
        ("xyzzy", "dsv41: there is no command 'xyzzy'. dsv41 --help lists all."),
    ],
)
def test_a_command_that_is_none_comes_with_the_nearest(
    word: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([word, "--settings", str(tmp_path)]) == Exit.USAGE
    assert words in capsys.readouterr().err


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"dsv41 {__version__}\n")
