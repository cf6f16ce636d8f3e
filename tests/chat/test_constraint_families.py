"""Whatever a family's grammar allows, its parser reads as calls of the schema."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest

from agentspec.chat import constraint
from agentspec.chat.tools.base import CallArguments, CallEnd, CallStart, Malformed, TextDelta
from agentspec.chat.tools.formats import FORMATS
from agentspec.errors import UnsupportedError
from agentspec.wire import Tool, parse_tools

pytest.importorskip("llguidance")

EOS = "<|im_end|>"
MARKS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>"),
    *("<|constrain|>", "<|call|>", "<|start|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
)
PARAMETERS = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "mode": {"enum": ["read", "write it"]},
        "deep": {"type": "boolean"},
        "list": {"type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 2},
    },
    "required": ["path", "mode", "deep"],
    "additionalProperties": False,
    "$defs": {
        "part": {
            "type": "object",
            "properties": {"k": {"type": ["string", "null"]}, "ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        }
    },
}


def tools(**more: Any) -> list[Tool]:
    return parse_tools(
        [
            {"function": {"name": "open_file", "parameters": PARAMETERS, **more}},
            {"function": {"name": "stop", **more}},
        ]
    )


@pytest.fixture(scope="module", params=["special", "spelled"])
def tokenizer(request: pytest.FixtureRequest, make_tokenizer: Callable[..., Any]) -> Any:
    marks = MARKS if request.param == "special" else ()
    return make_tokenizer([EOS, *marks], EOS)


def written(one: Any, tokenizer: Any, seed: int, limit: int = 1500) -> str | None:
    """A random answer; None when it does not come to an end."""
    chance = random.Random(seed)
    ids: list[int] = []
    # letters mostly, and what closes things, so that strings stay short
    liked = [*b'"}])\n<', *b"abc", *b" '/"]
    closings = [tokenizer.encode_special(text) for text in ("\n</parameter>\n", "</arg_value>\n")]
    for _ in range(limit):
        whole = [c for c in closings if one.valid_prefix(c) == len(c)]
        if whole and chance.random() < 0.3:
            closing = chance.choice(whole)
            for token in closing:
                one.advance(token)
            ids += closing
        allowed = np.flatnonzero(one.mask())
        some = [i for i in allowed if i in liked or i >= 256]
        token = int(chance.choice(some if some and chance.random() < 0.9 else list(allowed)))
        if not some and len(allowed) > 200 and chance.random() < 0.5:
            token = int(allowed[-1])
        one.advance(token)
        if token in tokenizer.eos_ids:
            return b"".join(map(tokenizer.piece, ids)).decode("utf-8", "replace")
        ids.append(token)
    return None


def calls_of(text: str, family: str, declared: list[Tool]) -> list[tuple[str, Any]]:
    parser = FORMATS[family]().parser(declared)
    found: list[tuple[str, list[str]]] = []
    ended = 0
    for delta in [*parser.feed(text), *parser.finish()]:
        assert not isinstance(delta, Malformed), text
        assert not (isinstance(delta, TextDelta) and delta.text.strip()), text
        if isinstance(delta, CallStart):
            found.append((delta.name, []))
        elif isinstance(delta, CallArguments):
            found[delta.index][1].append(delta.fragment)
        ended += isinstance(delta, CallEnd)
    assert ended == len(found)
    return [(name, json.loads("".join(parts))) for name, parts in found]


PART = {"type": "object", "properties": {"k": {"type": "string", "pattern": "a+"}}}
# what a Python literal of it does not hold; the pattern of a string is held
PYTHON_NOTES: list[tuple[dict[str, Any], set[str]]] = [
    ({"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 3}, set()),
    ({"type": "array", "minItems": 2}, {"minItems"}),
    ({"type": "array", "items": {"type": "string"}, "maxItems": 5000}, {"maxItems"}),
    (
        {"type": "array", "items": {"$ref": "#/$defs/part", "required": ["k"]}},
        {"items.required"},
    ),
    ({"type": "object", "properties": {"a": PART}, "required": ["a", "b"]}, {"required"}),
    ({"type": "object", "properties": {"a": {"pattern": "x"}}}, {"properties.a.pattern"}),
    ({"type": "object", "additionalProperties": {"type": "string"}}, {"additionalProperties"}),
    ({"type": "object", "additionalProperties": True, "properties": {}, "required": []}, set()),
    (
        {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}], "maxLength": 4},
        {"maxLength"},
    ),
    ({"enum": ["a", "b"], "maxLength": 1}, {"maxLength"}),
    ({"type": ["string", "null"], "pattern": "a+", "description": "an a"}, set()),
    (PART, set()),
    (PARAMETERS["properties"]["mode"], set()),  # type: ignore[index]
]


@pytest.mark.parametrize(("schema", "dropped"), PYTHON_NOTES)
def test_what_a_python_literal_does_not_hold_is_noted(
    make_tokenizer: Callable[..., Any], schema: dict[str, Any], dropped: set[str]
) -> None:
    parameters = {"type": "object", "properties": {"p": schema}, "$defs": {"part": PART}}
    declared = parse_tools([{"function": {"name": "f", "parameters": parameters}}])
    notes = constraint.tool_calls(
        declared, "required", make_tokenizer([EOS], EOS), shape=FORMATS["pythonic"]().shape
    ).notes
    path = "tools[0].function.parameters.properties.p"
    end = " is not held: this model writes values as Python does"
    assert {note.removeprefix(f"{path}.").removesuffix(end) for note in notes} == dropped


@pytest.mark.parametrize(
    ("bounds", "counts"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"minItems": 2}, {2, 3, 4}),
        ({"maxItems": 1}, {0, 1}),
        ({"minItems": 1, "maxItems": 3}, {1, 2, 3}),
        ({"maxItems": 0}, {0}),
        ({"minItems": 0, "maxItems": 1000}, {0, 1, 2, 3, 4}),
    ],
)
def test_a_python_list_has_as_many_items_as_it_may(
    make_tokenizer: Callable[..., Any], bounds: dict[str, int], counts: set[int]
) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, **bounds}
    parameters = {"type": "object", "properties": {"p": schema}, "required": ["p"]}
    declared = parse_tools([{"function": {"name": "f", "parameters": parameters}}])
    tokenizer = make_tokenizer([EOS], EOS)
    one = constraint.tool_calls(declared, "required", tokenizer, shape=FORMATS["pythonic"]().shape)
    assert one.notes == ()
    found = set()
    for n in range(5):
        ids = tokenizer.encode(f"[f(p=[{', '.join(['True'] * n)}])]")
        found |= {n} if one.valid_prefix(ids) == len(ids) else set()
    assert found == counts


# what a value without quotes does not hold
TEXT_NOTES: list[tuple[dict[str, Any], set[str]]] = [
    ({"type": "string", "pattern": "a+", "minLength": 2}, {"pattern", "minLength"}),
    ({"minimum": 3}, {"minimum"}),
    ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties", "required"}),
    ({"items": {"type": "integer"}, "minItems": 1}, {"items", "minItems"}),
    # text that may be a string is read as one
    ({"type": ["string", "array"], "items": {"type": "integer"}, "maxLength": 3}, {"maxLength"}),
    ({"enum": ["a", "abc"], "minLength": 2}, {"minLength"}),
    ({"enum": [1, 2, 3], "minimum": 2}, {"minimum"}),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, set()),
    ({"type": "integer", "minimum": 3}, set()),
    ({"type": "string", "description": "a name", "enum": ["a"]}, set()),
]


@pytest.mark.parametrize("family", ["qwen_xml", "glm"])
@pytest.mark.parametrize(("schema", "dropped"), TEXT_NOTES)
def test_what_a_value_without_quotes_does_not_hold_is_noted(
    make_tokenizer: Callable[..., Any], family: str, schema: dict[str, Any], dropped: set[str]
) -> None:
    parameters = {"type": "object", "properties": {"p": schema}}
    declared = parse_tools([{"function": {"name": "f", "parameters": parameters}}])
    notes = constraint.tool_calls(
        declared, "required", make_tokenizer([EOS], EOS), shape=FORMATS[family]().shape
    ).notes
    path = "tools[0].function.parameters.properties.p"
    end = " is not held: this model writes text without quotes"
    assert {note.removeprefix(f"{path}.").removesuffix(end) for note in notes} == dropped


NAMED: list[tuple[dict[str, Any], list[Any]]] = [
    ({"enum": ["auto", 1, None, True, 2.5, ["é"], {"x": 1}]}, ["auto", 1, None, True, 2.5, ["é"]]),
    ({"enum": ["1", 1]}, ["1"]),
    ({"type": "integer", "enum": [1, "a", True, 2.5]}, [1]),
    ({"type": ["string", "null"], "enum": ["a", 1, None]}, ["a", None]),
]


@pytest.mark.parametrize("family", ["qwen_xml", "glm", "pythonic", "hermes_json"])
@pytest.mark.parametrize(("schema", "values"), NAMED)
def test_a_named_value_is_read_as_what_it_is(
    make_tokenizer: Callable[..., Any], family: str, schema: dict[str, Any], values: list[Any]
) -> None:
    parameters = {"type": "object", "properties": {"p": schema}, "required": ["p"]}
    declared = parse_tools([{"function": {"name": "f", "parameters": parameters}}])
    tokenizer = make_tokenizer([EOS], EOS)
    one = constraint.tool_calls(declared, "required", tokenizer, shape=FORMATS[family]().shape)
    texts: list[str] = []
    ahead = [(one, b"")]
    while ahead:
        state, spelled = ahead.pop()
        for token in map(int, np.flatnonzero(state.mask())):
            if token in tokenizer.eos_ids:
                texts.append(spelled.decode())
                continue
            after = state.fork()
            after.advance(token)
            ahead.append((after, spelled + tokenizer.piece(token)))
    found = [dict(calls_of(text, family, declared))["f"]["p"] for text in texts]
    assert all(any(f == v and type(f) is type(v) for v in schema["enum"]) for f in found)
    assert {json.dumps(v) for v in values} <= {json.dumps(v) for v in found}


def test_what_a_loose_python_literal_leaves_out_is_noted(
    make_tokenizer: Callable[..., Any],
) -> None:
    schema = {"type": "string", "not": {"const": "x"}, "maxLength": 3}
    parameters = {"type": "object", "properties": {"p": schema}, "required": ["p"]}
    declared = parse_tools([{"function": {"name": "f", "parameters": parameters, "strict": False}}])
    tokenizer = make_tokenizer([EOS], EOS)
    one = constraint.tool_calls(declared, "required", tokenizer, shape=FORMATS["pythonic"]().shape)
    assert any("not" in note for note in one.notes)
    ids = tokenizer.encode('[f(p="abcd")]')
    assert one.valid_prefix(ids) == len('[f(p="abc')


def test_notes_of_what_is_not_held_are_few(make_tokenizer: Callable[..., Any]) -> None:
    many = {f"p{i}": {"type": "array", "minItems": i} for i in range(50)}
    declared = parse_tools(
        [{"function": {"name": "f", "parameters": {"type": "object", "properties": many}}}]
    )
    one = constraint.tool_calls(
        declared, "required", make_tokenizer([EOS], EOS), shape=FORMATS["pythonic"]().shape
    )
    assert len(one.notes) == 16


@pytest.mark.parametrize("family", FORMATS)
@pytest.mark.parametrize("choice", ["required", "=open_file"])
def test_what_the_grammar_allows_is_read_as_calls(tokenizer: Any, family: str, choice: str) -> None:
    shape, declared = FORMATS[family]().shape, tools()
    ended = 0
    for seed in range(7):
        one = constraint.tool_calls(declared, choice, tokenizer, shape=shape, parallel=True)
        text = written(one, tokenizer, seed)
        if text is None:
            continue
        ended += 1
        calls = calls_of(text, family, declared)
        assert calls
        assert choice == "required" or len(calls) == 1
        for name, arguments in calls:
            if name == "open_file":
                jsonschema.validate(arguments, PARAMETERS)
            else:
                assert (name, arguments) == ("stop", {})
                assert choice == "required"
    assert ended >= 3


@pytest.mark.parametrize("family", FORMATS)
def test_what_schemas_spell_is_text(make_tokenizer: Callable[..., Any], family: str) -> None:
    tokenizer = make_tokenizer([EOS, *MARKS, "<|evil|>"], EOS)
    evil = tokenizer.special["<|evil|>"]
    schema = {
        "type": "object",
        "properties": {"k<|evil|>": {"enum": ["v<|evil|>"]}},
        "required": ["k<|evil|>"],
    }
    declared = parse_tools([{"function": {"name": "f<|evil|>", "parameters": schema}}])
    one = constraint.tool_calls(declared, "required", tokenizer, shape=FORMATS[family]().shape)
    spelled = b""
    while not one.finished:
        mask = one.mask()
        assert not mask[evil]
        token = int(np.flatnonzero(mask)[0])
        spelled += tokenizer.piece(token)
        one.advance(token)
    assert spelled.count(b"<|evil|>") == 3


@pytest.mark.parametrize("family", FORMATS)
def test_strict_tools_are_held_in_free_text(tokenizer: Any, family: str) -> None:
    shape, declared = FORMATS[family]().shape, tools(strict=True)
    if family == "harmony":
        with pytest.raises(UnsupportedError, match="strict"):
            constraint.tool_calls(declared, "auto", tokenizer, shape=shape)
        return

    def accepts(text: str, parallel: bool = True) -> bool:
        one = constraint.tool_calls(declared, "auto", tokenizer, shape=shape, parallel=parallel)
        ids = tokenizer.encode_special(text)
        if one.valid_prefix(ids) < len(ids):
            return False
        for token in ids:
            one.advance(token)
        return bool(one.mask()[list(tokenizer.eos_ids)].all())

    required = constraint.tool_calls(declared, "=stop", tokenizer, shape=shape)
    call = written(required, tokenizer, 0)
    assert call is not None
    assert accepts("")
    assert accepts("just text { <b> [1]\n\nand more")
    assert accepts(call)
    assert accepts(call, parallel=False)
    assert not accepts(call.replace("stop", "halt"))
    assert not accepts(call[:-1].rstrip("\n"), parallel=False) or not shape.closing + shape.after
    broken = call.replace("stop", "open_file")
    assert not accepts(broken)
    # spelled out it is a call all the same
    one = constraint.tool_calls(declared, "auto", tokenizer, shape=shape)
    assert one.valid_prefix(tokenizer.encode(broken)) < len(tokenizer.encode(broken))
