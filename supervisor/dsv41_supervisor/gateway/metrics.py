"""What the gateway counts, as Prometheus text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .observe import Seen


@dataclass(slots=True)
class Metrics:
    """Plain numbers: one event loop, no locks."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Finished requests by route and status; a stream that was cut counts as its 200."""
    streams_cut: int = 0
    clients_gone: int = 0
    keep_alives: int = 0
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Answers of the engine by route and how they ended."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    leaked_markup: int = 0
    loops: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Found for clients that asked, by route and what was done."""

    def answered(self, route: str, seen: Seen) -> None:
        self.answers[route, seen.finish or "unknown"] += 1
        self.prompt_tokens += seen.prompt_tokens or 0
        self.cached_tokens += seen.cached_tokens or 0
        self.completion_tokens += seen.completion_tokens or 0
        self.leaked_markup += seen.leaked

    def text(self, *, ready: bool, running: int) -> str:
        lines = [
            *family("requests_total", "counter", "Finished requests."),
            *(
                f'dsv41_gateway_requests_total{{route="{route}",status="{status}"}} {n}'
                for (route, status), n in sorted(self.requests.items())
            ),
            *family("answers_total", "counter", "Answers by how they ended."),
            *(
                f'dsv41_gateway_answers_total{{route="{route}",finish="{finish}"}} {n}'
                for (route, finish), n in sorted(self.answers.items())
            ),
            *family("loops_total", "counter", "Answers whose text repeats itself, of clients that ask for a look."),
            *(
                f'dsv41_gateway_loops_total{{route="{route}",guard="{mode}"}} {n}'
                for (route, mode), n in sorted(self.loops.items())
            ),
        ]
        for name, kind, what, value in (
            ("ready", "gauge", "1 when new requests are passed on.", int(ready)),
            ("running_requests", "gauge", "Requests at the engine now.", running),
            ("streams_cut_total", "counter", "Streams ended with an error event.", self.streams_cut),
            (
                "clients_gone_total",
                "counter",
                "Clients that left before their answer was complete.",
                self.clients_gone,
            ),
            ("keep_alives_total", "counter", "Keep-alive comments sent on silent streams.", self.keep_alives),
            ("prompt_tokens_total", "counter", "Prompt tokens, as the engine counted them.", self.prompt_tokens),
            ("cached_tokens_total", "counter", "Prompt tokens that were cached.", self.cached_tokens),
            ("completion_tokens_total", "counter", "Tokens of answers.", self.completion_tokens),
            ("leaked_markup_total", "counter", "Answers with markup of tool calls in their text.", self.leaked_markup),
        ):
            lines += [*family(name, kind, what), f"dsv41_gateway_{name} {value}"]
        return "\n".join(lines) + "\n"


def family(name: str, kind: str, what: str) -> tuple[str, str]:
    return f"# HELP dsv41_gateway_{name} {what}", f"# TYPE dsv41_gateway_{name} {kind}"
