"""JSON schemas as Python literals, for models that write calls as Python does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentspec.chat.constraint.patterns import with_patterns_held
from agentspec.errors import InvalidRequestError

_MAX_RULES = 2_000
# Of rules that name one another: llguidance follows them on the stack.
_MAX_DEPTH = 400
# Escapes that a JSON string shares with a Python one; what is not held was refused, or noted.
_STRING = {"whitespace_flexible": False, "json_allowed_escapes": '"\\bfnrt', "lenient": True}
_ANY = (
    "py_any: PY_STRING | PY_NUMBER | PY_NAME | py_list | py_dict",
    'py_list: "[" (py_any (", " py_any)*)? "]"',
    'py_dict: "{" (PY_STRING ": " py_any (", " PY_STRING ": " py_any)*)? "}"',
    'PY_STRING: /"([^"\\\\\\x00-\\x1f\\x7f]|\\\\["\\\\bfnrt])*"/',
    "PY_NUMBER: /-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?/",
    'PY_NAME: "True" | "False" | "None"',
)
_SCALARS = {"string", "integer", "number"}
_MOST_NOTES = 16
_MOST_ITEMS = 1_000
"""Above it the number of a list's items is not held: a grammar counts by writing it out."""

# What says something of values of one kind only, and what of every kind.
_OF_ARRAYS = {"items", "additionalItems", "prefixItems", "contains", "minItems", "maxItems"}
_OF_OBJECTS = {
    *("properties", "patternProperties", "additionalProperties", "required"),
    *("minProperties", "maxProperties"),
}
OF_STRINGS = {"pattern", "format", "minLength", "maxLength"}
_OF_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
OF_ALL = {"$ref", "enum", "const", "anyOf", "oneOf", "allOf", "not"}
_OF = {"array": _OF_ARRAYS, "object": _OF_OBJECTS, "boolean": set[str](), "null": set[str]()}
KEYWORDS = _OF_ARRAYS | _OF_OBJECTS | OF_STRINGS | _OF_NUMBERS | OF_ALL


class PythonLiterals:
    """Adds rules for values to a grammar, each part of a schema once.

    What of a schema the rules do not hold is added to `notes`.
    """

    def __init__(self, rules: list[str], notes: list[str]) -> None:
        self._rules = rules
        self._notes = notes
        self._noted: set[str] = set()
        self._known: dict[str, str] = {}

    def rule(
        self, schema: Mapping[str, Any], shared: Mapping[str, Any], where: str, depth: int = 0
    ) -> str:
        """The name of the rule of a schema's values. Raises InvalidRequestError."""
        found = _resolved(schema, shared)
        if found is not schema:
            self._note(schema, where, {"$ref"}, KEYWORDS)
        schema = found
        key = json.dumps(schema, sort_keys=True)
        if key not in self._known:
            name = f"py{len(self._known)}"
            if len(self._known) > _MAX_RULES or depth > _MAX_DEPTH:
                raise InvalidRequestError(
                    f"{where} cannot be compiled: it is too deep or too large to write as Python",
                    param=where,
                )
            self._known[key] = name
            self._rules.append(f"{name}: {self._body(name, schema, shared, where, depth)}")
        return self._known[key]

    def _note(self, schema: Mapping[str, Any], where: str, held: set[str], said: set[str]) -> None:
        """Note what a schema says that is not held; `said` is what can say anything here."""
        for key in sorted((said & set(schema)) - held):
            note = f"{where}.{key} is not held: this model writes values as Python does"
            if note not in self._noted and len(self._noted) < _MOST_NOTES:
                self._noted.add(note)
                self._notes.append(note)

    def _body(
        self,
        name: str,
        schema: Mapping[str, Any],
        shared: Mapping[str, Any],
        where: str,
        depth: int,
    ) -> str:
        def below(part: Any, path: str, behind: int = 0) -> str:
            known = part if isinstance(part, Mapping) else {}
            return self.rule(known, shared, f"{where}{path}", depth + 1 + behind)

        named = named_values(schema)
        if named is not None:
            self._note(schema, where, {"enum", "const"}, KEYWORDS)
            return " | ".join(json.dumps(python(value), ensure_ascii=False) for value in named)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), (list, tuple)):
                self._note(schema, where, {key}, {*KEYWORDS, "type"})
                return " | ".join(below(p, f".{key}[{i}]") for i, p in enumerate(schema[key]))
        kinds = schema.get("type")
        if isinstance(kinds, (list, tuple)) and kinds:
            return " | ".join(below({**schema, "type": kind}, "") for kind in kinds)
        if kinds in _SCALARS:
            whole = with_patterns_held({**shared, **schema})
            return f"%json {json.dumps({**whole, 'x-guidance': _STRING})}"
        said = OF_ALL | _OF[kinds] if isinstance(kinds, str) and kinds in _OF else KEYWORDS
        if kinds == "boolean" or kinds == "null":
            self._note(schema, where, set(), said)
        if kinds == "boolean":
            return '"True" | "False"'
        if kinds == "null":
            return '"None"'
        if kinds == "array" and isinstance(schema.get("items"), Mapping):
            item = below(schema["items"], ".items")
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            bounds = [least] if most is None else [least, most]
            held = {"items"}
            if (
                all(type(n) is int and 0 <= n <= _MOST_ITEMS for n in bounds)
                and bounds[-1] >= least
            ):
                held |= {"minItems", "maxItems"}
            else:
                least, most = 0, None
            self._note(schema, where, held, said)
            if most == 0:
                return '"[]"'
            more = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
            some = item if most == 1 else f'{item} (", " {item}){more}'
            return f'"[" {some} "]"' if least else f'"[" ({some})? "]"'
        properties = schema.get("properties")
        if kinds == "object" and isinstance(properties, Mapping) and properties:
            required = schema.get("required") or ()
            # further properties are never written, whatever they may be
            held = {"properties", "additionalProperties"}
            if all(isinstance(key, str) and key in properties for key in required):
                held.add("required")
            self._note(schema, where, held, said)
            last = len(properties)
            for i, (key, part) in enumerate(properties.items()):
                entry = f"{json.dumps(python(key) + ': ', ensure_ascii=False)} "
                entry += below(part, f".properties.{key}", i)
                skip = "" if key in required else " | {0}"
                self._rules += [
                    f"{name}_first{i}: {entry} {name}_next{i + 1}"
                    + skip.format(f"{name}_first{i + 1}"),
                    f'{name}_next{i}: ", " {entry} {name}_next{i + 1}'
                    + skip.format(f"{name}_next{i + 1}"),
                ]
            self._rules += [f'{name}_first{last}: ""', f'{name}_next{last}: ""']
            return f'"{{" {name}_first0 "}}"'
        free = {key for key in ("items", "additionalProperties") if schema.get(key) is True}
        free |= {key for key in ("properties", "required") if not schema.get(key)}
        self._note(schema, where, free, said)
        if _ANY[0] not in self._rules:
            self._rules += _ANY
        return {"array": "py_list", "object": "py_dict"}.get(str(kinds), "py_any")


def python(value: Any) -> str:
    """A JSON value as a Python literal with double quotes."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(python, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{python(k)}: {python(v)}' for k, v in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def _resolved(schema: Mapping[str, Any], shared: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference to a definition names; itself where it is none."""
    for _ in range(32):
        ref = schema.get("$ref")
        parts = ref.split("/") if isinstance(ref, str) else []
        if len(parts) != 3 or parts[0] != "#":
            break
        found = shared.get(parts[1], {}).get(parts[2].replace("~1", "/").replace("~0", "~"))
        if not isinstance(found, Mapping):
            break
        schema = found
    return schema


def named_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values of `enum` or `const` that are of the schema's type, None without them.

    All of them where none is.
    """
    named = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(named, (list, tuple)):
        return None
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, (list, tuple)):
        return list(named)
    return [value for value in named if not _kinds_of(value).isdisjoint(kinds)] or list(named)


def _kinds_of(value: Any) -> set[str]:
    """The names that a schema has for the type of a value."""
    if value is None or isinstance(value, bool):
        return {"null" if value is None else "boolean"}
    if isinstance(value, (int, float)):
        whole = isinstance(value, int) or value.is_integer()
        return {"number", "integer"} if whole else {"number"}
    if isinstance(value, str):
        return {"string"}
    return {"object" if isinstance(value, Mapping) else "array"}
