"""Declares `autotune_keep`. Loaded by the supervisor too: standard library and pydantic only."""

from __future__ import annotations

from ..adapter import Adapter, AdapterSettings, How, Role, Standing, Target


class AutotuneKeepSettings(AdapterSettings):
    """Nothing to set: the launch decides."""


_MODULE = "sglang.srt.model_executor.runner.flashinfer_autotune"

ADAPTER = Adapter(
    name="autotune_keep",
    changes="FlashInfer's tuned tactics are kept over boots for this launch line, environment and adapters only",
    targets=(
        Target(f"{_MODULE}:flashinfer_autotune_cache_path", known={"bb12f1b1fc1513d4": "0.5.23"}, how=How.AFTER),
        Target(f"{_MODULE}:flashinfer_autotune_context", known={"6efec350ddf5238c": "0.5.23"}, how=How.RELIES),
    ),
    settings=AutotuneKeepSettings,
    engages="the autotuner looks for its cache, after the weights are loaded",
    until="sglang's own key holds every flag that chooses kernels",
    credit="none: written for this project; that a stale cache was loaded is the finding of MiaAI-Lab's recipe",
    standing=Standing.PORTED,
    same_output=False,
    processes=frozenset({Role.SCHEDULER}),
)
