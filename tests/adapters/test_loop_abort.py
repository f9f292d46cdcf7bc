"""loop_abort: what it stops and what it lets pass, on the corpus; what it says; that every rank agrees."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

import pytest
from dsv41_adapters.loop_abort.detector import BLOCK, Kind, LoopDetector, Repetition
from dsv41_adapters.loop_abort.evidence import Asked, ordinariness, tokens_needed
from dsv41_adapters.loop_abort.spec import LoopAbortSettings
from dsv41_adapters.loop_abort.watch import Loop, RequestWatch, in_tool_call
from hypothesis import given, settings
from hypothesis import strategies as st

from .loop_corpus import Item, Vocabulary, negatives, positives, texts

BASE = LoopAbortSettings().base_tokens
POSITIVES, NEGATIVES = list(positives()), list(negatives())


def first_loop(output: str, prompt: str = "", steps: Iterator[int] | None = None) -> Loop | None:
    """Generate the output token by token, or by steps of the sizes given, as the engine would."""
    words = Vocabulary()
    whole, asked = words.encode(output), words.encode(prompt)
    watch, ids = RequestWatch(BASE), array("q")
    while len(ids) < len(whole):
        ids.extend(whole[len(ids) : len(ids) + (next(steps) if steps else 1)])
        if len(ids) >= watch.next_length and (loop := watch.check(ids, asked, words.decode)):
            return loop
    return None


def by_name(items: list[Item]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("item", items, ids=[item.name for item in items])


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    assert len(POSITIVES) >= 60 and len(NEGATIVES) >= 120
    assert len({item.name for item in POSITIVES + NEGATIVES}) == len(POSITIVES) + len(NEGATIVES)
    assert len({item.output for item in POSITIVES + NEGATIVES}) == len(POSITIVES) + len(NEGATIVES)


@by_name(POSITIVES)
def test_a_loop_is_stopped_and_its_span_lies_in_it(item: Item) -> None:
    loop = first_loop(item.output, item.prompt)
    assert loop is not None
    start = len(Vocabulary().encode(item.output[: item.loop_starts_at]))
    assert start - 2 * BLOCK <= loop.found.start < loop.at


@by_name(NEGATIVES)
def test_a_good_answer_is_left_alone(item: Item) -> None:
    assert first_loop(item.output, item.prompt) is None


def test_what_it_says_names_kind_start_and_period() -> None:
    loop = first_loop(texts.PARAGRAPHS[0] * 40)
    assert loop is not None and loop.found.kind is Kind.EXACT and not loop.in_tool_call
    assert str(loop).startswith(f"exact repetition from output token {loop.found.start}, ")
    assert str(loop).endswith(f"copies of about {loop.found.period_tokens} tokens")


def test_a_loop_in_a_tool_calls_arguments_says_that_they_are_not_whole() -> None:
    call = '<｜DSML｜ calls><｜DSML｜ invoke name="write"><｜DSML｜ parameter name="text">'
    loop = first_loop(call + texts.PARAGRAPHS[0] * 40)
    assert loop is not None and loop.in_tool_call
    assert str(loop).endswith(", inside a tool call, whose arguments are not whole")
    closed = call + "x</｜DSML｜ parameter></｜DSML｜ invoke></｜DSML｜ calls>"
    loop = first_loop(closed + texts.PARAGRAPHS[0] * 40)
    assert loop is not None and not loop.in_tool_call


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("", False),
        ("<｜DSML｜tool_calls><｜DSML｜invoke name=", True),
        ("<｜DSML｜ calls>x</｜DSML｜ calls> and then", False),
        ("<｜DSML｜ calls>x</｜DSML｜ calls> <｜DSML｜ calls>", True),
        ("</｜DSML｜ calls>", False),
        ("<|DSML|tool_calls>", True),
    ],
)
def test_where_a_tool_call_is_open(text: str, inside: bool) -> None:
    assert in_tool_call(text) is inside


@given(st.lists(st.integers(1, BLOCK), min_size=1, max_size=40), st.sampled_from(POSITIVES[:40]))
@settings(max_examples=25, deadline=None)
def test_steps_of_any_size_find_the_same_loop_at_the_same_block(sizes: list[int], item: Item) -> None:
    """Speculative decoding accepts several tokens a step."""

    def endless() -> Iterator[int]:
        while True:
            yield from sizes

    one, many = first_loop(item.output[:30_000], item.prompt), first_loop(item.output[:30_000], item.prompt, endless())
    assert (one is None) == (many is None)
    if one and many:
        assert one.found == many.found and many.at - one.at < 2 * BLOCK


@given(st.integers(1, 3000), st.integers(0, 2**32), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_a_period_of_any_length_is_recognised(period: int, seed: int, lead: int) -> None:
    rng = random.Random(seed)
    unit = [rng.randrange(50_000) for _ in range(period)]
    ids = [rng.randrange(50_000) for _ in range(lead)] + unit * (1 + max(7 * period, 2048) // period)
    detector, found = LoopDetector(), ()
    for n in range(BLOCK, len(ids) + 1, BLOCK):
        found = detector.feed(ids[:n]) or found
    exact = [r for r in found if r.kind is Kind.EXACT]
    assert exact and exact[0].period_tokens == period
    assert lead - 2 * BLOCK <= exact[0].start <= lead + period + 2 * BLOCK


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_tokens_that_say_something_new_are_never_judged(seed: int) -> None:
    rng = random.Random(seed)
    ids = [rng.randrange(1000) for _ in range(6000)]
    detector = LoopDetector()
    assert not any(detector.feed(ids[:n]) for n in range(BLOCK, len(ids) + 1, BLOCK))


def test_a_long_output_keeps_a_bounded_memory_of_itself() -> None:
    rng = random.Random(3)
    ids = array("q", (rng.randrange(100_000) for _ in range(120_000)))
    detector = LoopDetector()
    detector.feed(ids)
    assert len(detector._recent) + len(detector._older) <= 2 * 16_384 + BLOCK


def test_an_output_that_became_shorter_is_read_anew() -> None:
    words = Vocabulary()
    ids = array("q", words.encode(texts.PARAGRAPHS[0] * 40))
    watch = RequestWatch(BASE)
    assert watch.check(ids[:600], [], words.decode) is None
    assert watch.check(ids[:64], [], words.decode) is None and watch.next_length == 128
    assert watch.check(ids, [], words.decode) is not None


def test_without_a_tokenizer_everything_counts_as_most_ordinary() -> None:
    ids = array("q", Vocabulary().encode(texts.PARAGRAPHS[0] * 400))
    watch = RequestWatch(BASE)
    assert watch.check(ids[: 10 * BASE], [], None) is None
    assert watch.check(ids, [], None) is not None


def test_ordinary_things_need_more() -> None:
    found = Repetition(0, 10_000, 100, Kind.EXACT)
    needs = [
        tokens_needed(found, unit, "", base_tokens=BASE)
        for unit in (texts.PARAGRAPHS[0], texts.FUNCTION, "| n/a | n/a | n/a |\n", "0, 0, 0,\n")
    ]
    assert needs[0] == BASE and needs == sorted(needs) and needs[3] >= 16 * BASE
    near = Repetition(0, 10_000, 100, Kind.NEAR)
    assert tokens_needed(near, texts.PARAGRAPHS[0], "", base_tokens=BASE) == 3 * BASE
    assert ordinariness("") == ordinariness("0 0 0") == 24 and ordinariness(texts.PARAGRAPHS[4]) == 1


@pytest.mark.parametrize(
    ("prompt", "n_copies", "repeat"),
    [
        ("Explain the pump.", 0, False),
        ("Write it 50 times.", 50, False),
        ("Write it 1,000 times", 1000, False),
        ("fifty copies of a function", 50, True),
        ("a 64x32 matrix", 2048, False),
        ("count to 700", 700, False),
        ("写100遍", 100, False),
        ("Schreibe es 80 mal", 80, False),
        ("200 short test cases", 200, False),
        ("say it over and over", 0, True),
        ("It is 2026 and 9 is a number", 0, False),
        ("9999999 rows", 5000, False),
        ("Summarise the 2024 results.", 0, False),
        ("Write 2024 lines", 2024, False),
        ("Write the 2000 lines", 2000, False),
        ("Why do I get HTTP 500 errors?", 0, False),
        ("Merge PR 4711 into all branches, and #4712 in tests.", 0, False),
        ("Print the error 50 times", 50, False),
        ("Give each page 40 lines", 40, False),
        ("<｜User｜>write 90 lines<｜Assistant｜>ok<｜User｜>Explain it.", 0, False),
    ],
)
def test_what_a_prompt_asks_for(prompt: str, n_copies: int, repeat: bool) -> None:
    assert Asked.by(prompt) == Asked(n_copies, repeat)


def test_what_the_prompt_gave_may_come_back_more_often() -> None:
    found = Repetition(0, 10_000, 100, Kind.EXACT)
    unit = texts.PARAGRAPHS[1]
    assert tokens_needed(found, unit, f"Improve this: {unit}", base_tokens=BASE) == 4 * BASE


def with_tools(request: str, result: str) -> str:
    """A prompt as an agent's is: what was asked for, a call, what the tool said."""
    return (
        f"<｜User｜>{request}<｜Assistant｜><think>I look.</think><｜DSML｜ calls>…</｜DSML｜ calls>"
        f"<｜User｜><tool_result>{result}</tool_result><｜Assistant｜><think>"
    )


def test_numbers_in_a_tools_result_are_not_asked_for() -> None:
    result = "collected 4000 items, 3999 tests passed, to 4000 lines; repeat with 5000 workers"
    assert Asked.by(with_tools("Fix the failing test.", result)) == Asked(0, False)
    assert Asked.by(f"the end of a result with 4000 lines</tool_result>{with_tools('', 'ok')}") == Asked(0, False)
    loop = first_loop((texts.THOUGHTS[0] + " ") * 300, with_tools("Fix the failing test.", result))
    assert loop is not None and loop.at < 3000


def test_what_was_asked_for_before_the_tools_counts_behind_them() -> None:
    prompt = with_tools("Write 90 copies of it into a file.", "ok")
    assert Asked.by(prompt) == Asked(90, True)
    assert first_loop((texts.THOUGHTS[0] + " ") * 90, prompt) is None
    assert Asked.by("<｜User｜>x<｜Assistant｜>60 lines<｜System｜>Now 70 lines.<｜Assistant｜>") == Asked(70, False)
