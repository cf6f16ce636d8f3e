"""The tools of a request, read from its prompt: a proposer of vLLM is given no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_TOOL = re.compile(r'\{\s*"(?:type|name|function)"\s*:')
_MOST_TRIED = 512


def tools_in(text: str) -> Iterator[Mapping[str, Any]]:
    """The tools' schemas, as templates show them to a model: JSON objects with a name."""
    decoder = json.JSONDecoder()
    at, tried = 0, 0
    while tried < _MOST_TRIED and (found := _TOOL.search(text, at)):
        at, tried = found.start() + 1, tried + 1
        try:
            value, end = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        function = value.get("function", value)
        if isinstance(function, Mapping) and isinstance(function.get("parameters"), Mapping):
            yield value
            at = end
