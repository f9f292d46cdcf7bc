"""Compares before the engine starts, and again with the tokenizer that it serves with. Imports sglang."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deepseek_recipe
from sglang.srt.parser.deepseek_recipe_renderer import IMAGE_TOKEN, MODEL_NAMES

from .published import ASKED, TOKENS, CannotRead, Published, differences, prompt_of, read_published

if TYPE_CHECKING:
    from ..activation import AdapterRun
    from .spec import EncodingCheckSettings

log = logging.getLogger(__name__)

_HINT = (
    "Serve a checkpoint from revision df42c109 on, or turn adapters.encoding_check off and tell clients which "
    "budgets they get."
)


def hooks(run: AdapterRun) -> dict[str, object]:
    """Hook by target, as `spec.py` declares them. Raises AdapterRefused when the files already disagree."""
    settings: EncodingCheckSettings = run.settings  # type: ignore[assignment]
    checkpoint = run.plan.checkpoint
    if checkpoint is None:
        raise run.refuse("the plan does not say where the checkpoint is.", "plan")
    try:
        published = read_published(Path(checkpoint.path), settings.file)
    except CannotRead as problem:
        raise run.refuse(f"{problem} {_HINT}", "settings") from None
    found = differences(published, render, spelling())
    if found:
        what = f"{published} of revision {checkpoint.revision} and deepseek-recipe {deepseek_recipe.__version__}: "
        raise run.refuse(f"{what}{'; '.join(found)}. {_HINT}")
    target = "sglang.srt.entrypoints.openai.serving_deepseek_recipe:DeepSeekRecipeChatEncodingAdapter.__init__"
    return {target: compares_tokens(run, published)}


def special_tokens() -> deepseek_recipe.SpecialTokens:
    """As SGLang asks for them: recipe's own, but for the image."""
    return deepseek_recipe.SpecialTokens(image=IMAGE_TOKEN)


def spelling() -> dict[str, str]:
    """How prompts are rendered, by the names that an encoding.py uses."""
    tokens = special_tokens()
    return {name: tokens.token(getattr(deepseek_recipe.SpecialToken, kind)) for name, kind in TOKENS.items()}


def render(body: Mapping[str, Any]) -> str:
    """A prompt as text, by deepseek-recipe alone."""
    options = deepseek_recipe.ConversionOptions().with_special_tokens(special_tokens())
    converted = deepseek_recipe.ChatCompletionRequest({**body, "model": MODEL_NAMES["dsv41"]}).convert(options)
    encoding = deepseek_recipe.DeepseekV41Encoding().with_special_tokens(special_tokens())
    return str(encoding.render_conversation(converted.conversation).prompt)


def compares_tokens(run: AdapterRun, published: Published) -> Callable[..., None]:
    """AFTER the chat encoding's `__init__`: what the served tokenizer makes of each tier reads as the file says."""

    def after(result: None, encoding: Any, *args: Any, **kwargs: Any) -> None:
        run.engaged()
        recipe, spelt = encoding.deepseek_recipe, spelling()
        found = []
        for name in TOKENS:
            token = published.text(name, spelt[name])
            if recipe.hf_tokenizer.token_to_id(token) is None:
                found.append(f"the tokenizer has no token {token!r} ({name})")
        for tier, budget in published.table.items():
            body = {"messages": [dict(message) for message in ASKED["messages"]], "thinking": True}
            ids = encoding._encode(body, effort=tier)
            text = recipe.hf_tokenizer.decode(ids, skip_special_tokens=False)
            if text != prompt_of(published, budget, spelt):
                found.append(f"effort {tier} is encoded as {text!r}")
        if found:
            raise run.refuse(f"{published} and the engine's tokenizer: {'; '.join(found)}. {_HINT}")
        tiers = ", ".join(f"{tier} {budget}" for tier, budget in published.table.items())
        default = encoding._default_effort or published.default
        revision = run.plan.checkpoint.revision if run.plan.checkpoint is not None else "unknown"
        told = (
            f"revision {revision}, {published.path.name} sha256 {published.sha256[:12]} and deepseek-recipe "
            f"{deepseek_recipe.__version__} agree: {tiers}; a request that names none gets {default}"
        )
        log.info("encoding_check: %s", told)
        run.note(told)
        return result

    return after
