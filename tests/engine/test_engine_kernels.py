"""autotune_keep and mxfp8_b12x around SGLang's own functions. What they do on a GB10 is not shown here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engines import engine_environment


@pytest.fixture(scope="module")
def seen(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    script = Path(__file__).parent / "inside" / "kernels.py"
    argv = [engine_python, script, tmp_path_factory.mktemp("kernels")]
    done = subprocess.run(argv, env=engine_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_two_launches_never_meet_in_one_cache_file(seen: dict[str, Any]) -> None:
    """SGLang's own file and the other launch's are there all the while, as after a flag was changed."""
    paths = seen["autotune"]
    stock, one, two = (Path(paths[name]) for name in ("stock", "one", "two"))
    assert len({stock, one, two}) == 3
    assert one.parent.parent == two.parent.parent == stock.parent
    assert one.name == two.name == stock.name == "rank_tp1_pp0_dp0.json"
    assert not paths["two is there"]


def test_the_same_launch_finds_its_own_again(seen: dict[str, Any]) -> None:
    paths = seen["autotune"]
    assert paths["kept"] == paths["armed"] == paths["one"]
    assert paths["reason"].endswith(": tactics of an earlier boot")
    assert paths["about"]["launch"] == "one" and paths["about"]["versions"]["sglang"] == "0.5.23"


def test_without_a_launch_in_the_plan_nothing_is_kept(seen: dict[str, Any]) -> None:
    assert "the plan does not say what was launched" in seen["autotune"]["without a launch"]


def test_b12x_is_refused_where_there_is_no_gb10(seen: dict[str, Any]) -> None:
    said = seen["b12x"]["here"]
    assert said.startswith("adapter mxfp8_b12x refused: ")
    assert "12.1 (GB10)" in said and "flashinfer-python is not installed, known is 0.7.2." in said


def test_b12x_is_asked_for_wherever_its_k_fits(seen: dict[str, Any]) -> None:
    assert seen["b12x"]["asked"] == [
        [[64, 1280], "b12x"],
        [[5120, 576], "cutlass"],
        [[64, 1280], "b12x"],
        [[32, 768], "b12x"],
    ]
    assert seen["b12x"]["reason"] == (
        "2 shapes of layers on b12x; left on cutlass, for K is no multiple of 128: 5120x576"
    )


def test_another_fp8_backend_is_refused_and_not_worked_around(seen: dict[str, Any]) -> None:
    assert "a dense FP8 layer asks for cute-dsl." in seen["b12x"]["another backend"]
    assert "Set engine.backends.fp8_gemm to flashinfer_cutlass" in seen["b12x"]["no flag"]
