from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dsv41_adapters import registry
from dsv41_adapters.adapter import Adapter, AdapterRefused, How, Role
from dsv41_adapters.registry import discover, order, settings_model, validate_settings
from pydantic import ValidationError

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Adapter]]:
    """Four made-up adapters, `a` to `d`, each with targets of its own; a test may change them."""
    real = discover()["engram_nvme"]
    made = {
        name: replace(real, name=name, targets=(replace(real.targets[0], path=f"module:{name.upper()}"),))
        for name in "abcd"
    }
    monkeypatch.setattr(registry, "_discovered", lambda: made)
    yield made


def names(asked: list[str], world_size: int = 3) -> list[str]:
    return [adapter.name for adapter in order(asked, world_size)]


def refusals(asked: list[str], world_size: int = 3) -> list[str]:
    with pytest.raises(AdapterRefused) as refused:
        order(asked, world_size)
    assert refused.value.code == 78
    return [reason.what for reason in refused.value.reasons]


def test_every_spec_is_found_and_every_one_has_a_row_in_status() -> None:
    status = (REPOSITORY / "adapters" / "STATUS.md").read_text()
    folders = {spec.parent.name for spec in (REPOSITORY / "adapters" / "dsv41_adapters").glob("*/spec.py")}
    assert set(discover()) == folders
    assert all(f"| `{name}` |" in status for name in folders)


def test_the_specs_load_without_torch_or_sglang() -> None:
    """The supervisor loads them, and must stay small."""
    code = """if True:
        import sys
        import dsv41_adapters.fingerprint, dsv41_adapters.report
        from dsv41_adapters.registry import discover, settings_model
        discover(), settings_model()
        print(sorted({"torch", "sglang", "numpy", "safetensors", "dsv41_rowstore"} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_adapters_are_off_until_they_are_named() -> None:
    off = settings_model()()
    assert off.model_dump() == dict.fromkeys(discover())
    on = settings_model().model_validate({"engram_nvme": {}})
    asked = {name: values for name, values in on.model_dump(mode="json").items() if values is not None}
    assert asked == {"engram_nvme": discover()["engram_nvme"].settings().model_dump(mode="json")}
    with pytest.raises(ValidationError, match="engram_nvm\n"):
        settings_model().model_validate({"engram_nvm": {}})


def test_an_adapter_goes_behind_those_it_names(known: dict[str, Adapter]) -> None:
    known["a"] = replace(known["a"], after=("c", "b"))
    known["b"] = replace(known["b"], after=("c",))
    assert names(["a", "b", "c"]) == ["c", "b", "a"]
    assert names(["a"]) == ["a"]


def test_every_reason_comes_at_once(known: dict[str, Adapter]) -> None:
    known["a"] = replace(known["a"], world_sizes=frozenset({3, 4}), conflicts=("b",))
    assert refusals(["a", "b", "nothing"], world_size=2) == [
        "there is no such adapter; there are a, b, c, d.",
        "it was made for a world size of 3 or 4, this fleet has 2.",
        "it cannot be used together with b, which is asked for too.",
    ]


def test_two_adapters_on_one_target_need_an_order(known: dict[str, Adapter]) -> None:
    known["b"] = replace(known["b"], targets=known["a"].targets)
    assert refusals(["a", "b"]) == ["no order: it and b both change module:A, and neither is `after` the other."]
    known["b"] = replace(known["b"], after=("a",))
    assert names(["a", "b"]) == ["a", "b"]


def test_a_circle_is_a_refusal(known: dict[str, Adapter]) -> None:
    known["a"] = replace(known["a"], after=("b",))
    known["b"] = replace(known["b"], after=("a",))
    (reason,) = refusals(["a", "b"])
    assert "`after` goes in a circle" in reason


def test_settings_are_refused_with_their_path() -> None:
    adapter = discover()["engram_nvme"]
    assert validate_settings(adapter, {}).lookup_timeout_s == 30.0
    with pytest.raises(AdapterRefused) as refused:
        validate_settings(adapter, {"lookup_timeout_s": 0, "typo": 1})
    text = str(refused.value)
    assert "adapters.engram_nvme.lookup_timeout_s: Input should be greater than 0." in text
    assert "adapters.engram_nvme.typo: Extra inputs are not permitted." in text


def test_engram_nvme_is_hooked_in_the_schedulers_only() -> None:
    adapter = discover()["engram_nvme"]
    assert adapter.processes == {Role.SCHEDULER}
    assert adapter.needs_rows and adapter.same_output
    assert Path(REPOSITORY / "adapters" / "dsv41_adapters" / adapter.name / "install.py").is_file()


def test_a_target_is_hooked_in_its_own_process_or_in_each_of_the_adapters() -> None:
    real = discover()["engram_nvme"]
    target = replace(real.targets[0], process=Role.SCHEDULER)
    assert target.hooked_in(Role.SCHEDULER) and not target.hooked_in(Role.LAUNCHER)
    assert all(replace(target, process=None).hooked_in(role) for role in Role)
    assert not replace(target, how=How.RELIES).hooked_in(Role.SCHEDULER)
    elsewhere = replace(target, process=Role.LAUNCHER)
    with pytest.raises(ValueError, match=f"{target.name} is hooked in the launcher, where engram_nvme is not used"):
        replace(real, targets=(elsewhere,))


def test_all_adapters_can_be_on_together() -> None:
    assert [adapter.name for adapter in order(discover(), 3)] == sorted(discover())
