"""What SGLang makes of command lines and variables: reads a list from stdin, prints one JSON line.

Parses with `prepare_server_args`, which is what `sglang.launch_server` calls; nothing of the model is looked at.
"""

from __future__ import annotations

import json
import os
import sys
import warnings

from sglang.srt.environ import EnvField, Envs, envs
from sglang.srt.server_args import prepare_server_args

WANTED = (
    "model_path", "served_model_name", "host", "port", "tp_size", "ep_size", "nnodes", "node_rank", "dist_init_addr",
    "context_length", "max_running_requests", "max_total_tokens", "mem_fraction_static", "chunked_prefill_size",
    "cuda_graph_max_bs_decode", "attention_backend", "moe_runner_backend", "fp8_gemm_runner_backend",
    "speculative_algorithm", "speculative_dspark_block_size", "speculative_use_block_verification",
    "enable_decoder_swa_bounded_replay", "enable_deepseek_v4_fp4_indexer", "min_free_slots_delay", "sleep_on_idle",
    "tool_call_parser", "reasoning_parser", "watchdog_timeout", "load_format", "trust_remote_code", "random_seed",
    "model_loader_extra_config", "enable_cache_report",
)  # fmt: skip


def parsed(argv: list[str]) -> dict[str, object]:
    """The fields as parsed, or what the parser said. Every option must be spelt in full."""
    try:
        arguments = prepare_server_args(argv)
    except SystemExit as refused:
        return {"refused": refused.code}
    return {name: getattr(arguments, name) for name in WANTED}


def read(name: str, value: str) -> object:
    """An SGLANG_ variable as the engine reads it: it warns of a malformed one and takes its default."""
    if not isinstance(vars(Envs).get(name), EnvField):
        return {"unknown": name}
    os.environ[name] = value
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = getattr(envs, name).get()
    return {"malformed": [str(warning.message) for warning in said]} if said else {"value": got}


def main() -> None:
    asked = json.load(sys.stdin)
    answer = {
        "lines": [parsed(argv) for argv in asked["lines"]],
        "variables": {name: read(name, value) for name, value in asked["variables"]},
        "options": sorted(options()),
    }
    print(json.dumps(answer))


def options() -> set[str]:
    """Every option's full spelling: argparse also takes any unambiguous beginning of one."""
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return {spelling for action in parser._actions for spelling in action.option_strings}


if __name__ == "__main__":
    main()
