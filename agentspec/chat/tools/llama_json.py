"""Llama 3.1 to 4 as their templates show: `{"name": …, "parameters": …}`, `;` between calls."""

from __future__ import annotations

from agentspec.chat.tools.machine import Family
from agentspec.chat.tools.pythonic import PythonicMachine
from agentspec.types import CallShape


class LlamaJson(Family):
    """JSON is asked for; small Llamas write Python all the same, so both are read."""

    name = "llama_json"
    shape = CallShape('{"name": "', '", "parameters": ', "}", between="; ")
    machine = PythonicMachine
