"""Write the list of variables that the pinned SGLang reads, or with --check say whether it is stale.

Run it in the engine's environment after a bump: `.venv-engine/bin/python tools/sglang_variables.py` (with PYTHONPATH as
`tests/engine/engines.py` sets it on a CPU). The source is SGLang's own table; names that only its runtime's code quotes
are read there as text.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import sglang
from sglang.srt import environ
from sglang.srt.environ import EnvBool, EnvField, EnvFloat, EnvInt, Envs

LIST = Path(__file__).resolve().parent.parent / "supervisor/dsv41_supervisor/settings/sglang_variables.py"
KINDS = (("SWITCHES", EnvBool), ("WHOLE_NUMBERS", EnvInt), ("NUMBERS", EnvFloat), ("TEXTS", EnvField))
NAME = re.compile(r"[\"'](SGLANG_[A-Z0-9_]+)[\"']")


def by_kind() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {kind: set() for kind, _ in KINDS}
    for name, field in vars(Envs).items():
        if isinstance(field, EnvField) and name.startswith("SGLANG_"):
            found[next(kind for kind, of in KINDS if isinstance(field, of))].add(name)
    known = set().union(*found.values())
    for file in (Path(sglang.__file__).parent / "srt").rglob("*.py"):
        found["TEXTS"] |= set(NAME.findall(file.read_text(errors="replace"))) - known
    gone = {name for name in environ._DEPRECATED_ENVS if name.startswith("SGLANG_")}
    return {kind: names - gone for kind, names in found.items()} | {"GONE": gone}


def module() -> str:
    parts = [
        f'"""Variables that SGLANG {sglang.__version__} reads, by what it makes of their values. Written by '
        'tools/sglang_variables.py."""\n\n'
        "# ruff: noqa: SIM905 (a page of quotes would not read better)\n"
        "from __future__ import annotations\n"
    ]
    for kind, names in by_kind().items():
        lines = textwrap.wrap(" ".join(sorted(names)), 118, break_long_words=False, break_on_hyphens=False)
        parts.append(f'{kind} = frozenset(\n    """\n' + "\n".join(lines) + '\n""".split()\n)\n')
    return "\n".join(parts).replace("SGLANG 0", "SGLang 0")


def main() -> int:
    if "--check" in sys.argv:
        if LIST.read_text() == module():
            return 0
        print(f"{LIST} is not the pinned SGLang's. Run tools/sglang_variables.py in the engine's environment.")
        return 1
    LIST.write_text(module())
    return 0


if __name__ == "__main__":
    sys.exit(main())
