"""Calls as Python writes them, `[read(path="a", limit=3), now()]`, bare or between marks.

LFM2 puts `<|tool_call_start|>` and `<|tool_call_end|>` around the list. Llama 3 puts
`<|python_tag|>` before calls, Llama 4 `<|python_start|>` and `<|python_end|>` around them, and
both put JSON there too, Llama 3 with semicolons between objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from agentspec.chat.tools.json_calls import JsonMachine
from agentspec.chat.tools.machine import MAX_NAME, SPACE, Broken, Family, Reading
from agentspec.chat.tools.python_literal import literal
from agentspec.types import CallShape

TAG, START, END = "<|python_tag|>", "<|python_start|>", "<|python_end|>"
LIST_START, LIST_END = "<|tool_call_start|>", "<|tool_call_end|>"


class PythonicMachine(JsonMachine):
    """A list of calls at the beginning of a line or between marks, and JSON in their place.

    Without a mark the first call must name a declared tool, since an answer may be a list.
    """

    def marks(self) -> Mapping[str, Callable[[], Reading[None]]]:
        return dict.fromkeys((TAG, START, LIST_START), self._marked)

    def bracket(self) -> Reading[None]:
        if self._fenced:
            raise Broken(None)
        yield from self._list(sure=False)

    def _marked(self) -> Reading[None]:
        char = yield from self.past_space()
        if char == "[":
            yield from self._list(sure=True)
        else:
            # There may also be code for a built-in tool: text, with a note.
            yield from self.objects(char, sure=True)
        yield from self.closing(END, LIST_END)

    def _list(self, *, sure: bool) -> Reading[None]:
        char = yield from self.past_space()
        if char == "{":
            yield from self.listed(char, sure=sure)
            return
        while True:
            name, char = yield from _name(char)
            if char != "(" or not (sure or name in self.tools):
                self.read_again(char)
                raise Broken("bad_form")
            self.certain = True
            self.call_with(name, (yield from self._arguments()))
            sure = True
            mark = yield from self.behind(",", "]")
            if mark != ",":
                break
            char = yield from self.past_space()
            if char == "]":
                break
        if mark:
            self.drop()

    def _arguments(self) -> Reading[dict[str, str]]:
        """Keyword arguments from behind the bracket to the closing one, values as JSON text."""
        found: dict[str, str] = {}
        char = yield from self.past_space()
        while char != ")":
            key, char = yield from _name(char)
            if char in SPACE:
                char = yield from self.past_space()
            if not key or char != "=" or key in found:
                raise Broken("bad_arguments")
            found[key], char = yield from literal((yield from self.past_space()))
            if char in SPACE:
                char = yield from self.past_space()
            if char == ",":
                char = yield from self.past_space()
            elif char != ")":
                raise Broken("bad_arguments")
        return found


def _name(char: str) -> Reading[tuple[str, str]]:
    """An identifier, dots and dashes allowed, and the character behind it."""
    name = ""
    while (char.isalnum() or char in "_.-") and len(name) <= MAX_NAME:
        name += char
        char = yield
    return name, char


class Pythonic(Family):
    """The format that prompts for Llama 3.2 and 4 ask for when they ask for Python."""

    name = "pythonic"
    shape = CallShape(
        "",
        "(",
        ")",
        between=", ",
        before="[",
        after="]",
        style="pythonic",
        argument=("", "=", ""),
        argument_between=", ",
    )
    machine = PythonicMachine


class Lfm2(Pythonic):
    """The format of Liquid's LFM2."""

    name = "lfm2"
    shape = replace(Pythonic.shape, before=f"{LIST_START}[", after=f"]{LIST_END}")
