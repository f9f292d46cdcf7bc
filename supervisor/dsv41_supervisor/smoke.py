"""One streamed chat request, as a client of the gateway sends it, and what came of it."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from .errors import Dsv41Error, Stage


@dataclass(frozen=True, slots=True)
class Answer:
    """What a user got. Seconds from the request; tokens as `usage` counts them, never by chunks."""

    text: str
    completion_tokens: int
    first_s: float
    took_s: float
    finish_reason: str | None

    @property
    def tokens_per_s(self) -> float:
        """Decode rate: tokens after the first over the time after the first."""
        return (
            (self.completion_tokens - 1) / max(self.took_s - self.first_s, 1e-9) if self.completion_tokens > 1 else 0.0
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"tokens_per_s": round(self.tokens_per_s, 2)}


def first_key(path: Path) -> str:
    """The first plain key of a keys file (`name:key` lines)."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Dsv41Error(
            f"the keys file {path} cannot be read: {getattr(error, 'strerror', 'not text')}.",
            stage=Stage.GATEWAY,
            hint="Name another with --key-file.",
        ) from None  # fmt: skip
    for line in lines:
        name, _, key = line.strip().partition(":")
        if name and not name.startswith("#") and key.strip() and not key.strip().startswith("sha256:"):
            return key.split()[0]  # its limits may follow
    raise Dsv41Error(
        f"{path} holds no plain key.",
        stage=Stage.GATEWAY,
        hint="Put the key to use into a file, and name it with --key-file.",
    )


async def ask(
    base: str, key: str | None, model: str, prompt: str, max_tokens: int, show: Callable[[str], None],
    timeout_s: float = 300, look: str = "Run dsv41 status.", certificate: Path | None = None,
) -> Answer:  # fmt: skip
    """Stream one chat answer. Raises Dsv41Error with what the gateway said when it is not an answer; `look` is what to
    do when there is no gateway; `certificate` is the only one that is trusted, whatever name it has."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"thinking": False},
    }
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    began = time.monotonic()
    first_s, parts, tokens, finish = 0.0, [], 0, None
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.post(
                f"{base}/v1/chat/completions", json=body, headers=headers, ssl=_only(certificate) or True
            ) as answer,
        ):
            if answer.status != 200:
                what = f"the gateway answered {answer.status}: {_message(await answer.text())}"
                raise _error(what, transient=answer.status in (408, 425, 429) or answer.status >= 500)
            async for raw in answer.content:
                line = raw.decode().strip()
                if not line.startswith("data:") or line == "data: [DONE]":
                    continue
                event = json.loads(line[5:])
                if "error" in event:
                    raise _error(f"the stream ended with an error: {event['error'].get('message')}")
                if event.get("usage"):
                    tokens = event["usage"]["completion_tokens"]
                for choice in event.get("choices", ()):
                    finish = choice.get("finish_reason") or finish
                    delta = choice.get("delta", {})
                    text = delta.get("content") or delta.get("reasoning_content") or ""
                    if text:
                        first_s = first_s or time.monotonic() - began
                        parts.append(text)
                        show(text)
    except aiohttp.ClientConnectorError as error:
        what = f"no answer from {base} ({error.strerror or error})."
        raise Dsv41Error(what, stage=Stage.GATEWAY, hint=look, transient=True) from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _error(f"no answer from {base} ({type(error).__name__}: {error})") from None
    if not tokens:
        raise _error("the answer came without a token")
    return Answer("".join(parts), tokens, first_s, time.monotonic() - began, finish)


def _only(certificate: Path | None) -> ssl.SSLContext | None:
    """A context that trusts this certificate alone: the key goes to our own gateway, by its address."""
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(certificate)
    except OSError as error:
        raise Dsv41Error(
            f"the certificate {certificate} cannot be read: {error.strerror}.",
            stage=Stage.GATEWAY,
            hint="Run it as a user who can, or look at gateway.tls.certificate.",
        ) from None
    return context


def _message(body: str) -> str:
    """What an error body says, in the OpenAI shape or any other."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:500]


def _error(what: str, *, transient: bool = True) -> Dsv41Error:
    hint = "Run dsv41 status." if transient else "Correct the request or the key, then try again."
    return Dsv41Error(what, stage=Stage.GATEWAY, hint=hint, transient=transient)
