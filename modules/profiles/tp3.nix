# `engine.profile = "tp3"`: three Sparks as a triangle. Defaults only; any of them can be set otherwise.
#
# Source, unless a line says otherwise: MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks at cad252b7, its 3-node profile after
# the changes of 2026-09-24: about 59 ms a decode step at one stream.
{ config, lib, ... }:
let
  inherit (lib) mkDefault;
in
{
  config = lib.mkIf (config.engine.profile == "tp3") {
    engine = {
      # More fits, but a long prompt's transient on the head does not: about 32k of it is usable there.
      context_length = mkDefault 262144;
      parallelism = {
        tp_size = mkDefault 3;
        # The source's A/B of 2026-09-24 settled on EP 1 for three nodes. At 1 the 128 draft experts need no padding.
        ep_size = mkDefault 1;
      };
      memory = {
        # Guess, never measured at TP3: the value of TP4, whose ranks hold 77 GiB of weights against 101 here.
        mem_fraction_static = mkDefault 0.8;
        chunked_prefill_size = mkDefault 2048;
        # Below 8 SGLang adds no delay to admissions. Guess within that: the source's own number was not published.
        max_running_requests = mkDefault 4;
        cuda_graph_max_bs_decode = mkDefault 4;
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
      # The publisher's default; the engine of the source took 50, which shortens every answer that thinks.
      reasoning_effort = mkDefault 75;
      watchdog_timeout_s = mkDefault 1800;
      load_threads = mkDefault 1;
      environment = {
        # "True" makes every prefill of more than 64 query tokens NaN (REPORT.md section 17 of the source).
        PYTORCH_CUDA_ALLOC_CONF = mkDefault "expandable_segments:False";
        # Fused, it sums experts by atomic adds in bf16: greedy first tokens then differed by up to 1 nat from run to
        # run. Off costs about 0.3 ms a step (the TP3 source). SGLang's default today, kept against another one.
        SGLANG_FLASHINFER_MOE_FUSED_FINALIZE = mkDefault "0";
        # The probe for cargo can hang before the server listens; the wheels bring what would be built.
        SGLANG_RUST_BUILD_MODE = mkDefault "never";
      };
      nccl = {
        # NCCL's buffers are pinned host memory, which is GPU memory here: 4.7 GiB a node without these, 139 MB with.
        # The numbers themselves are those of TP4; the source names the knobs for TP3 and not their values.
        buffer_bytes = mkDefault 1048576;
        protocol = mkDefault "^LL128";
        max_channels = mkDefault 8;
      };
    };
    # Three ranks do not divide the model's 8 groups of heads, nor its draft experts.
    adapters.tp_pad = mkDefault { };
    # The recipes pin a revision whose effort tiers mean other budgets than those that prompts are rendered with.
    adapters.encoding_check = mkDefault { };
    # Freed smaller buffers of the indexer never serve the next larger one: 8 GiB reserved with nothing live after 64
    # chunks of 2048 tokens (the TP3 source, by a synthetic test). 8192 is the number of both sources.
    adapters.prefill_empty_cache.context_tokens = mkDefault 8192;
    # Without it SGLang loads what was tuned for other flags (both sources).
    adapters.autotune_keep = mkDefault { };
    pack.ways = mkDefault 16;
  };
}
