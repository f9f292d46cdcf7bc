"""`dsv41 adapters`: what each change to the engine does here; `dsv41 adapters fit`: whether it still fits."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dsv41_adapters.adapter import Adapter, State
from dsv41_adapters.fingerprint import EngineNotFound, EngineSource, TargetMissing
from dsv41_adapters.plan import PlanUnreadable, read_plan
from dsv41_adapters.registry import discover
from dsv41_adapters.report import ArmedReport, read_reports

from ..errors import Dsv41Error, Exit, Stage


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "adapters",
        help="list the changes to the engine, each with its state and why",
        description="Lists every adapter. With --settings and --node: whether it is asked for there, and "
        "what the rank's processes report. An adapter is off, armed, engaged (armed and called) or refused.",
    )
    parser.add_argument("--settings", type=Path, metavar="FILE", help="settings of the fleet, JSON")
    parser.add_argument("--node", metavar="NAME", help="the node whose rank is asked about")
    parser.add_argument("--json", action="store_true", help="print {name, state, reason, targets, status} of each")
    parser.set_defaults(run=run)
    commands = parser.add_subparsers(metavar="COMMAND")
    fit = commands.add_parser(
        "fit",
        help="compare every target with an engine on disk",
        description="Hashes each target's syntax tree, found on disk without importing the engine. "
        "Exits 0 when all fit, 78 when one has changed.",
    )
    fit.add_argument("--engine", type=Path, metavar="PATH", help="an environment, an unpacked wheel, or a .whl file")
    fit.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print every target's fingerprint")
    fit.set_defaults(run=run_fit)
    plan = commands.add_parser(
        "plan",
        help="what tp_pad would pad for a world size",
        description="Reads the checkpoint's config.json. Exits 0 with the plan, 78 when that world size cannot "
        "serve it.",
    )
    plan.add_argument("--world-size", type=int, required=True, metavar="N", help="ranks, one GPU each")
    plan.add_argument("--ep-size", type=int, default=1, metavar="N", help="expert-parallel degree (default 1)")
    plan.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="directory with config.json")
    plan.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the plan as JSON")
    plan.set_defaults(run=run_plan)


def run(args: argparse.Namespace) -> int:
    if (args.settings is None) != (args.node is None):
        raise Dsv41Error("--settings and --node go together.", stage=Stage.CONFIG, hint="Give both or none.")
    asked: set[str] | None = None
    reports: list[ArmedReport] = []
    if args.settings is not None:
        asked, reports = _at_node(args.settings, args.node)
    rows = [_row(adapter, asked, reports) for adapter in discover().values()]
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        width = max(len(str(row["name"])) for row in rows)
        for row in rows:
            print(f"{row['name']:<{width}} {row['state']:<8} {row['status']:<9} {row['reason'] or ''}".rstrip())
            print(f"{'':<{width}} {discover()[str(row['name'])].changes}")
    return Exit.REFUSED if any(row["state"] == State.REFUSED for row in rows) else Exit.OK


def _at_node(settings_file: Path, node: str) -> tuple[set[str], list[ArmedReport]]:
    """What the settings ask for, and the reports of the rank that was started there last."""
    from ..rank.plan import report_dir
    from ..settings import load

    settings = load(settings_file)
    if node not in settings.fleet.nodes:
        raise Dsv41Error(
            f"the fleet has no node {node}.",
            stage=Stage.CONFIG,
            hint=f"It has {', '.join(settings.fleet.nodes)}.",
        )
    directory = report_dir(settings, node)
    try:
        boot = read_plan(directory / "plan.json").boot
    except PlanUnreadable:
        return set(settings.adapters_asked), []
    return set(settings.adapters_asked), read_reports(directory, boot)


def _row(adapter: Adapter, asked: set[str] | None, reports: list[ArmedReport]) -> dict[str, Any]:
    said = [report.adapters[adapter.name] for report in reports if adapter.name in report.adapters]
    for state in (State.REFUSED, State.ENGAGED, State.ARMED):
        found = [s for s in said if s.state is state]
        if found:
            reason = found[0].reason
            break
    else:
        state = State.OFF
        if asked is None:
            reason = "no fleet was named (--settings, --node)"
        else:
            reason = "asked for, but no rank has armed it" if adapter.name in asked else "not asked for"
    return {
        "name": adapter.name,
        "state": str(state),
        "reason": reason,
        "targets": [target.path for target in adapter.targets],
        "status": str(adapter.standing),
    }


def run_fit(args: argparse.Namespace) -> int:
    try:
        engine = _engine(args.engine)
    except EngineNotFound as error:
        what, _, hint = str(error).partition(". ")
        raise Dsv41Error(f"{what}.", stage=Stage.ENGINE, hint=hint, transient=True) from None
    adapters = [{"name": name, "targets": _targets(adapter, engine)} for name, adapter in discover().items()]
    changed = [(a["name"], t) for a in adapters for t in a["targets"] if not t["fits"]]
    if args.json:
        report = {
            "engine": str(engine.root),
            "version": engine.version,
            "fits": not changed,
            "adapters": adapters,
        }
        print(json.dumps(report, indent=1))
    else:
        for adapter in adapters:
            print(f"{adapter['name']} on sglang {engine.version} ({engine.root})")
            for target in adapter["targets"]:
                known = ", ".join(f"{print_} ({version})" for print_, version in target["known"].items())
                verdict = "fits" if target["fits"] else f"CHANGED, known: {known}"
                print(f"  {target['found'] or 'missing':<16}  {target['how']:<7}  {target['path']}  {verdict}")
    for name, target in changed:
        print(
            f"engine: adapter {name} does not fit: {target['path']} is {target['found'] or 'missing'}. "
            "Turn it off or port it: adapters/STATUS.md.",
            file=sys.stderr,
        )
    return Exit.REFUSED if changed else Exit.OK


def _engine(asked: Path | None) -> EngineSource:
    """The path given; else the environment that `make engine` builds beside this; else what Python finds."""
    if asked is not None:
        return EngineSource.at(asked)
    beside = Path(sys.prefix).parent / ".venv-engine"
    return EngineSource.at(beside) if beside.is_dir() else EngineSource.of_this_process()


def _targets(adapter: Adapter, engine: EngineSource) -> list[dict[str, Any]]:
    rows = []
    for target in adapter.targets:
        try:
            found: str | None = engine.fingerprint(target)
        except (TargetMissing, SyntaxError, OSError, UnicodeDecodeError):
            found = None
        rows.append({"path": target.path, "how": str(target.how), "found": found, "known": dict(target.known),
                     "fits": found in target.known})  # fmt: skip
    return rows


def run_plan(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from dsv41_adapters.tp_pad.padding import CannotPad, padding_plan

    path = args.checkpoint / "config.json"
    try:
        plan = padding_plan(json.loads(path.read_bytes()), args.world_size, args.ep_size)
    except OSError as error:
        hint = "Name the checkpoint's directory with --checkpoint."
        raise Dsv41Error(f"{path} cannot be read ({error.strerror}).", stage=Stage.ENGINE, hint=hint) from None
    except CannotPad as refusal:
        hint = "Choose another world size or ep_size."
        raise Dsv41Error(f"world size {args.world_size}: {refusal}", stage=Stage.ENGINE, hint=hint) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Dsv41Error(f"{path} is not a DeepSeek-V4.1 config ({error!r}).", stage=Stage.ENGINE,
                         hint="Name the checkpoint's directory with --checkpoint.") from None  # fmt: skip
    if args.json:
        print(json.dumps(asdict(plan) | {"needed": plan.needed, "idle_ranks": plan.idle_ranks}, indent=1))
        return Exit.OK
    print(f"{'':<26} {'stored':>8} {'padded':>8} {'a rank':>8}  by")
    for q in plan.quantities:
        print(f"{q.name:<26} {q.stored:>8} {q.padded:>8} {q.per_rank:>8}  {q.by}")
    for rank in plan.idle_ranks:
        print(f"Rank {rank}'s attention is padding alone; its experts, vocabulary and Engram rows are not.")
    if not plan.needed:
        print("tp_pad has nothing to do here.")
    return Exit.OK
