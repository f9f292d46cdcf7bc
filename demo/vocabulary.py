"""The demo checkpoint's tokenizer: byte-level BPE with V4.1's special tokens, made without any library.

768 tokens: the special tokens, the 256 bytes, and merges that spell a list of whole words; what is left is
filled with added tokens, because a random model may emit any id and the Engram token map is indexed by it.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

VOCAB_SIZE = 768  # 64·3·4: padded to 64, divisible by three ranks and by four

# Order is id. begin, end and the Engram pad are 0, 1 and 2, as in the published checkpoint.
SPECIAL_TOKENS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜System｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜deepseek_image｜>",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
)

WORDS = """
the and you that was for are with his they this have from one had word but not what all were when your can
said there use each which she how their will other about out many then them these some her would make like him
into time has look two more write see number way could people than first water been call who its now find long
down day did get come made may part over new sound take only little work know place year live back give most
very after thing our just name good sentence man think say great where help through much before line right too
mean old any same tell boy follow came want show also around form three small set put end does another well
large must big even such because turn here why ask went men read need land different home move try kind hand
picture again change off play spell air away animal house point page letter mother answer found study still
learn should world
""".split()  # noqa: SIM905 (a page of quotes would not read better)

_WHITE_SPACE = (
    " \t\n\x0b\x0c\r\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
)
_WHITE_SPACE += (
    "\u2028\u2029\u202f\u205f\u3000"  # Unicode's property, which str.strip() does not follow exactly
)


def byte_alphabet() -> list[str]:
    """The 256 printable characters that stand for bytes in byte-level BPE (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    stand_ins = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(stand_ins)) for b in range(256)]


@dataclass(frozen=True)
class Vocabulary:
    """Token strings by id, the merges that reach them, and which ids are whole words."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    word_ids: tuple[int, ...]
    n_fill: int

    def text_of(self, token_id: int) -> str:
        """What decoding this one id gives; U+FFFD where its bytes are not UTF-8 by themselves."""
        token = self.tokens[token_id]
        if token_id < len(SPECIAL_TOKENS) or token_id >= len(self.tokens) - self.n_fill:
            return token
        alphabet = {c: b for b, c in enumerate(byte_alphabet())}
        return bytes(alphabet[c] for c in token).decode(errors="replace")

    def compressed_map(self) -> list[int]:
        """Token id → compressed id, as the Engram hash uses it.

        Source: sglang 0.5.23, `sglang/srt/layers/engram.py: build_compressed_token_map`; held equal to it by
        tests/engine/test_demo_checkpoint.py.
        """
        ids: dict[str, int] = {}
        return [ids.setdefault(self._key(token_id), len(ids)) for token_id in range(len(self.tokens))]

    def _key(self, token_id: int) -> str:
        text = self.text_of(token_id)
        if "\ufffd" in text:
            return self.tokens[token_id]
        return normalise(text) or text

    def tokenizer_json(self) -> dict[str, object]:
        n_model = len(self.tokens) - self.n_fill
        added = [*range(len(SPECIAL_TOKENS)), *range(n_model, len(self.tokens))]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": token_id,
                    "content": self.tokens[token_id],
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": token_id < len(SPECIAL_TOKENS),
                }
                for token_id in added
            ],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: i for i, token in enumerate(self.tokens[:n_model])},
                "merges": [list(pair) for pair in self.merges],
            },
        }

    def tokenizer_config(self) -> dict[str, object]:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL_TOKENS[0],
            "eos_token": SPECIAL_TOKENS[1],
            "pad_token": SPECIAL_TOKENS[2],
            "model_max_length": 4096,
            "clean_up_tokenization_spaces": False,
        }


def normalise(text: str) -> str:
    """NFKC, NFD, no accents, lower case, runs of blanks as one space, stripped unless it is one space."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c for c in text if unicodedata.category(c) != "Mn").lower()
    squeezed = []
    for c in text:
        blank = c in " \t\r\n"
        if not (blank and squeezed and squeezed[-1] == " "):
            squeezed.append(" " if blank else c)
    text = "".join(squeezed)
    return text if text == " " else text.strip(_WHITE_SPACE)


def make_vocabulary() -> Vocabulary:
    tokens = [*SPECIAL_TOKENS, *byte_alphabet()]
    known, merges = set(tokens), []
    words = []
    space = byte_alphabet()[0x20]
    for word in WORDS:
        spelled = [space, *word]
        wanted = [
            ("".join(spelled[:i]), spelled[i])
            for i in range(1, len(spelled))
            if "".join(spelled[: i + 1]) not in known
        ]
        if len(tokens) + len(wanted) > VOCAB_SIZE:
            continue
        for left, right in wanted:
            merges.append((left, right))
            tokens.append(left + right)
            known.add(left + right)
        words.append("".join(spelled))
    n_fill = VOCAB_SIZE - len(tokens)
    tokens += [f"<｜fill▁{i}｜>" for i in range(n_fill)]
    index = {token: i for i, token in enumerate(tokens)}
    return Vocabulary(tuple(tokens), tuple(merges), tuple(index[word] for word in words), n_fill)
