"""What a checkpoint's encoding.py says, read without running it, and how that differs from what is rendered."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .spec import DEFAULT_TIER, EFFORT

TABLE, DEFAULT, LINE = "REASONING_EFFORT_MAPPINGS", "DEFAULT_REASONING_EFFORT", "REASONING_EFFORT_TEMPLATE"
TOKENS = {
    "bos_token": "Bos",
    "eos_token": "Eos",
    "thinking_start_token": "ThinkingStart",
    "thinking_end_token": "ThinkingEnd",
    "dsml_token": "Dsml",
    "SYSTEM_SP_TOKEN": "System",
    "USER_SP_TOKEN": "User",
    "ASSISTANT_SP_TOKEN": "Assistant",
    "LATEST_REMINDER_SP_TOKEN": "LatestReminder",
    "IMAGE_PLACEHOLDER": "Image",
}
"""Names in encoding.py, and deepseek-recipe's for the same token. Compared where the file has them."""
CALLS, INVOKE, PARAMETER = "tool_calls_block_name", "tool_call_tag_name", "tool_parameter_tag_name"

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "thinking": {"type": "enabled"}}
"""The smallest request that thinks."""
CALLED: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "y"},
    ],
    "thinking": {"type": "disabled"},
}
"""A request whose history holds a tool call."""


class CannotRead(Exception):
    """There is no such file, or not what is expected in it; the message says what."""


@dataclass(frozen=True)
class Published:
    """The constants of one encoding.py."""

    path: Path
    sha256: str
    constants: Mapping[str, Any]

    @property
    def table(self) -> Mapping[str, int]:
        return self.constants[TABLE]

    @property
    def default(self) -> int:
        return self.table[self.constants[DEFAULT]]

    def text(self, name: str, otherwise: str) -> str:
        """A token or tag, or `otherwise` where the file does not name it."""
        return str(self.constants.get(name, otherwise))

    def __str__(self) -> str:
        return f"{self.path} (sha256 {self.sha256[:12]})"


def read_published(checkpoint: Path, file: str) -> Published:
    """Raises CannotRead."""
    path = checkpoint / file
    try:
        text = path.read_bytes()
        tree = ast.parse(text)
    except OSError as error:
        raise CannotRead(f"{path} cannot be read ({error.strerror}).") from None
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:  # the last two: nested too deeply
        raise CannotRead(f"{path} is not Python ({str(error) or type(error).__name__}).") from None
    constants = _assigned(tree)
    missing = [name for name in (TABLE, DEFAULT, LINE) if name not in constants]
    if missing:
        raise CannotRead(f"{path} does not say {', '.join(missing)} as plain values.")
    table, default = constants[TABLE], constants[DEFAULT]
    if not isinstance(table, dict) or not all(type(t) is str and type(budget) is int for t, budget in table.items()):
        raise CannotRead(f"{path}: {TABLE} is not tiers with whole numbers.")
    if not isinstance(default, str) or default not in table:
        raise CannotRead(f"{path}: {DEFAULT} {default!r} is no tier of {TABLE}.")
    try:
        line = str(constants[LINE]).format(budget=12_345)
    except (ValueError, LookupError, AttributeError, TypeError):
        line = ""
    if "12345" not in line:
        raise CannotRead(f"{path}: {LINE} {constants[LINE]!r} has no place for {{budget}} alone.")
    return Published(path, hashlib.sha256(text).hexdigest(), constants)


def _assigned(tree: ast.Module) -> dict[str, Any]:
    """Names at the top of the module that are given a literal, and nothing else afterwards."""
    found: dict[str, Any] = {}
    for statement in tree.body:
        changed = set(_changed(statement))
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                name, value = "", None
        for gone in changed:
            found.pop(gone, None)
        if value is not None:
            with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                found[name] = ast.literal_eval(value)
    return found


_CHANGES = frozenset({"update", "pop", "popitem", "clear", "setdefault", "__setitem__"})


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Names that the statement gives a value, takes it from, or changes the value of; not inside of functions."""
    todo: list[ast.AST] = [statement]
    while todo:
        match todo.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
                continue
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]
                continue
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) as node:
                yield name
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) as node:
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) as node:
                if attr in _CHANGES:
                    yield name
            case node:
                pass
        todo.extend(ast.iter_child_nodes(node))


def prompt_of(published: Published, budget: int, spelt: Mapping[str, str]) -> str:
    """What ASKED must be rendered as, by the file. `spelt`: how a token is spelt that the file does not name."""

    def token(name: str) -> str:
        return published.text(name, spelt[name])

    line = str(published.constants[LINE]).format(budget=budget)
    return (
        f"{token('bos_token')}{token('SYSTEM_SP_TOKEN')}{line}{token('USER_SP_TOKEN')}x"
        f"{token('ASSISTANT_SP_TOKEN')}{token('thinking_start_token')}"
    )


Render = Callable[[Mapping[str, Any]], str]


def differences(published: Published, render: Render, spelt: Mapping[str, str]) -> list[str]:
    """Where the file, the effort table and `render` are not of one mind; one sentence each.

    `spelt` is the renderer's spelling of each name of TOKENS.
    """
    found = []
    table, default = published.table, published.constants[DEFAULT]
    for tier, budget in EFFORT.items():
        if table.get(tier) != budget:
            found.append(f"effort {tier} is {table.get(tier, 'not there')} in the file, published is {budget}")
    if default != DEFAULT_TIER:
        found.append(f"the default effort is {default} in the file, published is {DEFAULT_TIER}")
    for tier, budget in [*table.items(), (None, published.default)]:
        prompt = render(ASKED if tier is None else {**ASKED, "reasoning_effort": tier})
        if prompt != (wanted := prompt_of(published, budget, spelt)):
            name = "a request that names no effort" if tier is None else f"effort {tier}"
            found.append(f"{name} is rendered as {_opening(prompt)}, by the file it is {_opening(wanted)}")
    found += [
        f"{name} is {published.constants[name]!r} in the file, prompts are rendered with {spelt[name]!r}"
        for name in TOKENS
        if name in published.constants and published.constants[name] != spelt[name]
    ]
    if {CALLS, INVOKE, PARAMETER} <= set(published.constants):
        history = render(CALLED)
        dsml = published.text("dsml_token", spelt["dsml_token"])
        calls, invoke, parameter = (published.constants[name] for name in (CALLS, INVOKE, PARAMETER))
        found += [
            f"a tool call has {piece!r} by the file, and is rendered without"
            for piece in (
                f"<{dsml}{calls}>",
                f'<{dsml}{invoke} name="f">',
                f'<{dsml}{parameter} name="a" string="true">b</{dsml}{parameter}>',
            )
            if piece not in history
        ]
    return found


def _opening(prompt: str) -> str:
    """The effort line if there is one, else how the prompt begins."""
    line = re.search(r"Reasoning Effort: \d+", prompt)
    return f"budget {line[0].rpartition(' ')[2]}" if line else repr(prompt[:80])
