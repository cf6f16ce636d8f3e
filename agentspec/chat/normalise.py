"""Lines of the input that change with every request and say nothing to a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from agentspec.errors import InvalidRequestError
from agentspec.wire import Message

VOLATILE: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        # Claude Code puts this line before its instructions; `cch` is another with every request.
        "cch": re.compile(r"^(x-anthropic-billing-header:[^\n]*?\bcch=)[0-9a-fA-F]+", re.MULTILINE),
    }
)
"""By name: what comes before the changing part of a line of a system message, and that part."""


def check_names(names: object) -> tuple[str, ...]:
    """The names, all of them known. Raises InvalidRequestError."""
    found = (names,) if isinstance(names, str) else names
    if not isinstance(found, (list, tuple)) or not all(name in VOLATILE for name in found):
        raise InvalidRequestError(
            f"normalise must be a list of {', '.join(VOLATILE)}, not {names!r}", param="normalise"
        )
    return tuple(found)


def normalised(
    messages: Sequence[Message], names: Sequence[str]
) -> tuple[list[Message], list[str]]:
    """The messages with each changing part replaced by 0, and a note of each kind replaced."""
    out: list[Message] = []
    counts = dict.fromkeys(names, 0)
    for message in messages:
        content = message.content
        if message.role in ("system", "developer") and isinstance(content, str):
            for name in names:
                content, found = VOLATILE[name].subn(r"\g<1>0", content)
                counts[name] += found
            if content != message.content:
                message = message.model_copy(update={"content": content})
        out.append(message)
    return out, [
        f"the input was changed: {name}= of a header line is read as 0, so that the beginning of "
        "the prompt can be reused"
        for name, found in counts.items()
        if found
    ]
