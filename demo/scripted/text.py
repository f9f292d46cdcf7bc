"""What the scripted engine answers: always that it is one, and how many tokens that took. Pure."""

from __future__ import annotations

import itertools
import time
import uuid
from typing import Any

FINGERPRINT = "dsv41-scripted-engine"
_ANSWER = "[scripted engine] No model is loaded, so this is not an answer to your question. You asked:"


class BadRequest(Exception):
    """The request is not one SGLang would take; the message says why."""


def prompt_of(body: dict[str, Any], chat: bool) -> str:
    """The prompt's text. Raises BadRequest."""
    if not chat:
        prompt = body.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise BadRequest("prompt: Input should be a valid string")
        return prompt
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: Input should be a valid list")
    texts = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        texts.append(content if isinstance(content, str) else "")
    return texts[-1]


def tokens_of(body: dict[str, Any], prompt: str) -> tuple[list[str], str]:
    """The answer's tokens and why it ends: `stop`, or `length` when max_tokens cuts it. Raises BadRequest."""
    words = _ANSWER.split(" ") + prompt.split()
    words[0:2] = [" ".join(words[0:2])]  # the first token alone says what this is
    answer = [word if i == 0 else f" {word}" for i, word in enumerate(words)]
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is None:
        return answer, "stop"
    if not isinstance(limit, int) or limit < 1:
        raise BadRequest(f"max_tokens: {limit!r} is not a positive number")
    if body.get("ignore_eos"):
        return list(itertools.islice(itertools.cycle(answer), limit)), "length"
    return answer[:limit], "length" if limit < len(answer) else "stop"


def usage(n_prompt: int, n_completion: int) -> dict[str, Any]:
    return {
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_completion,
        "completion_tokens": n_completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


class Answer:
    """Builds the documents of one answer, streamed or whole."""

    def __init__(self, model: str, chat: bool) -> None:
        self._chat = chat
        self._head = {"id": uuid.uuid4().hex, "created": int(time.time()), "model": model}

    def chunk(self, text: str | None, finish: str | None = None, first: bool = False) -> dict[str, Any]:
        if not self._chat:
            choice: dict[str, Any] = {"index": 0, "text": text or "", "logprobs": None, "finish_reason": finish}
            return self._document("text_completion", [choice | {"matched_stop": None}])
        delta: dict[str, Any] = {"reasoning_content": None}
        if first:
            delta |= {"role": "assistant", "content": ""}
        if text is not None:
            delta["content"] = text
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": None}
        return self._document("chat.completion.chunk", [choice])

    def usage_chunk(self, n_prompt: int, n_completion: int) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return self._document(kind, []) | {"usage": usage(n_prompt, n_completion)}

    def whole(self, text: str, finish: str, n_prompt: int, n_completion: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish, "matched_stop": None}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "reasoning_content": None}
        else:
            choice["text"] = text
        kind = "chat.completion" if self._chat else "text_completion"
        return self._document(kind, [choice]) | {"usage": usage(n_prompt, n_completion)}

    def _document(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._head | {"object": kind, "choices": choices, "system_fingerprint": FINGERPRINT}


def error(message: str, status: int, kind: str) -> dict[str, Any]:
    """An error body as SGLang 0.5.23 writes it."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}
