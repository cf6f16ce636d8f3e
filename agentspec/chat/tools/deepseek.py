"""DeepSeek: calls between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`, all in one section.

V3 and R1 write the type, the name, and the arguments in a fenced block; V3.1 the name, then the
arguments. Both are read whatever the template, since distilled models mix them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentspec.chat.tools.json_calls import JsonMachine
from agentspec.chat.tools.machine import MAX_NAME, Broken, Family, Reading
from agentspec.types import CallShape

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEP = "<｜tool▁sep｜>"
# How distilled models misspell the mark that opens the section.
_MISSPELT = ("<｜tool_calls_begin｜>", "<｜tool calls begin｜>", "<｜tool▁calls｜>")
_FENCE = "```"


class DeepSeekMachine(JsonMachine):
    """Both forms, the section's own marks present or not."""

    def marks(self) -> Mapping[str, Callable[[], Reading[None]]]:
        openers = dict.fromkeys((CALLS_BEGIN, *_MISSPELT), self._section)
        return {**openers, CALL_BEGIN: self._calls}

    def _section(self) -> Reading[None]:
        if not (yield from self.then(CALL_BEGIN)):
            raise Broken("bad_form")
        yield from self._calls()

    def _calls(self) -> Reading[None]:
        while True:
            yield from self._one()
            mark = yield from self.behind(CALL_BEGIN, CALLS_END)
            if mark == CALLS_END:
                self.drop()
            if mark != CALL_BEGIN:
                return

    def _one(self) -> Reading[None]:
        name, char = yield from self.until("<")
        if not (yield from self.one_of(SEP, held=char)):
            raise Broken("bad_form")
        char = yield from self.past_space()
        self.read_again(char)
        if char != "{":
            # What came before is the type, which is always "function".
            name = ""
            while (char := (yield)) not in "\n`{" and len(name) < MAX_NAME:
                name += char
            if char != "\n":
                self.read_again(char)
            if (yield from self.then(_FENCE)):
                yield from self.one_of("json")
        arguments = yield from self.arguments()
        self.call(name.strip(), arguments)
        if (yield from self.closing(_FENCE, CALL_END)) == _FENCE:
            yield from self.closing(CALL_END)


class DeepSeek(Family):
    """The format of DeepSeek V3 and R1, and of models distilled from them."""

    name = "deepseek"
    shape = CallShape(
        f"{CALL_BEGIN}function{SEP}",
        "\n```json\n",
        f"\n```{CALL_END}",
        between="\n",
        before=CALLS_BEGIN,
        after=CALLS_END,
    )
    machine = DeepSeekMachine


class DeepSeekV31(DeepSeek):
    """The format of DeepSeek V3.1."""

    name = "deepseek_v31"
    shape = CallShape(CALL_BEGIN, SEP, CALL_END, before=CALLS_BEGIN, after=CALLS_END)
