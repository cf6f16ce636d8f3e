"""Qwen 2.5, Hermes and kin: JSON between tags, `<tool_call>{"name": …}</tool_call>`.

Small models also write the object in a fenced block, or bare on a line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentspec.chat.tools.json_calls import JsonMachine
from agentspec.chat.tools.machine import Family, Reading
from agentspec.types import HERMES

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"


class HermesMachine(JsonMachine):
    """Tagged, fenced, listed and bare objects."""

    close_tag = CLOSE_TAG

    def marks(self) -> Mapping[str, Callable[[], Reading[None]]]:
        return {OPEN_TAG: self.tagged}

    def tagged(self) -> Reading[None]:
        """Objects behind an opening tag; the closing one may be missing."""
        yield from self.objects((yield from self.past_space()), sure=True)
        yield from self.closing(CLOSE_TAG)


class HermesJson(Family):
    """The format of Qwen 2.5, Hermes and kin, and of models that have none of their own."""

    name = "hermes_json"
    shape = HERMES
    machine = HermesMachine
