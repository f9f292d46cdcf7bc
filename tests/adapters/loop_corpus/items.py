# ruff: noqa: E501 - one answer a line reads better than any way of breaking them
"""The corpus: each item is a prompt, an output, and whether the output is a loop that should be stopped.

Positives go on for as long as a loop would until the token cap; what matters is whether and when they are stopped.
Negatives are whole answers. Made from templates with a fixed seed, so that every copy of the project has the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import texts

LOOP_CHARACTERS = 90_000
"""About 20,000 tokens: two thirds of the default cap."""


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    prompt: str
    output: str
    loops: bool
    loop_starts_at: int = 0
    """Characters of sense before the loop."""


def _long(piece: str | Callable[[int], str], lead: str = "", characters: int = LOOP_CHARACTERS) -> str:
    parts, size, i = [lead], len(lead), 0
    while size < characters:
        part = piece(i) if callable(piece) else piece
        parts.append(part)
        size += len(part)
        i += 1
    return "".join(parts)


def _mixed(rng: random.Random, n_sentences: int) -> str:
    """Text that says something new all the time."""
    made = []
    for _ in range(n_sentences):
        a, b, c = rng.sample(texts.NOUNS, 3)
        who, other = rng.sample(texts.NAMES, 2)
        made.append(
            rng.choice(
                [
                    f"{who} left the {a} beside the {b} and went to look for the {c}.",
                    f"Without a {a}, {who} told {other}, the {b} is worth as little as a broken {c}.",
                    f"It took {rng.randint(2, 90)} minutes until {other} found the {b} under the {a} of {who}'s {c}.",
                    f"Nobody in the {a} knew that {who} had sold the {b}; {other} alone kept a {c} of it.",
                ]
            )
        )
    return " ".join(made) + "\n"


def positives() -> Iterator[Item]:
    rng = random.Random(41)
    lead = _mixed(rng, 25)
    ask = "Explain how the machine works and what to do when it fails."

    def item(name: str, output: str, prompt: str = ask, starts: int = 0) -> Item:
        return Item(name, prompt, output, True, starts)

    for i, text in enumerate(texts.PARAGRAPHS):
        yield item(f"a paragraph again and again, {i}", _long(text + "\n\n"))
        yield item(f"a paragraph again and again after sense, {i}", _long(text + " ", lead), starts=len(lead))
    for n in (2, 3, 4, 6):
        unit = "\n\n".join(texts.PARAGRAPHS[:n]) + "\n\n"
        yield item(f"{n} paragraphs in turn", _long(unit, lead), starts=len(lead))
    whole = _mixed(random.Random(7), 90)
    yield item("a whole page of new sentences, again and again", _long(whole))
    whole = _mixed(random.Random(8), 200)
    yield item("three pages of new sentences, again and again", _long(whole))
    for i, thought in enumerate(texts.THOUGHTS):
        yield item(f"a thought that comes back, {i}", _long(thought + " ", lead), starts=len(lead))

        def counted(k: int, thought: str = thought) -> str:
            return f"Attempt {k + 2}: {thought}\n"

        yield item(f"a thought with a number before it, {i}", _long(counted, lead), starts=len(lead))

        def edited(k: int, thought: str = thought) -> str:
            words = thought.split(" ")
            at = (k * 7) % len(words)
            words[at] = texts.NOUNS[k % len(texts.NOUNS)]
            return " ".join(words) + "\n"

        yield item(f"a thought with one word changed each time, {i}", _long(edited, lead), starts=len(lead))
    for i, line in enumerate(texts.SHORT_LINES):
        yield item(f"one line, {i}", _long(line + "\n"))
        yield item(f"one sentence in a row, {i}", _long(line + " ", lead), starts=len(lead))

    def step(k: int) -> str:
        return f"Step {k + 1}: Verify that the output of the previous step is correct and continue with the next one.\n"

    yield item("steps with a counter", _long(step))
    yield item("steps with a counter after sense", _long(step, lead), starts=len(lead))

    def shuffled(k: int) -> str:
        order = random.Random(k).sample(texts.SENTENCES, len(texts.SENTENCES))
        return " ".join(order) + "\n"

    yield item("the same sentences in another order", _long(shuffled))
    yield item("the same sentences in another order after sense", _long(shuffled, lead), starts=len(lead))

    def rotated(k: int) -> str:
        n = k % len(texts.SENTENCES)
        return " ".join(texts.SENTENCES[n:] + texts.SENTENCES[:n]) + "\n"

    yield item("the same sentences, each round starting later", _long(rotated))
    yield item("a function again and again", _long(texts.FUNCTION), "Write a parser for durations.")
    yield item("a method again and again", _long(texts.METHOD), "Write a bean with one property.")
    for name, piece in (
        ("a word", "the "), ("a sign", "!"), ("a sign and a blank", " ?"), ("empty lines", "\n- "), ("a digit", "0"),
        ("two words", "and then "), ("a bracket", ")"), ("a syllable", "la"), ("dots", " ..."), ("a tag", "<br>\n"),
    ):  # fmt: skip
        yield item(f"nothing but {name}", _long(piece, lead), starts=len(lead))
    call = '<｜DSML｜ calls><｜DSML｜ invoke name="write_file"><｜DSML｜ parameter name="content">'
    yield item("a paragraph inside a tool call", _long(texts.PARAGRAPHS[0] + "\n", call), "Save the story to a file.")
    yield item("a function inside a tool call", _long(texts.FUNCTION, call), "Save the parser to a file.")

    def question(k: int) -> str:
        return "Should I read the file first? I should read the file first. Let me read the file first.\n"

    yield item("deciding to read the file", _long(question), "Fix the failing test.")

    def plan(k: int) -> str:
        a, b = texts.NOUNS[k % 5], texts.NOUNS[(k // 5) % 5]
        return (
            f"Now I will look at the {a} and compare it with the {b}, then decide which of the two has to change, and "
            "after that I will write down the result and go on with the rest of the plan as agreed.\n"
        )

    yield item("a plan about five things in turn", _long(plan))
    yield item("a Chinese sentence", _long("首先我们需要检查配置文件是否正确，然后重新启动服务并观察日志输出。"), "为什么服务会失败？")


def negatives() -> Iterator[Item]:
    rng = random.Random(4242)

    def item(name: str, prompt: str, output: str) -> Item:
        return Item(name, prompt, output, False)

    # --- asked for, in so many words
    for n in (20, 50, 100, 200):
        yield item(f"one line {n} times", f'Write "{texts.SHORT_LINES[0]}" {n} times.', (texts.SHORT_LINES[0] + "\n") * n)
    yield item("fifty copies of a function",
               "For a benchmark I need a file with fifty copies of one small function that parses a duration.",
               texts.FUNCTION * 50)  # fmt: skip
    yield item("30 copies of a method", "Print the setter 30 times, unchanged.", texts.METHOD * 30)
    yield item("a paragraph twelve times", f"Repeat this twelve times: {texts.PARAGRAPHS[0]}", texts.PARAGRAPHS[0] * 12)
    yield item("a hundred apologies", "Say sorry a hundred times.", "I am sorry. " * 100)
    yield item("fünfzigmal", "Schreibe den Satz fünfzig Mal.", "Ich soll nicht schwätzen.\n" * 50)
    yield item("cent fois", "Écris cette phrase cent fois.", "Je ne bavarde pas en classe.\n" * 100)
    yield item("一百遍", "请把这句话写100遍。", "我不会迟到。\n" * 100)
    yield item("filler", "Give me about 3000 words of filler text, any sentence repeated is fine.",
               "The quick test sentence fills the page. " * 400)  # fmt: skip
    yield item("a long page of one paragraph", "Repeat the paragraph over and over to fill about 5 pages.",
               (texts.PARAGRAPHS[1] + "\n\n") * 25)  # fmt: skip

    # --- numbers and signs
    for n in (8, 16, 32, 48):
        rows = ",\n".join("[" + ", ".join(["0"] * n) + "]" for _ in range(n))
        yield item(f"a zero matrix of {n}", "Initialise the weight matrix with zeros.", f"weights = [{rows}]\n")
    for n in (8, 16, 32):
        rows = "\n".join(" ".join("1" if i == j else "0" for i in range(n)) for j in range(n))
        yield item(f"an identity matrix of {n}", f"Print the {n}x{n} identity matrix.", rows)
    yield item("a table of zeros", "Show the empty schedule.", "\n".join(f"| {h:02d}:00 | 0 | 0 | 0 | 0 | 0 |" for h in range(24)))
    yield item("rulers", "Draw a ruler between sections.", "".join(f"Section {i}\n{'=' * 80}\n{'-' * 80}\n" for i in range(40)))
    yield item("one long ruler", "Draw a long line.", "-" * 1500)
    yield item("a progress bar", "Show the bar at each percent.",
               "\n".join(f"[{'#' * (k // 2)}{'.' * (50 - k // 2)}] {k}%" for k in range(101)))  # fmt: skip
    yield item("a hex dump of zeros", "Dump the first 4 KiB of the image.",
               "\n".join(f"{a:08x}  {'00 ' * 16} |{'.' * 16}|" for a in range(0, 4096, 16)))  # fmt: skip
    yield item("a hex dump", "Dump the file.",
               "\n".join(f"{a:08x}  {' '.join(f'{rng.randrange(256):02x}' for _ in range(16))}" for a in range(0, 4096, 16)))  # fmt: skip
    yield item("nop sled", "Emit a sled of nops.", "nop\n" * 256 + "ret\n")
    yield item("closing braces", "Close every block.", "".join("    " * k + "}\n" for k in range(40, 0, -1)) + "}\n" * 60)
    yield item("multiplication table", "Print the tables from 1 to 20.",
               "\n".join(f"{a} x {b} = {a * b}" for a in range(1, 21) for b in range(1, 21)))  # fmt: skip
    yield item("counting", "Count to 1000.", ", ".join(map(str, range(1, 1001))))
    yield item("counting by lines", "Count to 1500, one a line.", "\n".join(map(str, range(1, 1501))))
    yield item("bottles", "Sing the bottle song from 99.",
               "".join(f"{k} bottles on the wall, {k} bottles; take one down and pass it on, {k - 1} bottles on the wall.\n"
                       for k in range(99, 0, -1)))  # fmt: skip
    yield item("squares", "List the squares to 400.", "\n".join(f"The square of {k} is {k * k}." for k in range(1, 401)))
    yield item("binary numbers", "All 9-bit numbers.", "\n".join(f"{k:09b}" for k in range(512)))
    yield item("truth table", "Truth table of a majority of seven.",
               "\n".join(" | ".join(f"{k:07b}") + f" | {int(f'{k:07b}'.count('1') > 3)}" for k in range(128)))  # fmt: skip
    yield item("life", "Show 30 generations of a blinker on a 20 by 20 board.",
               "".join(f"Generation {g}\n" + "\n".join("".join("#" if (x, y) in ((9, 10), (10, 10), (11, 10)) and g % 2 or
                       (x, y) in ((10, 9), (10, 10), (10, 11)) and not g % 2 else "." for x in range(20)) for y in range(20))
                       + "\n" for g in range(30)))  # fmt: skip
    yield item("towers", "Solve the towers of Hanoi with 8 disks.", "\n".join(_hanoi(8, "A", "C", "B")))
    yield item("towers of nine", "Solve the towers of Hanoi with 9 disks, every move.", "\n".join(_hanoi(9, "A", "C", "B")))
    yield item("collatz", "Follow the sequence from 27.", _collatz(27))
    yield item("primes", "The primes below 3000.", ", ".join(str(n) for n in range(2, 3000) if all(n % d for d in range(2, int(n**0.5) + 1))))
    yield item("pi digits as asked", "Write 1/7 to 1000 digits.", "0." + "142857" * 166)
    yield item("base64 of nothing", "Encode 3 KB of zeros.", "A" * 4000)
    yield item("chess boards", "Show the board after each of ten moves.",
               "".join(f"Move {m}\n" + "\n".join("".join(rng.choice(".....pPrR") for _ in range(8)) for _ in range(8)) + "\n" for m in range(10)))  # fmt: skip
    yield item("dna", "A random sequence.", "".join(rng.choice("ACGT") for _ in range(3000)))
    yield item("a tandem repeat", "Show the locus with 120 CAG repeats.", "ATG" + "CAG" * 120 + "TAA")
    yield item("drums", "Four minutes of a simple beat as tab.", "".join(f"HH|x-x-x-x-x-x-x-x-|\nSD|----o-------o---|\nBD|o-------o-------|  bar {b}\n" for b in range(1, 97)))
    yield item("ascii box", "A box of 60 by 25.", "+" + "-" * 58 + "+\n" + ("|" + " " * 58 + "|\n") * 23 + "+" + "-" * 58 + "+\n")

    # --- records and markup
    def rows(n: int, make: Callable[[int, random.Random], str]) -> str:
        return "".join(make(k, rng) for k in range(n))

    yield item("inserts with counters", "Generate 200 users for the seed script.",
               rows(200, lambda k, r: f"INSERT INTO users (id, name, email) VALUES ({k}, 'user{k}', 'user{k}@example.com');\n"))  # fmt: skip
    yield item("inserts nobody counted", "Generate a seed script with plenty of users.",
               rows(120, lambda k, r: f"INSERT INTO users (id, name, email) VALUES ({k}, 'user{k}', 'user{k}@example.com');\n"))  # fmt: skip
    yield item("inserts with names", "Generate a seed script.",
               rows(250, lambda k, r: f"INSERT INTO people (id, name, town) VALUES ({k}, '{r.choice(texts.NAMES)}', '{r.choice(texts.NOUNS)}');\n"))  # fmt: skip
    yield item("json records", "An example with many records.",
               "[" + rows(150, lambda k, r: f'{{"id": {k}, "name": "{r.choice(texts.NAMES)}", "active": true, "tags": []}},\n') + "]")  # fmt: skip
    yield item("json records, all alike", "100 records of the default configuration.",
               "[" + '{"enabled": false, "retries": 3, "timeout_s": 30, "labels": {}, "parent": null},\n' * 100 + "]")  # fmt: skip
    yield item("csv of measurements", "Simulate a day of readings.",
               rows(288, lambda k, r: f"2026-03-01T{k // 12:02d}:{k % 12 * 5:02d}:00Z,{r.gauss(20, 2):.2f},{r.gauss(50, 9):.1f},ok\n"))  # fmt: skip
    yield item("csv of a sensor that is off", "Show the readings of the broken sensor over the day.",
               rows(288, lambda k, r: f"2026-03-01T{k // 12:02d}:{k % 12 * 5:02d}:00Z,0.00,0.0,offline\n"))  # fmt: skip
    yield item("html list", "A list of 150 items.", "<ul>\n" + rows(150, lambda k, r: f'  <li class="item">Item {k}</li>\n') + "</ul>")
    yield item("html table, empty cells", "An empty calendar for the year.",
               "<table>\n" + rows(53, lambda k, r: "  <tr>" + "<td></td>" * 7 + "</tr>\n") + "</table>")  # fmt: skip
    yield item("svg grid", "A dot grid as SVG, 24 by 24.",
               rows(576, lambda k, r: f'<circle cx="{k % 24 * 10}" cy="{k // 24 * 10}" r="1" fill="black"/>\n'))  # fmt: skip
    yield item("css utilities", "Margin utilities in steps of 1 px to 120.",
               rows(120, lambda k, r: f".m-{k} {{\n  margin: {k}px;\n}}\n\n.p-{k} {{\n  padding: {k}px;\n}}\n\n"))  # fmt: skip
    yield item("yaml services", "A compose file with 25 workers.",
               rows(25, lambda k, r: f"  worker{k}:\n    image: registry.example/worker:1.4\n    restart: always\n    environment:\n      INDEX: {k}\n      QUEUE: jobs\n    volumes:\n      - data:/data\n"))  # fmt: skip
    yield item("kubernetes manifests", "One deployment for each of the services.",
               rows(18, lambda k, r: f"---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {texts.NOUNS[k]}\nspec:\n  replicas: 2\n  selector:\n    matchLabels:\n      app: {texts.NOUNS[k]}\n  template:\n    metadata:\n      labels:\n        app: {texts.NOUNS[k]}\n    spec:\n      containers:\n        - name: main\n          image: registry.example/{texts.NOUNS[k]}:1.0\n"))  # fmt: skip
    yield item("markdown table", "Compare the options.",
               rows(60, lambda k, r: f"| {r.choice(texts.NOUNS)} | {r.randint(1, 500)} | {r.choice(['yes', 'no'])} | {r.choice(texts.NAMES)} |\n"))  # fmt: skip
    yield item("markdown table, not measured", "Which of the cases were measured?",
               rows(80, lambda k, r: f"| case {k} | n/a | n/a | n/a | not run |\n"))  # fmt: skip
    yield item("checklist", "A checklist of 60 points to tick.", rows(60, lambda k, r: f"- [ ] Point {k}: done by ________ on ________\n"))
    yield item("log", "What does a healthy log look like?",
               rows(200, lambda k, r: f"2026-05-04 10:{k // 60:02d}:{k % 60:02d} INFO  heartbeat ok, peers=3, lag={r.randint(1, 30)}ms\n"))  # fmt: skip
    yield item("log with a retry storm", "Show the retries in the log.",
               rows(150, lambda k, r: f"10:00:{k % 60:02d} WARN connection refused, retrying in {2 ** min(k, 6)} s (attempt {k})\n"))  # fmt: skip
    yield item("environment file", "All the flags, off.", rows(90, lambda k, r: f"FEATURE_{texts.NOUNS[k % 40].upper()}_{k // 40}=false\n"))
    yield item("enum", "An enum with 128 levels.", rows(128, lambda k, r: f"    LEVEL_{k} = {k},\n"))
    yield item("register map", "The register map of the chip.", rows(96, lambda k, r: f"#define REG_{k:02X}  0x{0x4000 + 4 * k:04X}  /* reserved */\n"))
    yield item("dns zone", "A reverse zone for the /24.", rows(254, lambda k, r: f"{k + 1}\tIN\tPTR\thost-{k + 1}.lab.example.\n"))
    yield item("nginx upstreams", "An upstream with 64 backends.", rows(64, lambda k, r: f"    server 10.0.{k // 16}.{k % 16}:8080 max_fails=3 fail_timeout=10s;\n"))
    yield item("xml", "An export with a few fields.", rows(70, lambda k, r: f"  <record>\n    <id>{k}</id>\n    <name>{r.choice(texts.NAMES)}</name>\n    <note/>\n    <status>open</status>\n  </record>\n"))
    yield item("latex table", "A table of results.", rows(60, lambda k, r: f"{r.choice(texts.NOUNS)} & {r.random():.3f} & {r.random():.3f} & {r.random():.3f} \\\\\n\\hline\n"))

    # --- code
    yield item("getters and setters", "A class with 25 properties.",
               rows(25, lambda k, r: f"    public String get{texts.NOUNS[k].title()}() {{\n        return this.{texts.NOUNS[k]};\n    }}\n\n    public void set{texts.NOUNS[k].title()}(String value) {{\n        this.{texts.NOUNS[k]} = value;\n    }}\n\n"))  # fmt: skip
    yield item("test cases with counters", "Write tests for squares, 80 cases.",
               rows(80, lambda k, r: f"def test_square_{k}():\n    assert square({k}) == {k * k}\n\n\n"))  # fmt: skip
    yield item("test cases nobody counted", "Write thorough tests for squares.",
               rows(90, lambda k, r: f"def test_square_{k}():\n    assert square({k}) == {k * k}\n\n\n"))  # fmt: skip
    yield item("parametrised cases", "Cases for the parser.", rows(100, lambda k, r: f'        ("{k}h{k % 60}m", {k * 3600 + k % 60 * 60}),\n'))
    yield item("an unrolled loop", "Unroll it 64 times.", rows(64, lambda k, r: f"    acc += a[i + {k}] * b[i + {k}];\n"))
    yield item("a switch", "Map every code to its name.", rows(120, lambda k, r: f'        case {k}:\n            return "CODE_{k}";\n'))
    yield item("assembly", "Save all vector registers.", rows(32, lambda k, r: f"    stp q{2 * k % 32}, q{(2 * k + 1) % 32}, [sp, #{32 * k}]\n"))
    yield item("license headers", "Add the header to each of the files.",
               rows(20, lambda k, r: f"// {texts.NOUNS[k]}.c\n// Copyright the authors. Licensed under the Apache License, Version 2.0.\n// You may not use this file except in compliance with the License.\n// See the file LICENSE.\n\n#include \"{texts.NOUNS[k]}.h\"\n\n"))  # fmt: skip
    yield item("migrations", "Ten migrations that add a column each.",
               rows(30, lambda k, r: f"ALTER TABLE orders ADD COLUMN {texts.NOUNS[k]} TEXT NOT NULL DEFAULT '';\nCREATE INDEX orders_{texts.NOUNS[k]} ON orders ({texts.NOUNS[k]});\n"))  # fmt: skip
    yield item("routes", "Routes for all the resources.",
               rows(40, lambda k, r: "".join(f"router.{m}('/{texts.NOUNS[k]}s', {texts.NOUNS[k]}.{m});\n" for m in ("get", "post", "put", "delete"))))  # fmt: skip
    yield item("a file rewritten three times", "Improve the function in three steps, whole each time.",
               "".join(f"Version {v}:\n```python\n{texts.FUNCTION.replace('total', f'sum{v}')}```\n" for v in range(3)))  # fmt: skip
    yield item("a long file twice", "Show the file, then the file with the fix.",
               (lambda text: text + "\nWith the fix:\n" + text.replace("kettle", "pot", 1))(_mixed(random.Random(1), 120)))  # fmt: skip
    yield item("a long file four times", "Show the text after each of the edits.",
               "".join(_mixed(random.Random(2), 60).replace(texts.NOUNS[v], texts.NOUNS[-v - 1]) for v in range(4)))  # fmt: skip
    yield item("a diff", "The diff that renames the field.",
               rows(60, lambda k, r: f"@@ -{k * 9},3 +{k * 9},3 @@\n     def {texts.NOUNS[k % 40]}(self):\n-        return self._old\n+        return self._new\n"))  # fmt: skip

    # --- prose that comes back
    for n in (4, 6, 8):
        song = "".join(_mixed(random.Random(100 + v), 4) + texts.CHORUS for v in range(n))
        yield item(f"a song with {n} refrains", "Write a long song with a refrain.", song)
    yield item("a refrain three times each", "A drinking song.", "".join(_mixed(random.Random(v), 3) + texts.CHORUS * 3 for v in range(5)))
    yield item("a litany", "A litany of gratitude.", rows(40, lambda k, r: f"For the {texts.NOUNS[k]} that was given to us, we give thanks.\n"))
    yield item("a litany with responses", "A litany with the response after each line.",
               rows(40, lambda k, r: f"For the {texts.NOUNS[k]} of our mothers: hear us, and be kind to us today.\n"))  # fmt: skip
    yield item("a cumulative rhyme", "A rhyme that grows by one line each verse.",
               "".join("\n".join(f"This is the {texts.NOUNS[j]} that stood by the {texts.NOUNS[j - 1]}," for j in range(v, 0, -1)) + "\n\n" for v in range(1, 16)))  # fmt: skip
    yield item("a contract", "A contract with many similar clauses.",
               rows(25, lambda k, r: f"{k + 1}. The {texts.NOUNS[k]} shall be delivered by {r.choice(texts.NAMES)} no later than {r.randint(1, 28)} May; a delay of more than {r.randint(2, 9)} days entitles the buyer to {r.choice(texts.NOUNS)}.\n"))  # fmt: skip
    yield item("form letters", "Letters to all 15 of them.",
               rows(15, lambda k, r: f"Dear {texts.NAMES[k]},\nthank you for your order of a {texts.NOUNS[k]}. It will be sent on {r.randint(1, 28)} June. Please keep this letter with your papers.\nYours, the workshop\n\n"))  # fmt: skip
    yield item("minutes", "Minutes of the weekly meetings, one paragraph each.", "".join(f"Week {w}. " + _mixed(random.Random(w), 5) for w in range(1, 30)))
    yield item("quiz", "A quiz of 40 questions.", rows(40, lambda k, r: f"Question {k + 1}: What is a {texts.NOUNS[k]} used for?\nA) {r.choice(texts.NOUNS)}\nB) {r.choice(texts.NOUNS)}\nC) {r.choice(texts.NOUNS)}\nD) none of the above\n\n"))
    yield item("dialogue", "A play with short lines.", rows(150, lambda k, r: f"{'AINO' if k % 2 else 'BRAM'}: {r.choice(['Yes.', 'No.', 'Why?', 'Go on.', 'I see.'])}\n"))
    yield item("dictionary", "A glossary.", rows(40, lambda k, r: f"**{texts.NOUNS[k]}** (noun): {_mixed(r, 1)}"))
    yield item("a story", "Tell a long story.", _mixed(random.Random(11), 300))
    yield item("another story", "Tell a longer story.", _mixed(random.Random(12), 600))
    yield item("a sermon of paragraphs", "A long speech.", "\n\n".join(texts.PARAGRAPHS * 2))
    yield item("instructions for 20 parts", "Assembly instructions for each part.",
               rows(20, lambda k, r: f"Step {k + 1}. Take the {texts.NOUNS[k]} and hold it against the {texts.NOUNS[k + 1]}. Turn it until it clicks, then tighten the screw by {r.randint(1, 4)} turns.\n"))  # fmt: skip
    yield item("instructions with little change", "Assembly instructions for the 24 identical legs.",
               rows(24, lambda k, r: f"Leg {k + 1}: insert the leg into its hole, turn it clockwise until it stops, and tighten the screw with the small key.\n"))  # fmt: skip
    yield item("translations", "The sentence in ten variants.", rows(30, lambda k, r: f"{k + 1}. {r.choice(texts.NAMES)} would like the {r.choice(texts.NOUNS)}, please.\n"))
    yield item("vocabulary drill", "Drill the phrase with all the nouns.", rows(40, lambda k, r: f"Where is the {texts.NOUNS[k]}? The {texts.NOUNS[k]} is here.\n"))
    yield item("meditation", "A breathing exercise for ten minutes.", "Breathe in. Hold. Breathe out. Rest.\n" * 60)
    yield item("training plan", "A plan for 12 weeks.", "".join(f"Week {w}\n" + "".join(f"  {d}: run {3 + w // 3} km, stretch, sleep eight hours\n" for d in ("Monday", "Wednesday", "Friday")) + "  other days: rest\n" for w in range(1, 13)))
    yield item("a thought that comes back three times", "Solve it.", _mixed(random.Random(5), 10) + (texts.THOUGHTS[0] + " ") * 3 + _mixed(random.Random(6), 30))
    yield item("checking each of 30 candidates", "Which of the numbers to 30 divide 5040?",
               rows(30, lambda k, r: f"{k + 1}: 5040 divided by {k + 1} is {5040 / (k + 1):.2f}, so it {'divides' if 5040 % (k + 1) == 0 else 'does not divide'}.\n"))  # fmt: skip
    yield item("a recipe for each day", "Meals for 14 days.", rows(14, lambda k, r: f"Day {k + 1}: {_mixed(r, 2)}Shopping: {', '.join(r.sample(texts.NOUNS, 6))}.\n"))
    yield item("chinese list", "列出四十个例子。", rows(40, lambda k, r: f"第{k + 1}个例子：把{r.choice('山水火木金土日月')}和{r.choice('红黄蓝白黑青紫绿')}放在一起。\n"))
    yield item("japanese drill", "練習文を30個。", rows(30, lambda k, r: f"{k + 1}番目の{r.choice('山川花鳥風月雪雨')}はとても{r.choice('美大小長短高低新')}しいです。\n"))
    yield item("calendar", "A calendar for the year.", "".join(f"Month {m}\nMo Tu We Th Fr Sa Su\n" + " ".join(f"{d:2d}" for d in range(1, 31)) + "\n" for m in range(1, 13)))
    yield item("timetable", "Buses every ten minutes.", rows(108, lambda k, r: f"{6 + k // 6:02d}:{k % 6 * 10:02d}  Harbour - Station - Hospital - School\n"))
    yield item("seating", "Seats of the hall.", rows(25, lambda k, r: f"Row {k + 1}: " + " ".join(f"{chr(65 + c)}{k + 1}" for c in range(20)) + "\n"))
    yield item("bingo", "Ten bingo cards.", rows(10, lambda k, r: f"Card {k + 1}\n" + "\n".join(" ".join(f"{r.randint(1, 75):2d}" for _ in range(5)) for _ in range(5)) + "\n"))
    yield item("poem with anaphora", "A poem in which each line begins alike.", rows(40, lambda k, r: f"I remember the {texts.NOUNS[k]} and how {r.choice(texts.NAMES)} carried it.\n"))
    yield item("knitting", "The pattern, 120 rows.", rows(60, lambda k, r: f"Row {2 * k + 1}: knit 2, purl 2, repeat to the end.\nRow {2 * k + 2}: purl 2, knit 2, repeat to the end.\n"))
    yield item("git log", "An example history.", rows(80, lambda k, r: f"{r.randrange(1 << 28):07x} Merge branch '{r.choice(texts.NOUNS)}' into main\n"))
    yield item("traceback of a recursion", "What does the error look like?", "Traceback (most recent call last):\n" + '  File "walk.py", line 12, in walk\n    return walk(node.next)\n           ^^^^^^^^^^^^^^^\n' * 60 + "RecursionError: maximum recursion depth exceeded\n")
    yield item("spinner frames", "Forty frames of a spinner.", rows(40, lambda k, r: f"\\r{'|/-'[k % 3]} working, please wait...\n"))
    yield item("sudoku steps", "Show the grid after each of 12 steps.", rows(12, lambda k, r: f"Step {k + 1}\n" + "\n".join(" ".join(r.choice("123456789.") for _ in range(9)) for _ in range(9)) + "\n"))
    yield item("assertions", "Assert every field is set.", rows(40, lambda k, r: f"assert record.{texts.NOUNS[k]} is not None\n"))
    yield item("imports", "Import them all.", rows(40, lambda k, r: f"from package.{texts.NOUNS[k]} import {texts.NOUNS[k].title()}\n"))
    yield item("waiting", "Simulate the polling output.", "still waiting for the job to finish...\n" * 90 + "done\n")


def _hanoi(n: int, a: str, c: str, b: str) -> Iterator[str]:
    if n:
        yield from _hanoi(n - 1, a, b, c)
        yield f"Move disk {n} from peg {a} to peg {c}."
        yield from _hanoi(n - 1, b, c, a)


def _collatz(n: int) -> str:
    steps = []
    while n != 1:
        following = n // 2 if n % 2 == 0 else 3 * n + 1
        steps.append(f"{n} is {'even, so half of it' if n % 2 == 0 else 'odd, so three times it plus one'} is {following}.")
        n = following
    return "\n".join(steps)
