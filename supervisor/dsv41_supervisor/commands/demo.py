"""`dsv41 demo`: a whole fleet on this machine, with the real engine on CPU, small."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import Dsv41Error, Stage

STATE = Path(".demo") / "state"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("demo", help="run a whole fleet on this machine, small")
    parser.add_argument("--once", action="store_true", help="one answer and a report, then stop")
    parser.add_argument("--json", action="store_true", help="print the report as JSON on standard output")
    parser.add_argument("--tp", type=int, metavar="N", help="tensor-parallel degree (the number of nodes)")
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes: 1, 3 or 4 (3)")
    parser.add_argument(
        "--engine", choices=("sglang", "scripted"), default="sglang",
        help="sglang: the real one (3 GB to download); scripted: a test double, ready in seconds",
    )  # fmt: skip
    parser.add_argument("--prompt", default="What is 19 + 23?", help="what is asked")
    parser.add_argument("--max-tokens", type=int, default=32, metavar="N")
    parser.add_argument("--loopback", action="store_true", help="no namespaces, even as root")
    parser.add_argument("--port", type=int, metavar="N", help="port of the endpoint (8888)")
    parser.add_argument("--script", type=Path, metavar="FILE", help="what the scripted engine does wrong")
    parser.add_argument("--state", type=Path, metavar="DIR", help=f"where the demo keeps its files ({STATE})")
    parser.add_argument("--source", type=Path, metavar="DIR", help="checkout of the project (where dsv41 was built)")
    parser.add_argument("--prepare-only", action="store_true", help="build environments and checkpoint, start nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from ..demo.session import Options
    from ..demo.session import run as run_demo
    from ..settings import EngineKind

    nodes = args.nodes if args.nodes is not None else args.tp if args.tp is not None else 3
    root = args.source or Path(__file__).resolve().parents[3]
    if not (root / "demo" / "make_checkpoint.py").is_file():
        raise Dsv41Error(
            f"{root} is not a checkout of the project: it has no demo/make_checkpoint.py.", stage=Stage.CONFIG,
            hint="Run make demo in a checkout, or name one with --source.",
        )  # fmt: skip
    if args.script is not None and args.engine != "scripted":
        raise Dsv41Error(
            "--script is for the scripted engine.", stage=Stage.CONFIG, hint="Add --engine scripted, or leave it out."
        )
    if args.script is not None and not args.script.is_file():
        raise Dsv41Error(
            f"{args.script} is not a file.", stage=Stage.CONFIG, hint="Name what the scripted engine shall do wrong."
        )
    if args.max_tokens < 1:
        raise Dsv41Error(
            f"--max-tokens is {args.max_tokens}, expected 1 or more.", stage=Stage.CONFIG, hint="Leave it out for 32."
        )
    options = Options(
        root=root, state_root=(args.state or root / STATE).resolve(),
        tp=args.tp if args.tp is not None else nodes,
        nodes=nodes, engine=EngineKind(args.engine), once=args.once, as_json=args.json, prompt=args.prompt,
        max_tokens=args.max_tokens, loopback=args.loopback, gateway_port=args.port,
        script=args.script.resolve() if args.script else None, prepare_only=args.prepare_only,
    )  # fmt: skip
    return asyncio.run(run_demo(options))
