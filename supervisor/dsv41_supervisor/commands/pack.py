"""`dsv41 pack`: stage 4 alone; packs this node's Engram rows. What unit dsv41-pack runs."""

from __future__ import annotations

import argparse
import json

from ..errors import Exit
from . import add_settings, read_settings, this_node


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("pack", help="pack this node's Engram rows onto its own drive")
    add_settings(parser)
    parser.add_argument("--verify", action="store_true", help="check rows against checksums and checkpoint instead")
    parser.add_argument("--sample", type=int, metavar="N", help="with --verify: check N segments and rows, not all")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..pack import check_rows, pack
    from .progress_bar import Bar

    settings = read_settings(args)
    node = this_node(args, settings)
    if args.verify:
        return _verify(args, settings, node)
    before = check_rows(settings, node)
    with Bar(f"packing rows of rank {settings.fleet.nodes[node].rank}") as bar:
        manifest = pack(settings, node, bar.show)
    layers = [{"layer": p.layer, "path": p.path, "rows": p.n_rows} for p in manifest.layers]
    if args.json:
        print(json.dumps({"node": node, "packed": sorted(before.to_pack), "layers": layers}))
    else:
        for layer in layers:
            done = "packed" if layer["layer"] in before.to_pack else "already good"
            print(f"{layer['path']}: {layer['rows']} rows, {done}")
    return Exit.OK


def _verify(args: argparse.Namespace, settings, node: str) -> int:  # type: ignore[no-untyped-def]
    from dsv41_rowstore import RowStoreError, verify_rows

    from ..errors import Dsv41Error, Stage
    from ..pack import check_rows

    manifest = check_rows(settings, node)
    problems = list(manifest.to_pack.values())
    for layer in manifest.layers:
        try:
            verify_rows(layer.path, sample=args.sample, checkpoint=settings.checkpoint_dir(node))
        except (RowStoreError, OSError) as error:
            problems.append(str(error))
    if problems:
        raise Dsv41Error(
            "; ".join(problems), stage=Stage.PACK, node=node,
            hint="Remove the file that is named and run dsv41 pack.",
        )  # fmt: skip
    print(f"{node}: {len(manifest.layers)} packed files are good")
    return Exit.OK
