"""Arguments written as bare text, given the types that the tool's schema says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentspec.chat.tools.json_scan import MAX_DEPTH, depth, dump, loads, strictly_valid
from agentspec.chat.tools.machine import Broken
from agentspec.chat.tools.python_literal import from_python

_ANY = frozenset(("null", "boolean", "integer", "number", "array", "object"))
_WORDS = {
    "true": ("boolean", "true"), "True": ("boolean", "true"),
    "false": ("boolean", "false"), "False": ("boolean", "false"),
    "null": ("null", "null"), "None": ("null", "null"),
}  # fmt: skip
_MAX_HOPS = 16


def value_text(text: str, schema: object, root: object = None) -> str:
    """JSON text of a value that was written as `text`, for a property's schema.

    A string is its text as it is, also where the schema allows other types besides, except for
    null and for what only another of the values that it names is written as. What does not read
    as any allowed type stays a string, so that the tool can say so. Without a type, numbers,
    booleans, null, lists and objects are what they look like. Raises Broken for a value that is
    nested too deeply.
    """
    types = allowed_types(schema, root)
    bare = text.strip()
    kind, value = _WORDS.get(bare, ("", ""))
    if kind and kind in (types or _ANY) and (kind == "null" or "string" not in types):
        return value
    if "string" in types:
        return _one_of(schema, text) or dump(text)
    number = _number(bare)
    if number is not None:
        if not types or "number" in types:
            return number
        if "integer" in types:
            whole = _whole(number)
            if whole is not None:
                return whole
    elif bare[:1] in ("{", "["):
        wanted = "object" if bare[0] == "{" else "array"
        if not types or wanted in types:
            container = _container(bare, python=bool(types))
            if container is not None:
                return container
    return dump(text)


def _one_of(schema: object, text: str) -> str:
    """JSON text of the one value, no string, of an `enum` that is written so; else nothing."""
    named = schema.get("enum") if isinstance(schema, Mapping) else None
    if not isinstance(named, list) or text in named:
        return ""
    bare = text.strip()
    others = [value for value in named if not isinstance(value, str)]
    # as a grammar writes it too, in which all is ASCII
    return bare if any(bare in (dump(value), json.dumps(value)) for value in others) else ""


def property_schema(parameters: object, key: str) -> object:
    """The schema of an argument, None when the tool declares no such one."""
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties.get(key) if isinstance(properties, Mapping) else None


def allowed_types(schema: object, root: object = None) -> frozenset[str]:
    """JSON types that a schema allows as far as its own words say, none when it says nothing."""
    found: set[str] = set()
    ahead = [schema]
    for _ in range(_MAX_HOPS):
        if not ahead:
            break
        one = ahead.pop()
        if not isinstance(one, Mapping):
            continue
        kind = one.get("type")
        if isinstance(kind, str):
            found.add(kind)
        elif isinstance(kind, list):
            found.update(item for item in kind if isinstance(item, str))
        elif isinstance(one.get("enum"), list):
            found.update(_type_of(item) for item in one["enum"])
        elif "const" in one:
            found.add(_type_of(one["const"]))
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(one.get(word), list):
                ahead += one[word]
        if isinstance(one.get("$ref"), str):
            ahead.append(_referred(root, one["$ref"]))
    return frozenset(found)


def _referred(root: object, path: str) -> object:
    head, *keys = path.split("/")
    at = root if head == "#" else None
    for key in keys:
        at = at.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(at, Mapping) else None
    return at


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _number(text: str) -> str | None:
    """The text when it is a JSON number, as it was written: no digit is lost."""
    return text if text and text[0] in "-0123456789" and strictly_valid(text) else None


def _whole(number: str) -> str | None:
    """The number without a fraction of zero, None when it is no integer."""
    digits, _, fraction = number.partition(".")
    if digits.lstrip("-").isdigit() and not fraction.strip("0"):
        return digits
    value = float(number)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else None


def _container(text: str, *, python: bool) -> str | None:
    """JSON text of a list or object, None when it is neither JSON nor, if allowed, Python."""
    if depth(text) > MAX_DEPTH:
        raise Broken("too_deep")
    try:
        value = loads(text)
    except ValueError:
        return from_python(text) if python else None
    return text if strictly_valid(text) and "\\ud" not in text.lower() else dump(value)
