"""`dsv41 pack`: stage 4 alone; packs this node's Engram rows. What unit dsv41-pack runs."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from ..errors import Dsv41Error, Exit, Refused, Stage
from . import add_settings, read_settings, this_node


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("pack", help="pack this node's Engram rows onto its own drive")
    add_settings(parser)
    parser.add_argument("--verify", action="store_true", help="check rows against checksums and checkpoint instead")
    parser.add_argument(
        "--sample", type=_positive, metavar="N",
        help="with --verify: check N segments of 16 MiB and 256 N rows of each file, not every segment",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of segments to check")
    return number


def run(args: argparse.Namespace) -> int:
    from ..pack import pack
    from .progress_bar import Bar

    settings = read_settings(args)
    node = this_node(args, settings)
    if args.verify:
        return _verify(args, settings, node)
    if args.sample is not None:
        raise Dsv41Error("--sample goes with --verify.", stage=Stage.PACK, hint="Add --verify, or leave it out.")
    with Bar(f"packing rows of rank {settings.fleet.nodes[node].rank}") as bar:
        manifest = pack(settings, node, bar.show)
    layers = [{"layer": p.layer, "path": p.path, "rows": p.n_rows} for p in manifest.layers]
    if args.json:
        print(json.dumps({"node": node, "packed": manifest.packed, "layers": layers}))
    else:
        for layer in layers:
            done = "packed" if layer["layer"] in manifest.packed else "already good"
            print(f"{layer['path']}: {layer['rows']} rows, {done}")
    return Exit.OK


def _verify(args: argparse.Namespace, settings, node: str) -> int:  # type: ignore[no-untyped-def]
    from dsv41_rowstore import RowStoreError, verify_rows

    from ..pack import check_rows
    from .progress_bar import Bar

    manifest = check_rows(settings, node)
    if manifest.refusals:
        raise Refused(manifest.refusals)
    problems = list(manifest.to_pack.values())
    for layer in manifest.layers:
        began = time.monotonic()
        n_bytes = Path(layer.path).stat().st_size
        with Bar(f"checking {Path(layer.path).name}") as bar:

            def show(done: int, total: int, bar: Bar = bar, began: float = began, n_bytes: int = n_bytes) -> None:
                read = n_bytes * done // max(total, 1)
                bar.show(read, n_bytes, read / max(time.monotonic() - began, 1e-6))

            try:
                verify_rows(layer.path, sample=args.sample, checkpoint=settings.checkpoint_dir(node),
                            progress=None if args.sample else show)  # fmt: skip
            except (RowStoreError, OSError) as error:
                problems.append(str(error))
    if problems:
        raise Dsv41Error(
            "; ".join(problems), stage=Stage.PACK, node=node,
            hint="Remove the file that is named and run dsv41 pack.",
        )  # fmt: skip
    checked = "every segment" if args.sample is None else f"{args.sample} segments each"
    if args.json:
        files = [{"layer": p.layer, "path": p.path, "rows": p.n_rows} for p in manifest.layers]
        print(json.dumps({"node": node, "good": files, "sample": args.sample}))
    else:
        print(f"{node}: {len(manifest.layers)} packed files are good ({checked})")
    return Exit.OK
