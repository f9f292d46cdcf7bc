"""In the engine's environment: what SGLang and transformers make of the demo checkpoint. Prints JSON.

demo_checkpoint.py CHECKPOINT
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

from deepseek_recipe import SpecialToken
from sglang.srt.layers.engram import EngramLayout, build_compressed_token_map
from sglang.srt.utils.hf_transformers.tokenizer import get_tokenizer

checkpoint = sys.argv[1]
with open(f"{checkpoint}/config.json") as file:
    config = SimpleNamespace(**json.load(file))
tokenizer = get_tokenizer(checkpoint, tokenizer_backend="huggingface")
token_map, n_compressed = build_compressed_token_map(tokenizer)
layout = EngramLayout.from_config(config)
text = "The quick brown fox, Größe, 火花 and  two  spaces\n"
special = [getattr(SpecialToken, name).default_str() for name in dir(SpecialToken) if name[0].isupper()]
print(
    json.dumps(
        {
            "map": token_map,
            "n_compressed": n_compressed,
            "n_tokens": len(tokenizer),
            "rows": [layout.column_bounds(i)[-1] for i in range(len(layout.layer_ids))],
            "text": text,
            "round_trip": tokenizer.decode(tokenizer.encode(text)),
            "n_ids": len(tokenizer.encode(text)),
            "special": {token: tokenizer.encode(token) for token in special},
        }
    )
)
