"""Qwen3-Coder: `<tool_call><function=NAME><parameter=KEY>value</parameter>…</function>` and so on.

Values are bare text that gets its type from the tool's schema. The model often leaves out the
opening `<tool_call>`, and smaller ones fall back to JSON inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentspec.chat.tools.hermes_json import CLOSE_TAG, OPEN_TAG, HermesMachine
from agentspec.chat.tools.machine import Broken, Family, Reading
from agentspec.chat.tools.tagged_value import tagged_value
from agentspec.chat.tools.typed import property_schema, value_text
from agentspec.types import CallShape

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"

_ENDS = {
    PARAMETER_END: (PARAMETER, FUNCTION_END, CLOSE_TAG),
    # The closing tag of the last value is missing.
    FUNCTION_END: (CLOSE_TAG,),
}
_NESTED = {FUNCTION: FUNCTION_END, PARAMETER: PARAMETER_END}


class QwenXmlMachine(HermesMachine):
    """Functions in tags, JSON in their place, and what `JsonMachine` finds."""

    def marks(self) -> Mapping[str, Callable[[], Reading[None]]]:
        return {OPEN_TAG: self.tagged, FUNCTION: self._untagged}

    def tagged(self) -> Reading[None]:
        char = yield from self.past_space()
        self.read_again(char)
        if char == "{":
            yield from super().tagged()
            return
        if not (yield from self.one_of(FUNCTION)):
            raise Broken("bad_form")
        yield from self._functions(sure=True)

    def _untagged(self) -> Reading[None]:
        self.certain = False  # the tag may stand in prose
        yield from self._functions(sure=False)

    def _functions(self, *, sure: bool) -> Reading[None]:
        while True:
            closed = yield from self._function(sure)
            if closed:
                return
            mark = yield from self.behind(FUNCTION, CLOSE_TAG)
            if mark == CLOSE_TAG:
                self.drop()
            if mark != FUNCTION:
                return

    def _function(self, sure: bool) -> Reading[bool]:
        """One call from behind its opening tag on; True when that closed the `<tool_call>` too."""
        name, _ = yield from self.until(">")
        name = name.strip()
        self.certain = sure or name in self.tools
        if not self.certain:
            raise Broken("no_name")
        parameters = self.parameters(name)
        found: dict[str, str] = {}
        mark = yield from self.then(PARAMETER, FUNCTION_END, CLOSE_TAG)
        while mark == PARAMETER:
            key, _ = yield from self.until(">")
            text, end, mark = yield from tagged_value(self, _ENDS, _NESTED)
            if end == FUNCTION_END and ("<parameter" in text or "</parameter" in text):
                # Where this value ended is a guess; one that writes files had better not.
                raise Broken("bad_form")
            text = text.removeprefix("\n").removesuffix("\n")
            schema = property_schema(parameters, key)
            found[key] = value_text(text, schema, parameters)
            if mark == FUNCTION_END:
                break
        if not mark:
            raise Broken("bad_form")
        self.call_with(name, found)
        return mark == CLOSE_TAG


class QwenXml(Family):
    """The format of Qwen3-Coder, Qwen3.5 and Qwen3-Next's coding models."""

    name = "qwen_xml"
    shape = CallShape(
        f"{OPEN_TAG}\n{FUNCTION}",
        ">\n",
        f"{FUNCTION_END}\n{CLOSE_TAG}",
        between="\n",
        style="xml",
        argument=(PARAMETER, ">\n", f"\n{PARAMETER_END}\n"),
    )
    machine = QwenXmlMachine
