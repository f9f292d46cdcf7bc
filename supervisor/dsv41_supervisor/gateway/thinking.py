"""Whether a request thinks, and how hard: every spelling that clients use, read into one value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fields import BadRequest, Body, an_object

TIER_BUDGETS: Mapping[str, int] = {
    "minimal": 50,
    "low": 50,
    "medium": 75,
    "high": 75,
    "xhigh": 75,
    "max": 100,
    "ultra": 100,
}
"""Effort tiers and the budget (1 to 100) V4.1 is told. Source: prompts rendered by deepseek-recipe 0.2.0."""

_TIERS = ((62, "low"), (87, "high"), (100, "max"))
"""Up to which budget a tier is the nearest one."""

TRUE = frozenset({"true", "yes", "on", "1", "enabled", "adaptive", "auto"})
FALSE = frozenset({"false", "no", "off", "0", "disabled", "none"})


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a request asked for. `budget` None: the engine's default effort."""

    on: bool
    budget: int | None
    ignored: tuple[str, ...] = ()
    """Said beside the switch, and not done by the engine."""

    def template_kwargs(self) -> Body:
        """For `chat_template_kwargs`: only there does the engine take a whole number from 1 to 100."""
        effort = {} if self.budget is None else {"reasoning_effort": self.budget}
        return {"thinking": self.on, "enable_thinking": self.on} | effort

    def tier(self) -> str | None:
        """The nearest tier, for a route that knows no numbers."""
        return None if self.budget is None else next(name for top, name in _TIERS if self.budget <= top)


def take(out: Body, default_thinking: bool, default_effort: int | str | None) -> Thinking:
    """Read every spelling and take it out of `out`; other template arguments stay.

    `thinking` wins over `enable_thinking`, which wins over `reasoning.enabled`, which wins over an effort.
    Effort in chat_template_kwargs wins over `reasoning.effort`, which wins over `reasoning_effort`: the
    engine's own order. `output_config.effort` (Anthropic's) comes last.
    """
    kwargs = dict(an_object(out, "chat_template_kwargs"))
    reasoning, config = an_object(out, "reasoning"), an_object(out, "output_config")
    nested = [(reasoning, name, "reasoning.") for name in ("effort", "reasoning_effort")]
    efforts = [
        (kwargs, "reasoning_effort", "chat_template_kwargs."), *nested,
        (out, "reasoning_effort", ""), (config, "effort", "output_config."),
    ]  # fmt: skip
    effort: int | str | None = None
    for holder, name, prefix in reversed(efforts):  # each is checked, the first one holds
        if holder.get(name) is not None:
            effort = read_effort(holder[name], prefix + name)
    switches = [
        (kwargs, "thinking", "chat_template_kwargs."), (out, "thinking", ""),
        (kwargs, "enable_thinking", "chat_template_kwargs."), (out, "enable_thinking", ""),
        (reasoning, "enabled", "reasoning."), (reasoning, "enable", "reasoning."),
    ]  # fmt: skip
    on: bool | None = None
    for holder, name, prefix in reversed(switches):
        if holder.get(name) is not None:
            on = _switch(holder[name], prefix + name)
    if effort is None:
        effort = default_effort
    if on is None:
        on = default_thinking if effort is None else effort != "none"
    ignored = _ignored(out.get("thinking"))
    for name in ("thinking", "enable_thinking", "reasoning_effort"):
        out.pop(name, None)
    for name in ("thinking", "enable_thinking", "reasoning_effort"):
        kwargs.pop(name, None)
    out["chat_template_kwargs"] = kwargs
    return Thinking(on, effort if isinstance(effort, int) and on else None, ignored)


def _ignored(switch: object) -> tuple[str, ...]:
    """SGLang holds no budget of thinking tokens, and hides no thoughts."""
    if not isinstance(switch, dict):
        return ()
    said = {name: switch.get(name) for name in ("budget_tokens", "display")}
    return tuple(f"thinking.{name}" for name, value in said.items() if value not in (None, "summarized"))


def _switch(value: object, where: str) -> bool:
    if isinstance(value, dict):  # {"type": "enabled", "budget_tokens": …}
        value, where = value.get("type"), f"{where}.type"
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise BadRequest(f'{where} is neither on nor off: send true, false, or {{"type": "enabled"}}.', where)


def read_effort(value: object, where: str) -> int | str:
    """A budget from 1 to 100, or "none". Raises BadRequest."""
    if isinstance(value, str):
        word = value.strip().lower()
        if word == "none":
            return word
        if word in TIER_BUDGETS:
            return TIER_BUDGETS[word]
        try:
            value = float(word) if "." in word else int(word)
        except ValueError:
            value = None
    if isinstance(value, float) and value.is_integer() and value != 1:
        value = int(value)  # JSON knows no difference between 49 and 49.0; only 1.0 can be meant both ways
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100:
        return max(1, value)
    if isinstance(value, float) and 0.0 <= value <= 0.99:
        return max(1, round(value * 100))
    raise BadRequest(
        f"{where} is not an effort: send none, {', '.join(TIER_BUDGETS)}, a whole number from 1 to 100, "
        "or a fraction from 0 to 0.99.",
        where,
    )
