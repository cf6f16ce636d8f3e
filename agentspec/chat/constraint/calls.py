"""Grammars of answers that call tools, in the form the model's family writes calls in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.backends.base import Tokenizer
from agentspec.chat.constraint.literals import (
    KEYWORDS,
    OF_ALL,
    OF_STRINGS,
    PythonLiterals,
    named_values,
)
from agentspec.chat.constraint.matcher import vocabulary
from agentspec.chat.constraint.schema import schema_grammar
from agentspec.errors import InvalidRequestError, UnsupportedError
from agentspec.types import CallShape
from agentspec.wire import Tool

MAX_CALLS = 64
"""Calls of one answer, where it may hold several."""

_MAX_ARGUMENTS = 200
_ROOT_KEYS = {
    *("type", "properties", "required", "additionalProperties", "$defs", "definitions", "title"),
    *("description", "default", "examples", "$schema", "$id", "$comment"),
}
_MOST_NOTES = 16
MESSAGE = "<|channel|>"
"""What gpt-oss begins each message of an answer with, thinking and calls included."""

# The part of an opening that nothing else begins with: a tag, not a brace.
_TAG = re.compile(r"(?:<[^\s\"{<>]+>?|\[[A-Z][A-Z_]+\]|[^\s\"{\[<]{4,})")


class CallGrammar:
    """The Lark grammar of calls of these tools; `notes` say which parts of schemas hold nothing.

    Raises InvalidRequestError naming the path of a schema that cannot be compiled.
    """

    def __init__(self, shape: CallShape, tokenizer: Tokenizer) -> None:
        self._shape = shape
        self._specials = vocabulary(tokenizer).specials
        self._rules: list[str] = []
        self.notes: list[str] = []
        self._literals = PythonLiterals(self._rules, self.notes)

    def required(self, tools: Sequence[tuple[str, Tool]], *, parallel: bool) -> str:
        """Nothing but calls, at least one; each tool comes with its path in the request."""
        self._calls(tools, parallel=parallel, strict=True)
        return self._grammar("start: calls")

    def auto(
        self, tools: Sequence[tuple[str, Tool]], *, parallel: bool, answer: str | None = None
    ) -> str:
        """Free text that may hold calls; of `strict` tools the arguments follow the schema.

        With `answer`, an argument of Lark's `%json`, the text is not free but JSON of it. Raises
        UnsupportedError where calls begin as other messages do.
        """
        shape = self._shape
        head = shape.before + shape.opening
        bare = head.lstrip()
        if bare.startswith(MESSAGE):
            raise UnsupportedError(
                "with strict tools, or tools and a response_format, this model needs tool_choice "
                f"'required', 'none' or a named tool: it begins every message with {MESSAGE}, so "
                "a call cannot be told from text where it begins"
            )
        tag = _TAG.match(bare)
        if answer is not None:
            self._calls(tools, parallel=parallel, strict=False)
            self._rules.append(f"answer: %json {answer}")
            return self._grammar("start: calls | answer")
        if tag is None:
            # what begins like a call is one
            self._calls(tools, parallel=parallel, strict=False)
            first = re.escape(bare[:1]) or "{"
            self._rules.append(f"OTHER: /[ \\t\\r\\n]*([^ \\t\\r\\n{first}](.|\\n)*)?/")
            return self._grammar("start: calls | OTHER")
        special = next((p for p in self._by_length(bare) if bare.startswith(p)), None)
        trigger = tag.group() if special is None else special
        free = f"/(.|\\n)*/ & ~/(.|\\n)*{_pattern(trigger)}(.|\\n)*/"
        self._rules.append(f"FREE: {free}")
        if special is not None:
            self._calls(tools, parallel=parallel, strict=False)
            return self._grammar("start: FREE (calls FREE)*" if parallel else "start: FREE calls?")
        # the tag is spelled out: the text before it ends where the tag is complete
        self._calls(tools, parallel=parallel, strict=False, without=len(trigger))
        self._rules.append(f"opened[lazy]: /(.|\\n)*{_pattern(trigger)}/")
        return self._grammar(
            "start: (opened calls)* FREE" if parallel else "start: opened calls | FREE"
        )

    def _grammar(self, start: str) -> str:
        return "\n".join([start, *self._rules])

    def _calls(
        self,
        tools: Sequence[tuple[str, Tool]],
        *,
        parallel: bool,
        strict: bool,
        without: int = 0,
    ) -> None:
        """The rule `calls`, the first one without the white space that parts it from text, and
        `without` so many characters of its mark: the text before has taken them."""
        shape = self._shape
        heads = []
        for number, (where, tool) in enumerate(tools):
            head = json.dumps(tool.name, ensure_ascii=False)[1:-1]
            name = head if shape.opening.endswith('"') else tool.name
            arguments = self._arguments(number, tool, where, strict=strict)
            tail = f"{_plain(name)} {self._fixed(shape.middle)} {arguments}"
            heads.append(f"tail{number}")
            self._rules.append(f"tail{number}: {tail} {self._fixed(shape.closing)}")
        self._rules.append(f"tail: {' | '.join(heads)}")
        first = shape.before + shape.opening
        first = first.lstrip()[without:]
        more = self._fixed(shape.between + shape.opening)
        several = f"({more} tail){{0,{MAX_CALLS - 1}}}" if parallel else ""
        self._rules.append(f"calls: {self._fixed(first)} tail {several} {self._fixed(shape.after)}")

    # -- arguments ----------------------------------------------------------------------------

    def _arguments(self, number: int, tool: Tool, where: str, *, strict: bool) -> str:
        """The name of a rule for the arguments of one tool."""
        rule = f"arguments{number}"
        held = strict or tool.function.strict is True
        parameters: dict[str, Any] = {"type": "object", **tool.function.parameters}
        if "properties" in parameters:
            # A schema that says nothing allows any further key, and small models take it up.
            parameters.setdefault("additionalProperties", False)
        if not held:
            parameters = {"type": "object"}
        if self._shape.style == "json":
            lenient = tool.function.strict is False
            text, notes = schema_grammar(parameters, where, lenient=lenient, spaced=not held)
            self.notes += notes
            self._rules.append(f"{rule}: %json {text}")
            return rule
        return self._written_out(rule, parameters, where, lenient=tool.function.strict is False)

    def _written_out(
        self, rule: str, parameters: Mapping[str, Any], where: str, *, lenient: bool
    ) -> str:
        """Arguments one by one, in the order of the schema, those not required left out freely."""
        # every part is compiled on its own below, so the whole is judged here for its path
        _, notes = schema_grammar(parameters, where, lenient=lenient)
        self.notes += notes
        for key in parameters:
            if key not in _ROOT_KEYS and not lenient:
                raise InvalidRequestError(
                    f"{where}.{key} cannot be compiled: this model writes arguments one by one, "
                    "and only properties are held then",
                    param=f"{where}.{key}",
                )
        shape = self._shape
        properties: Mapping[str, Any] = parameters.get("properties") or {}
        if len(properties) > _MAX_ARGUMENTS:
            raise InvalidRequestError(
                f"{where} cannot be compiled: it has more than {_MAX_ARGUMENTS} properties",
                param=where,
            )
        if not properties:
            if parameters.get("additionalProperties") is False or "properties" in parameters:
                self._rules.append(f'{rule}: ""')
                return rule
            name = f"{rule}_any"
            value = self._value(name, {}, {}, where)
            self._rules.append(
                f"{name}: {self._fixed(shape.argument[0])} KEY {self._fixed(shape.argument[1])} "
                f"{value}"
            )
            if "KEY: /[A-Za-z_][A-Za-z0-9_-]{0,63}/" not in self._rules:
                self._rules.append("KEY: /[A-Za-z_][A-Za-z0-9_-]{0,63}/")
            self._rules.append(f"{rule}: ({name} ({self._fixed(shape.argument_between)} {name})*)?")
            return rule
        required = parameters.get("required") or ()
        shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
        between = self._fixed(shape.argument_between)
        for i, (key, schema) in enumerate(properties.items()):
            value = self._value(f"{rule}_{i}", schema, shared, f"{where}.properties.{key}")
            head = " ".join(
                (self._fixed(shape.argument[0]), _plain(key), self._fixed(shape.argument[1]))
            )
            skip = "" if key in required else " | {0}"
            self._rules += [
                f"{rule}_{i}: {head} {value}",
                f"{rule}_first{i}: {rule}_{i} {rule}_next{i + 1}"
                + skip.format(f"{rule}_first{i + 1}"),
                f"{rule}_next{i}: {between} {rule}_{i} {rule}_next{i + 1}"
                + skip.format(f"{rule}_next{i + 1}"),
            ]
        end = len(properties)
        self._rules += [f'{rule}_first{end}: ""', f'{rule}_next{end}: ""']
        self._rules.append(f"{rule}: {rule}_first0")
        return rule

    def _value(self, rule: str, schema: Any, shared: Mapping[str, Any], where: str) -> str:
        """Rules for one value and what closes it."""
        closing = self._shape.argument[2]
        schema = schema if isinstance(schema, Mapping) else {}
        if self._shape.style == "pythonic":
            return f"{self._literals.rule(schema, shared, where)} {self._fixed(closing)}"
        kinds = schema.get("type")
        named = named_values(schema)
        if named is not None:
            self._note(schema, where, KEYWORDS - {"enum", "const"})
            written = [v if isinstance(v, str) else json.dumps(v) for v in named]
            texts = " | ".join(map(_plain, written))
            return f"({texts}) {self._fixed(closing)}"
        if kinds is not None and "string" not in ([kinds] if isinstance(kinds, str) else kinds):
            text, _ = schema_grammar({**shared, **schema}, where, lenient=True)
            self._rules.append(f"{rule}_json: %json {text}")
            return f"{rule}_json {self._fixed(closing)}"
        if kinds is None and any(key in schema for key in ("$ref", "anyOf", "oneOf", "allOf")):
            self.notes.append(f"{where} is free text: this model writes values without quotes")
            self._note(schema, where, KEYWORDS - {"$ref", "anyOf", "oneOf", "allOf"})
        else:
            # text is read as a string wherever it may be one, whatever it looks like
            self._note(schema, where, KEYWORDS if kinds is None else OF_STRINGS | OF_ALL)
        # An opening tag would have to be closed inside the text: parsers pair those that begin a
        # line or follow a tag. Forbidden everywhere they would cost a walk of all tokens per mask.
        tags = [self._shape.opening.rpartition("\n")[2].strip(), self._shape.argument[0].strip()]
        denied = "|".join(_pattern(tag) for tag in tags if tag)
        text = f"{rule.upper()}_TEXT"
        without = f"& ~/((.|\\n)*[\\n>])?({denied})(.|\\n)*/" if denied else ""
        special = next(iter(self._by_length(closing)), None)
        if special is not None:
            without += f" & ~/(.|\\n)*{_pattern(special)}(.|\\n)*/"
            self._rules.append(f"{text}: /(.|\\n)*/ {without}")
            return f"{text} {self._fixed(closing)}"
        self._rules.append(f"{text}: /(.|\\n)*{_pattern(closing)}/ {without}")
        self._rules.append(f"{rule}_text[lazy]: {text}")
        return f"{rule}_text"

    def _note(self, schema: Mapping[str, Any], where: str, said: set[str]) -> None:
        for key in sorted(said & set(schema)):
            if len(self.notes) < _MOST_NOTES:
                note = f"{where}.{key} is not held: this model writes text without quotes"
                self.notes.append(note)

    # -- fixed text ---------------------------------------------------------------------------

    def _by_length(self, text: str) -> list[str]:
        """The special pieces in a text, longest first."""
        raw = text.encode()
        found = sorted((p for p in self._specials if p in raw), key=len, reverse=True)
        return [piece.decode("utf-8", "replace") for piece in found]

    def _fixed(self, text: str) -> str:
        """Text of the shape in Lark, special pieces as their ids."""
        if not text:
            return ""
        pieces = self._by_length(text)
        parts = re.split(f"({'|'.join(map(re.escape, pieces))})", text) if pieces else [text]
        return " ".join(
            f"<[{self._specials[part.encode()]}]>" if part in pieces else _plain(part)
            for part in parts
            if part
        )


def _plain(text: str) -> str:
    """Text in Lark, which special pieces that it spells never become."""
    return json.dumps(text, ensure_ascii=False)


def _pattern(text: str) -> str:
    """A text as part of a regular expression between slashes."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)
