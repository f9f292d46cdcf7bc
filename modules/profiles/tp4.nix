# `engine.profile = "tp4"`: four Sparks behind a RoCE switch. Defaults only; any of them can be set otherwise.
#
# Source, unless a line says otherwise: knapcio/DeepSeek-V4.1-Flash-4x-DGX-Spark-TP4 at fa135638, validation of
# 2026-09-29 (v2.3, switched fabric, 2200 MHz clock cap): prose 89.7 tok/s at one stream, 357 over sixteen.
{ config, lib, ... }:
let
  inherit (lib) mkDefault;
in
{
  config = lib.mkIf (config.engine.profile == "tp4") {
    engine = {
      context_length = mkDefault 1048576;
      parallelism = {
        tp_size = mkDefault 4;
        ep_size = mkDefault 1;
      };
      memory = {
        # Keeps about 24 GiB a rank outside the static pool for the prefill transient.
        mem_fraction_static = mkDefault 0.8;
        # 13.4 GB of KV a rank, well under the 16M tokens that the budget line of a boot reported at 0.90.
        max_total_tokens = mkDefault 8000000;
        # 4096 in the source needs its chunked indexer, which we do not have: the indexer's transient is about
        # 14 B x chunk x prefix, which is 15 GB at 1024 and 60 GB at 4096 for a prompt of 1M tokens.
        chunked_prefill_size = mkDefault 1024;
        max_running_requests = mkDefault 16;
        cuda_graph_max_bs_decode = mkDefault 16;
      };
      speculative = mkDefault {
        algorithm = "DSPARK";
        block_size = 5;
      };
      backends = {
        attention = mkDefault "dsv4";
        moe_runner = mkDefault "flashinfer_mxfp4";
        fp8_gemm = mkDefault "flashinfer_cutlass";
      };
      bounded_replay = mkDefault true;
      fp4_indexer = mkDefault true;
      # The publisher's default; the engine of the source took 50, which shortens every answer that thinks.
      reasoning_effort = mkDefault 75;
      watchdog_timeout_s = mkDefault 1800;
      # SGLang's own choice for DSPARK waits for three free slots of sixteen before it lets a prefill in.
      min_free_slots_delay = mkDefault 1;
      sleep_on_idle = mkDefault true;
      load_threads = mkDefault 1;
      environment = {
        # "True" makes every prefill of more than 64 query tokens NaN (the TP3 source, REPORT.md section 17).
        PYTORCH_CUDA_ALLOC_CONF = mkDefault "expandable_segments:False";
        # Fused, it sums experts by atomic adds in bf16: greedy first tokens then differed by up to 1 nat from run to
        # run. Off costs about 0.3 ms a step (the TP3 source). SGLang's default today, kept against another one.
        SGLANG_FLASHINFER_MOE_FUSED_FINALIZE = mkDefault "0";
        # The probe for cargo can hang before the server listens; the wheels bring what would be built.
        SGLANG_RUST_BUILD_MODE = mkDefault "never";
      };
      # NCCL's buffers are pinned host memory, which is GPU memory here: 4.7 GiB a node without these, 139 MB with.
      nccl = {
        buffer_bytes = mkDefault 1048576;
        protocol = mkDefault "^LL128";
        max_channels = mkDefault 8;
      };
    };
    # The recipes pin a revision whose effort tiers mean other budgets than those that prompts are rendered with.
    adapters.encoding_check = mkDefault { };
    # Freed smaller buffers of the indexer never serve the next larger one: 8 GiB reserved with nothing live after 64
    # chunks of 2048 tokens (the TP3 source, by a synthetic test). 8192 is the number of both sources.
    adapters.prefill_empty_cache.context_tokens = mkDefault 8192;
    # Without it SGLang loads what was tuned for other flags (both sources).
    adapters.autotune_keep = mkDefault { };
    pack = {
      cache_bytes = mkDefault 4294967296;
      ways = mkDefault 16;
    };
  };
}
