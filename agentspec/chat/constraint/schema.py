"""JSON schemas as llguidance takes them: what it cannot hold is refused by its path, or noted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from agentspec.chat.constraint.matcher import library, problems
from agentspec.chat.constraint.patterns import MAPS, check_patterns, with_patterns_held
from agentspec.errors import InvalidRequestError
from agentspec.wire import check_json

MAX_SCHEMA = 256 * 1024
"""Characters of one schema's JSON text."""

# Written as Python's json.dumps writes it, which is what models were trained on; free white
# space would let a small model wander.
_SPACING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_MAX_PARTS = 4_000
_MAX_KEYS = 1_000
_MAX_VISITS = 200_000
_MAX_NESTED = 500
_MAX_NOTES = 16
_SECONDS = 1.0

_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems", "contains", "not")
_HELD = {
    *("$ref", "type", "enum", "const", "required", "minProperties", "maxProperties", "minItems"),
    *("maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "multipleOf", *_LISTS, *MAPS, *_SINGLE),
}
_ANNOTATIONS = {
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly"),
    *("writeOnly", "$schema", "$id", "id", "$comment", "$anchor"),
}


def schema_grammar(
    schema: object, where: str, *, lenient: bool = False, spaced: bool = False
) -> tuple[str, list[str]]:
    """The schema as text for `%json`, and notes on what of it is not held.

    With `lenient` keywords that cannot be held are notes, else they are refused; `spaced` leaves
    white space free. Raises InvalidRequestError naming the path of what cannot be compiled.
    """
    if not isinstance(schema, Mapping):
        raise InvalidRequestError(f"{where} must be a JSON schema object", param=where)
    check_json(schema, where)
    if len(json.dumps(schema)) > MAX_SCHEMA:
        raise InvalidRequestError(
            f"{where} has more than {MAX_SCHEMA >> 10} KiB of JSON; make it smaller", param=where
        )
    for number, (path, node) in enumerate(_nodes(schema, where)):
        _check_size(node, path, number)
        check_patterns(node, path)
        if not lenient and _counts_keys_twice(node):
            raise InvalidRequestError(
                f"{path}.minProperties cannot be compiled: {_TWICE}", param=f"{path}.minProperties"
            )
    _check_depth(schema, where)
    _check_ends(schema, where)
    options: dict[str, Any] = {} if spaced else dict(_SPACING)
    if lenient:
        options["lenient"] = True
    failed, messages = _judge(schema, options)
    if failed:
        path = _locate(schema, where, messages[0], options)
        raise InvalidRequestError(f"{path} cannot be compiled: {messages[0]}", param=path)
    notes = [f"{where} is held in part only: {message}" for message in messages]
    notes += [
        f"{path}.minProperties is not held: {_TWICE}"
        for path, node in _nodes(schema, where)
        if _counts_keys_twice(node)
    ]
    notes += [
        f"{path}.{key} is no keyword that is held" for path, key in _unknown_keys(schema, where)
    ]
    return _text(schema, options), notes[:_MAX_NOTES]


def _text(schema: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    # the schema's own x-guidance could turn every check off
    return json.dumps({**with_patterns_held(schema), "x-guidance": options})


def _judge(schema: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[bool, list[str]]:
    grammar = library().LLMatcher.grammar_from_json_schema(_text(schema, options))
    return problems(grammar)


def _locate(root: Mapping[str, Any], where: str, problem: str, options: Mapping[str, Any]) -> str:
    """The path of the smallest part of a schema that has the problem on its own."""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    node: Mapping[str, Any] = root
    until = time.monotonic() + _SECONDS
    while True:
        for path, child in _children(node):
            if time.monotonic() > until:
                return where
            # The same problem only: a part by itself may also lack what its references name.
            if _judge({**shared, **child}, options) == (True, [problem]):
                node, where = child, where + path
                break
        else:
            return where


def _children(node: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    out: list[tuple[str, Any]] = []
    for key in MAPS:
        value = node.get(key)
        if isinstance(value, Mapping):
            out += [(f".{key}.{name}", child) for name, child in value.items()]
    for key in (*_SINGLE, "if", "then", "else"):
        out.append((f".{key}", node.get(key)))
    for key in (*_LISTS, "items"):
        value = node.get(key)
        if isinstance(value, (list, tuple)):
            out += [(f".{key}[{i}]", child) for i, child in enumerate(value)]
    return [(path, child) for path, child in out if isinstance(child, Mapping)]


def _nodes(root: Mapping[str, Any], where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema in a schema, with its path; those that only references lead to come last."""
    stack: list[tuple[str, Mapping[str, Any]]] = [(where, root)]
    referred: list[tuple[str, Mapping[str, Any]]] = []
    seen: set[int] = set()
    while stack or referred:
        path, node = stack.pop() if stack else referred.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield path, node
        stack += [(path + below, child) for below, child in reversed(_children(node))]
        ref = node.get("$ref")
        target = _resolve(root, ref) if isinstance(ref, str) else None
        if isinstance(target, Mapping):
            referred.append((where + str(ref)[1:].replace("/", "."), target))


def _unknown_keys(root: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    for path, node in _nodes(root, where):
        for key in node:
            if key not in _HELD and key not in _ANNOTATIONS:
                yield path, key[:60]


_TWICE = "a key that is not declared may be written twice, and would be counted twice"


def _counts_keys_twice(node: Mapping[str, Any]) -> bool:
    """True where an object of fewer keys than it must have could be written."""
    least, required = node.get("minProperties"), node.get("required")
    named = set(required) if isinstance(required, (list, tuple)) else set()
    closed = node.get("additionalProperties") is False and not node.get("patternProperties")
    return isinstance(least, (int, float)) and not closed and least > len(named) + 1


def _check_size(node: Mapping[str, Any], path: str, number: int) -> None:
    """Compiling takes time in the square of an object's keys; llguidance refuses it afterwards."""
    keys = node.get("properties")
    if number > _MAX_PARTS or (isinstance(keys, Mapping) and len(keys) > _MAX_KEYS):
        raise InvalidRequestError(
            f"{path} cannot be compiled: an object may have {_MAX_KEYS} properties, "
            f"a schema {_MAX_PARTS} parts",
            param=path,
        )


# -- references -------------------------------------------------------------------------------


def _check_depth(root: Mapping[str, Any], where: str) -> None:
    """Checks how deep parts lie in one another, references followed.

    llguidance follows them on the stack, and some two thousand end the process. Where parts refer
    to one another in a circle, the depths of all of them are added up.
    """
    depths: dict[str, int] = {}
    below: dict[str, list[tuple[str, int]]] = {}
    todo, visits = ["#"], 0
    while todo:
        name = todo.pop()
        node = _resolve(root, name)
        if name in depths or not isinstance(node, Mapping):
            continue
        depths[name], below[name] = 1, []
        level: list[Mapping[str, Any]] = [node]
        depth = 0
        while level and visits <= _MAX_VISITS:
            depth += 1
            visits += len(level)
            depths[name] = depth
            for part in level:
                ref = part.get("$ref")
                if isinstance(ref, str):
                    below[name].append((ref, depth))
                    todo.append(ref)
            level = [child for part in level for _, child in _children(part)]
    try:
        deepest: dict[str, int] = {}
        for name in TopologicalSorter(
            {n: [ref for ref, _ in b] for n, b in below.items()}
        ).static_order():
            inner = [depth + deepest[ref] for ref, depth in below.get(name, ())]
            deepest[name] = max([depths.get(name, 0), *inner])
        most = max(deepest.values())
    except CycleError:
        most = sum(depths.values())
    if most > _MAX_NESTED or visits > _MAX_VISITS:
        raise InvalidRequestError(
            f"{where} cannot be compiled: its parts lie more than {_MAX_NESTED} deep in one "
            "another, references followed",
            param=where,
        )


def _check_ends(root: Mapping[str, Any], where: str) -> None:
    """Checks that no reference needs itself: such text would never come to an end.

    The least fixpoint of "a value of this part can be finite" over the parts referred to.
    """
    references = [
        (path, node["$ref"])
        for path, node in _nodes(root, where)
        if isinstance(node.get("$ref"), str)
    ]
    targets = {ref: _resolve(root, ref) for _, ref in references}
    ends = {ref: False for ref, target in targets.items() if target is not None}
    visits = [0]
    changed = True
    while changed:
        changed = False
        for ref in [ref for ref, known in ends.items() if not known]:
            if _can_end(targets[ref], ends, visits):
                ends[ref] = changed = True
            if visits[0] > _MAX_VISITS:
                raise InvalidRequestError(
                    f"{where} cannot be compiled: its references are too many to follow",
                    param=where,
                )
    for path, ref in references:
        if not ends.get(ref, True):
            raise InvalidRequestError(
                f"{path}.$ref cannot be compiled: {ref[:100]!r} needs itself, so no value of it "
                "ever ends",
                param=f"{path}.$ref",
            )


def _can_end(node: Any, ends: Mapping[str, bool], visits: list[int]) -> bool:
    visits[0] += 1
    if not isinstance(node, Mapping) or visits[0] > _MAX_VISITS:
        return True

    def each(parts: Any) -> list[bool]:
        listed = parts if isinstance(parts, (list, tuple)) else ()
        return [_can_end(part, ends, visits) for part in listed]

    if not ends.get(node.get("$ref", ""), True) if isinstance(node.get("$ref"), str) else False:
        return False
    if any(
        known and not any(known) for known in (each(node.get("anyOf")), each(node.get("oneOf")))
    ):
        return False
    if not all(each(node.get("allOf"))):
        return False
    if "enum" in node or "const" in node:
        return True
    kind = node.get("type")
    if kind == "object":
        properties = node.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        required = node.get("required")
        keys: Sequence[Any] = required if isinstance(required, (list, tuple)) else ()
        return all(
            _can_end(properties[key], ends, visits)
            for key in keys
            if isinstance(key, str) and key in properties
        )
    least = node.get("minItems")
    if kind == "array" and isinstance(least, int) and least > 0:
        first = node.get("prefixItems")
        first = list(first) if isinstance(first, (list, tuple)) else []
        rest = [node["items"]] if least > len(first) and "items" in node else []
        return all(each(first[:least] + rest))
    return True


def _resolve(root: Any, ref: str) -> Any:
    """What a local reference names; None when it names nothing here."""
    if not ref.startswith("#"):
        return None
    node = root
    for part in unquote(ref[1:]).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, (list, tuple)) and part.isascii() and part.isdigit():
            node = node[int(part[:6])] if int(part[:6]) < len(node) else None
        else:
            return None
    return node
