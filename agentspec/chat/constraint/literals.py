"""JSON schemas as Python literals, for models that write calls as Python does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentspec.errors import InvalidRequestError

_MAX_RULES = 2_000
# Of rules that name one another: llguidance follows them on the stack.
_MAX_DEPTH = 400
# Escapes that a JSON string shares with a Python one.
_STRING = {"whitespace_flexible": False, "json_allowed_escapes": '"\\bfnrt'}
_ANY = (
    "py_any: PY_STRING | PY_NUMBER | PY_NAME | py_list | py_dict",
    'py_list: "[" (py_any (", " py_any)*)? "]"',
    'py_dict: "{" (PY_STRING ": " py_any (", " PY_STRING ": " py_any)*)? "}"',
    'PY_STRING: /"([^"\\\\\\x00-\\x1f\\x7f]|\\\\["\\\\bfnrt])*"/',
    "PY_NUMBER: /-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?/",
    'PY_NAME: "True" | "False" | "None"',
)
_SCALARS = {"string", "integer", "number"}


class PythonLiterals:
    """Adds rules for values to a grammar, each part of a schema once."""

    def __init__(self, rules: list[str]) -> None:
        self._rules = rules
        self._known: dict[str, str] = {}

    def rule(
        self, schema: Mapping[str, Any], shared: Mapping[str, Any], where: str, depth: int = 0
    ) -> str:
        """The name of the rule of a schema's values. Raises InvalidRequestError."""
        schema = _resolved(schema, shared)
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

        named = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(named, (list, tuple)):
            return " | ".join(json.dumps(python(value), ensure_ascii=False) for value in named)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), (list, tuple)):
                return " | ".join(below(p, f".{key}[{i}]") for i, p in enumerate(schema[key]))
        kinds = schema.get("type")
        if isinstance(kinds, (list, tuple)) and kinds:
            return " | ".join(below({**schema, "type": kind}, "") for kind in kinds)
        if kinds in _SCALARS:
            return f"%json {json.dumps({**shared, **schema, 'x-guidance': _STRING})}"
        if kinds == "boolean":
            return '"True" | "False"'
        if kinds == "null":
            return '"None"'
        if kinds == "array" and isinstance(schema.get("items"), Mapping):
            item = below(schema["items"], ".items")
            return f'"[" ({item} (", " {item})*)? "]"'
        properties = schema.get("properties")
        if kinds == "object" and isinstance(properties, Mapping) and properties:
            required = schema.get("required") or ()
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
