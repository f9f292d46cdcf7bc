"""In the engine's environment: prompts by SGLang's own encoder, and `encoding_check` armed. Prints one JSON object.

    encoding.py SCRATCH CHECKPOINT < conversations.json

`prompts`: the text of what `DeepSeekRecipe.encode` makes of each conversation, with the checkpoint's tokenizer, and the
images that its placeholders stand for. `check`: what the adapter says when it is armed and a chat encoding is made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dsv41_adapters.activation import AdapterRun
from dsv41_adapters.adapter import AdapterRefused, Role
from dsv41_adapters.encoding_check import install
from dsv41_adapters.encoding_check.spec import ADAPTER
from dsv41_adapters.hooks import arm_hooks
from dsv41_adapters.plan import CheckpointPlan, RankPlan
from dsv41_adapters.report import Reporter, read_reports
from sglang.srt.entrypoints.openai.serving_deepseek_recipe import DeepSeekRecipeChatEncodingAdapter
from sglang.srt.parser.deepseek_recipe_renderer import DeepSeekRecipe
from transformers import AutoTokenizer

scratch, checkpoint = Path(sys.argv[1]), Path(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(checkpoint)


def prompts() -> list[dict[str, object]]:
    recipe = DeepSeekRecipe.from_hf_tokenizer("dsv41", tokenizer)
    found = []
    for body in json.load(sys.stdin):
        images: list[str] = []
        budget = body.pop("budget", None)
        ids = recipe.encode(body, effort_budget=budget, image_urls=images)
        text = tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
        # The same text, cut by the checkpoint's tokenizer: no special token was spelt out in pieces, and a budget that
        # was put in afterwards is cut as if it had been there.
        again = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        found.append({"text": text, "images": images, "same ids": again == ids})
    return found


def check() -> dict[str, object]:
    plan = RankPlan("spark", 0, 1, "boot", scratch, {}, None, CheckpointPlan(str(checkpoint), "dba1be0a"))
    run = AdapterRun(ADAPTER, ADAPTER.settings(), plan, Reporter(scratch, boot="boot", rank=0, role=Role.LAUNCHER))
    try:
        arm_hooks([(ADAPTER, install.hooks(run))], run.role)
        DeepSeekRecipeChatEncodingAdapter(
            chat_encoding_spec="dsv41", tokenizer=tokenizer, reasoning_parser="deepseek-v41",
            tool_call_parser="deepseekv41", chat_hooks=None, default_chat_template_kwargs=None,
        )  # fmt: skip
    except AdapterRefused as refused:
        return {"refused": str(refused), "status": refused.code}
    (report,) = read_reports(scratch, "boot")
    state = report.adapters["encoding_check"]
    return {"state": state.state.value, "reason": state.reason}


print(json.dumps({"prompts": prompts(), "check": check()}))
