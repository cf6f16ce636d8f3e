"""Llama 3: `{"name": …, "parameters": …}`, bare or behind `<|python_tag|>`, `;` between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentspec.chat.tools.json_calls import JsonMachine
from agentspec.chat.tools.machine import Family, Reading
from agentspec.types import CallShape

PYTHON_TAG = "<|python_tag|>"


class LlamaJsonMachine(JsonMachine):
    """Objects behind the tag, and those that `JsonMachine` finds."""

    def marks(self) -> Mapping[str, Callable[[], Reading[None]]]:
        return {PYTHON_TAG: self._tagged}

    def _tagged(self) -> Reading[None]:
        char = yield from self.past_space()
        if char == "[":
            yield from self.listed((yield from self.past_space()), sure=True)
        else:
            # Behind the tag there may also be code for a built-in tool: text, with a note.
            yield from self.objects(char, sure=True)


class LlamaJson(Family):
    """The format of Llama 3.1 to 3.3."""

    name = "llama_json"
    shape = CallShape('{"name": "', '", "parameters": ', "}", between="; ")
    machine = LlamaJsonMachine
