"""The hash of a target's syntax tree, read off the disk without importing it.

Docstrings, comments, layout and line numbers do not count; a changed default, name or call does. The hash
does not depend on the Python that computes it, so that a check on one machine holds on another.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from .adapter import Adapter, Reason, Target

_SILENT_FIELDS = frozenset({"type_comment", "kind", "type_ignores"})
_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class EngineNotFound(Exception):
    """No SGLang at this path; the message says where it was looked for and what to do next."""


class TargetMissing(Exception):
    """The engine has no such module or name."""


@dataclass(frozen=True)
class EngineSource:
    """An engine's source: an installed or unpacked tree, or a wheel file. Nothing in it is ever imported."""

    root: Path
    """The directory that holds `sglang/`, or the wheel."""
    _trees: dict[str, ast.Module] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def at(cls, path: Path) -> EngineSource:
        """An environment, a site-packages or unpacked wheel directory, the package itself, or a .whl file."""
        if path.is_file() and path.suffix == ".whl":
            try:
                with zipfile.ZipFile(path) as wheel:
                    if "sglang/__init__.py" in wheel.namelist():
                        return cls(path)
            except (zipfile.BadZipFile, OSError) as error:
                raise EngineNotFound(f"{path} cannot be read as a wheel ({error}). Fetch it again.") from None
        candidates = [path, path.parent if path.name == "sglang" else path]
        candidates += sorted(path.glob("lib/python3*/site-packages"))
        for root in candidates:
            if (root / "sglang" / "srt").is_dir():
                return cls(root)
        raise EngineNotFound(
            f"{path} holds no SGLang (looked for sglang/srt in it and in its site-packages). "
            "Name an environment, an unpacked wheel or a .whl file with --engine, or run `make engine`."
        )

    @classmethod
    def of_this_process(cls) -> EngineSource:
        """The SGLang this interpreter would import. Finding a top-level package does not run it."""
        spec = importlib.util.find_spec("sglang")
        if spec is None or not spec.submodule_search_locations:
            raise EngineNotFound(
                "sglang is not importable here. Name an environment or a wheel with --engine, or run `make engine`."
            )
        return cls.at(Path(next(iter(spec.submodule_search_locations))))

    @cached_property
    def version(self) -> str:
        """From the dist-info beside the package, or `unknown`."""
        if self.root.suffix == ".whl":
            # Not from the file's name: in a Nix store that begins with a hash.
            with zipfile.ZipFile(self.root) as wheel:
                found = sorted({PurePosixPath(name.partition("/")[0]) for name in wheel.namelist()
                                if name.startswith("sglang-") and ".dist-info/" in name})  # fmt: skip
        else:
            found = sorted(self.root.glob("sglang-*.dist-info"))
        return found[-1].name.removeprefix("sglang-").removesuffix(".dist-info") if found else "unknown"

    def read(self, module: str) -> str:
        """Raises TargetMissing, also for what is no text."""
        try:
            return self._read(module)
        except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise TargetMissing(f"module {module} in {self.root} cannot be read ({error})") from None

    def _read(self, module: str) -> str:
        stem = module.replace(".", "/")
        for name in (f"{stem}.py", f"{stem}/__init__.py"):
            if self.root.suffix == ".whl":
                with zipfile.ZipFile(self.root) as wheel:
                    if name in wheel.namelist():
                        return wheel.read(name).decode()
            elif (self.root / name).is_file():
                return (self.root / name).read_text(encoding="utf-8")
        raise TargetMissing(f"module {module} does not exist in {self.root}")

    def tree(self, module: str) -> ast.Module:
        if module not in self._trees:
            text = self.read(module)
            try:
                self._trees[module] = ast.parse(text)
            except (SyntaxError, ValueError, MemoryError, RecursionError) as error:  # the last two: nested too deeply
                what = f"module {module} in {self.root} is not Python ({str(error) or type(error).__name__})"
                raise TargetMissing(what) from None
        return self._trees[module]

    def fingerprint(self, target: Target) -> str:
        """16 hex digits. Raises TargetMissing."""
        return fingerprint(self.tree(target.module), target.name, where=target.module)


def fingerprint(tree: ast.Module, name: str, *, where: str = "module") -> str:
    """The hash of every definition of `name`; a name defined twice (in branches, or replaced below) counts as both."""
    scopes: list[ast.AST] = [tree]
    for part in name.split("."):
        scopes = [found for scope in scopes for found in _definitions(scope, part)]
        if not scopes:
            raise TargetMissing(f"{where} has no {name}")
    if "." in name:
        scopes += _definitions(tree, name)
    digest = hashlib.sha256()
    for node in scopes:
        for piece in _canonical(node):
            digest.update(piece.encode())
            digest.update(b"\0")
    return digest.hexdigest()[:16]


def _definitions(scope: ast.AST, name: str) -> Iterator[ast.AST]:
    """Definitions of `name` in this scope, inside `if` and `try` too, but not inside other definitions.

    An assignment or import of the name is one as well, and an assignment to a part of it: other code is run then.
    """
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _Definition):
            if node.name == name:
                yield node
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            assigned = map(ast.unparse, node.targets if isinstance(node, ast.Assign) else [node.target])
            if any(to == name or to.startswith(f"{name}.") for to in assigned):
                yield node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            if any((alias.asname or alias.name) == name for alias in node.names):
                yield node
        elif isinstance(node, (ast.If, ast.Try, ast.ExceptHandler, ast.With)):
            yield from _definitions(node, name)


def _canonical(node: object) -> Iterator[str]:
    """The tree in words, without what is empty: newer Pythons add fields that older trees do not have."""
    if isinstance(node, ast.Constant):
        yield f"{type(node.value).__name__}:{node.value!r}"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(node, _Definition):
                value = value[_has_docstring(value) :]
            if name in _SILENT_FIELDS or value is None or value == []:
                continue
            yield name
            yield from _canonical(value)
        yield ")"
    elif isinstance(node, list):
        for item in node:
            yield from _canonical(item)
        yield ";"
    else:
        yield repr(node)


def _has_docstring(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def fit(adapters: Iterable[Adapter], engine: EngineSource) -> list[Reason]:
    """Every target of every adapter that is not what it was when the adapter was written."""
    reasons = []
    for adapter in adapters:
        for target in adapter.targets:
            try:
                found = engine.fingerprint(target)
            except (TargetMissing, SyntaxError, OSError, UnicodeDecodeError) as error:
                reasons.append(Reason(adapter.name, f"{target.path} cannot be read: {error}.", "fit"))
                continue
            if found not in target.known:
                known = ", ".join(f"{print_} ({version})" for print_, version in target.known.items())
                what = f"{target.path} is {found} in sglang {engine.version}, known are {known}."
                reasons.append(Reason(adapter.name, what, "fit"))
    return reasons
