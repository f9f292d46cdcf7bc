"""What goes to the engine: these paths and no others. The rest of SGLang's surface is for its operator."""

from __future__ import annotations

from dataclasses import dataclass

from . import policy, policy_messages, policy_responses
from .policy import Body, Policy
from .protocols import Protocol


@dataclass(frozen=True, slots=True)
class Route:
    """One path. `name_field`: where SGLang takes a request's name in the body; None: in a header only."""

    path: str
    rules: Policy
    protocol: Protocol = Protocol.OPENAI
    generates: bool = True
    name_field: str | None = "rid"

    def name(self, body: Body, request_id: str) -> tuple[Body, dict[str, str], tuple[str, ...]]:
        """The body and headers by which the engine knows this request, and the names to stop it by.

        Source: protocol.py, request_headers.py and `_normalize_rid`, sglang 0.5.23. With n > 1 SGLang makes up names
        that it tells nobody.
        """
        if not self.generates:
            return body, {}, ()
        if self.name_field is None:
            return body, {"x-override-rid": request_id}, (request_id,)
        name = f"resp_{request_id}" if self.protocol is Protocol.RESPONSES else request_id
        return body | {self.name_field: name}, {}, (name, *(f"{name}_{i}" for i in range(batch(body))))


def batch(body: Body) -> int:
    """How many prompts it holds as a list; 0 for one text, or one list of token ids."""
    prompts = body.get("prompt")
    return len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 0


ROUTES = (
    Route("/v1/chat/completions", policy.chat),
    Route("/v1/completions", policy.completions),
    Route("/v1/responses", policy_responses.create, Protocol.RESPONSES, name_field="request_id"),
    Route("/v1/messages", policy_messages.create, Protocol.ANTHROPIC, name_field=None),
    Route("/v1/messages/count_tokens", policy_messages.count, Protocol.ANTHROPIC, generates=False),
    Route("/tokenize", policy.tokenize, generates=False),
    Route("/v1/tokenize", policy.tokenize, generates=False),
)
