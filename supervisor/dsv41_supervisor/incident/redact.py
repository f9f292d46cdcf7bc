"""Taking secrets out of text and JSON. Pure, and twice as careful as needed: a bundle is made to be sent away.

Two nets: the secrets this node knows (fleet key, API keys, webhook) wherever they stand, and everything that looks
like one: named values, Authorization headers, tokens with a known prefix, credentials and queries in URLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..credentials import API_KEYS, FLEET_KEY, WEBHOOK_URL, credential
from ..settings import Settings

GONE = "[removed]"
MIN_SECRET_CHARS = 6
"""A shorter one would take half the words of a log with it; no key of ours is that short."""

_NAME = (
    r"(?:[A-Za-z0-9_.-]*(?:api[_-]?key|secret|token|passwd|password|passphrase|credential|authorization|auth[_-]?key|"
    r"private[_-]?key|access[_-]?key|signature|webhook|cookie)[A-Za-z0-9_.-]*)"
)
_NOT_SECRET = re.compile(
    # Figures and switches of an engine that carry the word (max_tokens, token_usage, full_token), and paths to secrets.
    r"tokens|tokeniz|token[_-](?:total|usage|budget|count|cap|per|ids?|limit)\b|(?:per|full|num|new|gen)[_-]?token$|_files?$",
    re.I,
)
_SECRET_ALL_THE_SAME = re.compile(r"(?:auth|access|bearer|refresh|session|secret|api)[a-z]*[_-]?tokens$", re.I)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # Authorization headers in any spelling, with the scheme kept.
    (re.compile(r"(?i)\b(bearer|basic|digest|negotiate)(\s+|%20)[^\s\"',;<>]+"), rf"\1 {GONE}"),
    (re.compile(r"(?i)(authorization|x-api-key|cookie|set-cookie)(\"?\s*[:=]\s*)[^\r\n]+"), rf"\1\2{GONE}"),
    # Tokens that say what they are.
    (re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{6,}"), GONE),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}"), GONE),
    (re.compile(r"\bgh[opsur]_[A-Za-z0-9]{16,}|\bgithub_pat_[A-Za-z0-9_]{16,}"), GONE),
    (re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{8,}"), GONE),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"), GONE),
    (re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"), GONE),
    # Credentials and queries in URLs, and the paths of webhooks that are their own key.
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@\"']*@"), rf"\1{GONE}@"),
    (re.compile(r"(?i)(https?://[^\s\"'?#]*(?:hook|webhook)[^\s\"'/?#]*)/[^\s\"']+"), rf"\1/{GONE}"),
    (re.compile(r"(?i)\b(https?://[^\s\"'?]+)\?[^\s\"']+"), rf"\1?{GONE}"),
)
_NAMED = re.compile(rf"(?i)(?<![A-Za-z0-9_.#-])({_NAME})([\"']?\s*(?:=>|[:=])\s*|\s+)([\"']?)([^\s\"',;&}}\]]+)")


class Redactor:
    """Takes out the secrets it was given, and whatever looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {s for s in secrets if len(s) >= MIN_SECRET_CHARS}
        # Longest first: a secret that holds another goes whole.
        words = "|".join(re.escape(s) for s in sorted(known, key=len, reverse=True))
        self._known = re.compile(words) if known else None

    def text(self, text: str) -> str:
        """The text without them. Never raises."""
        if self._known is not None:
            text = self._known.sub(GONE, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return _NAMED.sub(_named, text)

    def value(self, value: Any, name: str = "") -> Any:
        """The same for JSON: values under a telling name go whole, all texts are looked through."""
        if isinstance(value, dict):
            return {self.text(str(k)): self.value(v, str(k)) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(v, name) for v in value]
        if isinstance(value, str):
            return GONE if value and _is_secret_name(name) else self.text(value)
        return value


def _is_secret_name(name: str) -> bool:
    if re.fullmatch(_NAME, name, re.I) is None:
        return False
    return _NOT_SECRET.search(name) is None or _SECRET_ALL_THE_SAME.search(name) is not None


def _named(match: re.Match[str]) -> str:
    name, between, quote, value = match.groups()
    if not _is_secret_name(name) or value == GONE[:-1]:  # a value ends before "]"
        return match[0]
    if between.isspace() and (not name.startswith("-") or value.startswith("-")):
        return match[0]  # words of a sentence; only an option is followed by its value
    return f"{name}{between}{quote}{GONE}"


def secrets_of(settings: Settings, node: str) -> list[str]:
    """Every secret this node can read: fleet key, API keys, the webhook's URL. Unreadable ones are left out."""
    found: list[str] = []
    files = [credential(FLEET_KEY), credential(WEBHOOK_URL), credential(API_KEYS)]
    for template in (settings.fleet.key_file, settings.gateway.keys_file, settings.alerts.webhook_url_file):
        files.append(settings.path(template, node) if template is not None else None)
    for path in files:
        if path is None:
            continue
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in map(str.strip, lines):
            if line and not line.startswith("#"):
                found.append(line)
                name, colon, key = line.partition(":")
                if colon and not key.startswith("//"):
                    found += key.strip().removeprefix("sha256:").split()[:1]  # limits may follow
    return found
