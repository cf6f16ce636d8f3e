"""No format of its own: `{"name": …, "arguments": …}` bare, in a list, or in a fenced block."""

from __future__ import annotations

from agentspec.chat.tools.json_calls import JsonMachine
from agentspec.chat.tools.machine import Family
from agentspec.types import CallShape


class PlainJson(Family):
    """JSON objects that name a declared tool; every mark of another family is text."""

    name = "plain_json"
    shape = CallShape('{"name": "', '", "arguments": ', "}", between="\n")
    machine = JsonMachine
