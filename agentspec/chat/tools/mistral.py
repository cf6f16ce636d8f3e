"""Mistral: a list behind `[TOOL_CALLS]`, or each call as `[TOOL_CALLS]name[ARGS]{…}`."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping

from agentspec.chat.tools.base import IdSource
from agentspec.chat.tools.json_calls import JsonMachine
from agentspec.chat.tools.machine import MAX_CALL, Broken, Family, Reading
from agentspec.types import CallShape

TOOL_CALLS = "[TOOL_CALLS]"
ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"

_ID = string.ascii_letters + string.digits


def short_call_id() -> str:
    """Nine letters and digits: the only ids that Mistral's templates take back."""
    return "".join(secrets.choice(_ID) for _ in range(9))


class MistralMachine(JsonMachine):
    """Both forms, and those that `JsonMachine` finds."""

    def marks(self) -> Mapping[str, Callable[[], Reading[None]]]:
        return {TOOL_CALLS: self._calls}

    def bracket(self) -> Reading[None]:
        # At the beginning of a line the bracket may open the mark or a list without one.
        if (yield from self.one_of(TOOL_CALLS, held="[")):
            self.certain = True
            yield from self._calls()
        else:
            yield from super().bracket()

    def _calls(self) -> Reading[None]:
        char = yield from self.past_space()
        if char == "[":
            yield from self.listed((yield from self.past_space()), sure=True)
        elif char == "{":
            yield from self.objects(char, sure=True)
        else:
            self.read_again(char)
            yield from self._named()

    def _named(self) -> Reading[None]:
        name, char = yield from self.until("[{")
        mark = ""
        if char == "[":
            mark = yield from self.one_of(ARGS, CALL_ID, held="[")
            if mark == CALL_ID:
                yield from self.until("[")
                mark = yield from self.one_of(ARGS, held="[")
            if not mark:
                raise Broken("bad_form")
        else:
            self.read_again(char)
        arguments = yield from self.arguments()
        self.call(name.strip(), arguments)


class Mistral(Family):
    """The format of Mistral's models up to Small 3.1: a list of objects."""

    name = "mistral"
    shape = CallShape(
        '{"name": "', '", "arguments": ', "}", between=", ", before=f"{TOOL_CALLS}[", after="]"
    )
    machine = MistralMachine

    def __init__(self, ids: IdSource = short_call_id, *, max_call: int = MAX_CALL) -> None:
        super().__init__(ids, max_call=max_call)


class MistralArgs(Mistral):
    """The format from Small 3.2, Devstral and Magistral 2507 on: a name and its arguments."""

    name = "mistral_args"
    shape = CallShape(TOOL_CALLS, ARGS, "")
