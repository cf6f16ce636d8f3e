"""GLM 4.5 and later: `<tool_call>NAME`, then `<arg_key>k</arg_key><arg_value>v</arg_value>` pairs.

Values are bare text that gets its type from the tool's schema; 4.7 leaves out the line feeds.
"""

from __future__ import annotations

from agentspec.chat.tools.hermes_json import CLOSE_TAG, OPEN_TAG, HermesMachine
from agentspec.chat.tools.machine import MAX_NAME, Broken, Family, Reading
from agentspec.chat.tools.tagged_value import tagged_value
from agentspec.chat.tools.typed import property_schema, value_text
from agentspec.types import CallShape

KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"

_ENDS = {VALUE_END: (KEY, CLOSE_TAG)}
_NESTED = {VALUE: VALUE_END}


class GlmMachine(HermesMachine):
    """Names with pairs of keys and values, JSON in their place, and what `JsonMachine` finds."""

    def tagged(self) -> Reading[None]:
        char = yield from self.past_space()
        self.read_again(char)
        if char == "{":
            yield from super().tagged()
            return
        name = ""
        while (char := (yield)) not in "\n<" and len(name) < MAX_NAME:
            name += char
        self.read_again(char)
        name = name.strip()
        parameters = self.parameters(name)
        found: dict[str, str] = {}
        mark = yield from self.then(KEY, CLOSE_TAG)
        while mark == KEY:
            key, char = yield from self.until("<")
            if not (yield from self.one_of(KEY_END, held=char)):
                raise Broken("bad_form")
            if not (yield from self.then(VALUE)):
                raise Broken("bad_form")
            text, _, mark = yield from tagged_value(self, _ENDS, _NESTED)
            key = key.strip()
            schema = property_schema(parameters, key)
            found[key] = value_text(text, schema, parameters)
        if not mark:
            raise Broken("bad_form")
        self.call_with(name, found)


class Glm(Family):
    """The format of GLM 4.5, 4.6 and 4.7."""

    name = "glm"
    shape = CallShape(
        OPEN_TAG,
        "\n",
        CLOSE_TAG,
        between="\n",
        style="xml",
        argument=(KEY, f"{KEY_END}\n{VALUE}", f"{VALUE_END}\n"),
    )
    machine = GlmMachine
