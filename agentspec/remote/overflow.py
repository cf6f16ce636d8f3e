"""A prompt that does not fit, in the words of each kind of server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.errors import AgentspecError, ContextOverflowError, InvalidRequestError
from agentspec.visible import one_line

_N = "([0-9]{1,10})"
_LIMITS = [
    re.compile(pattern)
    for pattern in (
        # OpenAI and vLLM; SGLang says "of"
        rf"maximum context length (?:is|of) {_N}",
        rf"maximum model length of {_N}",
        rf"context length (?:\(|is only ){_N}",
        # llama-server
        rf"context size \({_N} tokens",
    )
]
_PROMPTS = [
    re.compile(pattern)
    for pattern in (
        rf"(?:contains|contains at least|has|passed) {_N} input tokens",
        rf"resulted in {_N} tokens",
        rf"\({_N} in the messages",
        rf"prompt \(length {_N}\)",
        rf"input \({_N} tokens\)",
        rf"{_N} tokens from the input",
        rf"request \({_N} tokens\)",
    )
]
_NAMES = ("exceed_context_size_error", "context_length_exceeded")
_MOST = 1 << 31


def overflow_of(status: int | None, detail: Mapping[str, Any], n_ctx: int) -> AgentspecError | None:
    """The error of a prompt, or an answer, that is too long for the context; else None.

    `status` is None inside of an answer, `n_ctx` what is known of the context. Counts that cannot
    be are left out.
    """
    said = one_line(detail.get("message") or "", 2000).lower()
    limit, prompt = _first(_LIMITS, said), _first(_PROMPTS, said)
    # the words alone may be the request's own, said back with another failure
    worded = bool(limit or "available context size" in said) and status in (None, 400, 413, 422)
    if not worded and not {str(detail.get("type")), str(detail.get("code"))} & {*_NAMES}:
        return None
    if prompt and limit and prompt < limit:
        return InvalidRequestError(
            f"the prompt has {prompt} tokens, which leaves no room for so long an answer in the "
            f"context of {limit}; ask for fewer max_tokens",
            param="max_tokens",
        )
    limit = _count(detail.get("n_ctx")) or limit or n_ctx
    prompt = _count(detail.get("n_prompt_tokens")) or prompt
    return ContextOverflowError(prompt if prompt >= limit else 0, limit)


def _first(patterns: Sequence[re.Pattern[str]], text: str) -> int:
    found = next((match for pattern in patterns if (match := pattern.search(text))), None)
    return _count(int(found[1])) if found else 0


def _count(value: object) -> int:
    """A number of tokens that can be, else 0."""
    return value if type(value) is int and 0 < value < _MOST else 0
