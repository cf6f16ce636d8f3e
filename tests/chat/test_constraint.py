from __future__ import annotations

import gc
import json
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.chat import constraint
from agentspec.chat.constraint import GrammarConstraint, matcher
from agentspec.chat.tools.hermes_json import HermesJson
from agentspec.chat.tools.llama_json import LlamaJson
from agentspec.chat.tools.pythonic import Pythonic
from agentspec.chat.tools.qwen_xml import QwenXml
from agentspec.errors import InvalidRequestError, MissingExtraError
from agentspec.types import CallShape
from agentspec.wire import Tool, parse_tools
from tests.clock import at_most

pytest.importorskip("llguidance")

EOS = "<|im_end|>"
TAGS = ("<tool_call>", "</tool_call>")
BARE = CallShape('{"name": "', '", "arguments": ', "}")
WRITTEN = {
    HermesJson.shape: (
        '<tool_call>\n{"name": "read", "arguments": {"path": "src/a b.py"}}\n</tool_call>'
    ),
    LlamaJson.shape: '{"name": "both", "parameters": {"a": -12, "b": "x"}}',
    QwenXml.shape: (
        "<tool_call>\n<function=read>\n<parameter=path>\nx < y.py\n\n  # é\n</parameter>\n"
        "</function>\n</tool_call>"
    ),
    Pythonic.shape: '[both(a=31, b="x")]',
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "<tool_call>"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def tools() -> list[Tool]:
    path = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return parse_tools(
        [
            {"function": {"name": "read", "parameters": path}},
            {"function": {"name": "list"}},
            {"function": {"name": "both", "parameters": SCHEMA}},
        ]
    )


def follow(one: GrammarConstraint, ids: list[int]) -> GrammarConstraint:
    for n, token in enumerate(ids):
        assert one.mask()[token], f"token {n} ({token}) of {ids} is masked"
        one.advance(token)
    return one


def refuses(one: GrammarConstraint, ids: list[int]) -> int:
    """The position of the first token that the mask does not allow."""
    for n, token in enumerate(ids):
        if not one.mask()[token]:
            return n
        one.advance(token)
    return len(ids)


def generate(one: GrammarConstraint, tokenizer: Any, seed: int, limit: int = 400) -> list[int]:
    """Random allowed tokens, those that end strings preferred so that it comes to an end."""
    chance = random.Random(seed)
    ids: list[int] = []
    while not one.finished and len(ids) < limit:
        allowed = [int(i) for i in np.flatnonzero(one.mask())]
        ends = [
            i for i in allowed if tokenizer.piece(i)[:1] in (b'"', b"}") or i in tokenizer.eos_ids
        ]
        token = chance.choice(ends if ends and chance.random() < 0.3 else allowed)
        one.advance(token)
        if token not in tokenizer.eos_ids:
            ids.append(token)
    return ids


@pytest.fixture(scope="module")
def tagged(make_tokenizer: Callable[..., Any]) -> Any:
    return make_tokenizer([EOS, *TAGS], EOS, padding=3)


@pytest.fixture(scope="module")
def untagged(make_tokenizer: Callable[..., Any]) -> Any:
    return make_tokenizer([EOS], EOS)


def test_json_schema(untagged: Any) -> None:
    assert not constraint.json_schema(SCHEMA, untagged).finished
    one = constraint.json_schema(SCHEMA, untagged)
    assert follow(one, untagged.encode('{"a": -12, "b": "x"}')).finished
    assert [int(i) for i in np.flatnonzero(one.mask())] == sorted(untagged.eos_ids)
    follow(one, list(untagged.eos_ids))
    assert one.finished
    for bad in ('{"a": "', '{"b"', "[", '{"a": 1, "b": "y'):
        text = untagged.encode(bad)
        assert refuses(constraint.json_schema(SCHEMA, untagged), text) == len(text) - 1 - (
            bad == '{"b"'
        )


def test_special_pieces_in_a_schema_stay_text(tagged: Any) -> None:
    one = constraint.json_schema(SCHEMA, tagged)
    follow(one, tagged.encode('{"a": 1, "b": "<tool_call>"}'))
    assert one.finished


def test_json_object(untagged: Any) -> None:
    follow(constraint.json_object(untagged), untagged.encode('{"a": [1, {"b": null}]}'))
    assert refuses(constraint.json_object(untagged), untagged.encode("[1]")) == 0


def test_mask_covers_padding(tagged: Any) -> None:
    one = constraint.json_object(tagged, vocab_size=tagged.vocab_size + 100)
    mask = one.mask()
    assert mask.dtype == np.bool_
    assert mask.shape == (tagged.vocab_size + 100,)
    assert np.flatnonzero(mask).tolist() == [ord("{")]
    small = constraint.json_object(tagged, vocab_size=200)
    assert small.mask().shape == (200,)


def test_fork_and_valid_prefix_leave_the_original_alone(untagged: Any) -> None:
    one = constraint.json_schema(SCHEMA, untagged)
    ids = untagged.encode('{"a": 1, "b": "x"}')
    end = next(iter(untagged.eos_ids))
    assert one.valid_prefix(ids) == len(ids)
    assert one.valid_prefix([*ids, end, end, 5]) == len(ids) + 1
    assert one.valid_prefix([*ids[:6], ord("z"), *ids[6:]]) == 6
    assert one.valid_prefix([]) == 0
    assert one.valid_prefix([end]) == 0
    copy = one.fork()
    follow(copy, ids)
    assert copy.finished
    assert copy.fork().finished
    assert copy.valid_prefix([end]) == 1
    assert copy.valid_prefix([5]) == 0
    assert one.mask().nonzero()[0].tolist() == [ord("{")]


def test_token_that_is_not_allowed(untagged: Any) -> None:
    one = constraint.json_object(untagged)
    end = next(iter(untagged.eos_ids))
    for token in (ord("["), end):
        with pytest.raises(InvalidRequestError, match="not allowed"):
            one.advance(token)
    # The refusal did not break it.
    follow(one, untagged.encode("{}"))
    with pytest.raises(InvalidRequestError, match="after the end"):
        one.advance(ord(" "))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"type": "objct"}, ".properties.a"),
        ({"type": "string", "pattern": "(("}, ".properties.a"),
        ({"type": "array", "items": {"not": {"type": "string"}}}, ".properties.a.items"),
        ({"anyOf": [{"type": "string"}, {"type": "nope"}]}, ".properties.a.anyOf[1]"),
        ({"$ref": "#/$defs/missing"}, ".properties.a"),
    ],
)
def test_schema_that_cannot_be_compiled_names_its_path(
    untagged: Any, change: dict[str, Any], path: str
) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "string"}, "a": change}}
    with pytest.raises(InvalidRequestError) as caught:
        constraint.json_schema(schema, untagged)
    assert str(caught.value).startswith(
        f"response_format.json_schema.schema{path} cannot be compiled: "
    )
    assert "\n" not in str(caught.value)
    bad = parse_tools([{"function": {"name": "f", "parameters": schema}}])
    with pytest.raises(InvalidRequestError) as caught:
        constraint.tool_calls(bad, "required", untagged)
    assert caught.value.param == f"tools[0].function.parameters{path}"


def test_schema_may_refer_to_its_own_definitions(untagged: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "required": ["tree"],
        "$defs": {"node": {"type": "object", "properties": {"sub": {"$ref": "#/$defs/node"}}}},
    }
    nested = parse_tools([{"function": {"name": "f", "parameters": schema}}])
    one = constraint.tool_calls(nested, "required", untagged, shape=BARE)
    text = '{"name": "f", "arguments": {"tree": {"sub": {"sub": {}}}}}'
    assert follow(one, untagged.encode(text)).finished


@pytest.mark.parametrize("vocabulary_name", ["tagged", "untagged"])
def test_tool_calls_with_tags(vocabulary_name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(vocabulary_name)
    text = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
    one = constraint.tool_calls(tools(), "required", tokenizer)
    # The tag is the one special token where there is one, and text where there is none.
    assert follow(one, tokenizer.encode_special(text)).finished
    fresh = constraint.tool_calls(tools(), "required", tokenizer)
    spelled = tokenizer.encode(text)
    assert refuses(fresh, spelled) == (0 if vocabulary_name == "tagged" else len(spelled))


def test_tool_choice(tagged: Any) -> None:
    read = '{"name": "read", "arguments": {"path": "a"}}'
    other = '{"name": "list", "arguments": {}}'

    def call(choice: str, text: str, **options: Any) -> bool:
        one = constraint.tool_calls(tools(), choice, tagged, **options)
        ids = tagged.encode_special(text)
        return refuses(one, ids) == len(ids) and bool(one.mask()[list(tagged.eos_ids)].all())

    assert call("=read", read, shape=BARE)
    assert not call("=read", other, shape=BARE)
    assert call("required", other, shape=BARE)
    assert not call("required", "text", shape=BARE)
    assert not call("required", '{"name": "nope", "arguments": {}}', shape=BARE)
    assert not call("required", '{"name": "read", "arguments": {}}', shape=BARE)
    assert not call("required", '{"name": "read", "arguments": {"path": "a", "x": 1}}', shape=BARE)
    one, two = (f"<tool_call>\n{c}\n</tool_call>" for c in (read, other))
    assert call("required", one)
    assert not call("required", f"{one}\n{two}")
    assert call("required", f"{one}\n{two}", parallel=True)
    assert call("auto", "just text { here")
    assert call("auto", "")
    assert call("auto", f"text\n{one}")
    assert not call("auto", f"text\n{one} more")
    assert not call("auto", "text <tool_call>\nfree")
    assert not call("required", f"text\n{one}")


def test_choices_that_leave_nothing(tagged: Any) -> None:
    for choice in ("none", "=missing"):
        with pytest.raises(InvalidRequestError, match="tool_choice"):
            constraint.tool_calls(tools(), choice, tagged)


def test_grammar(untagged: Any) -> None:
    one = constraint.grammar('start: "a" | "b" start', untagged)
    assert follow(one, untagged.encode("bba")).finished
    for bad in ("", "start: nothing", 'start: "a', 3):
        with pytest.raises(InvalidRequestError, match=r"^grammar") as caught:
            constraint.grammar(bad, untagged)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(5))
def test_every_allowed_path_is_a_valid_call(tagged: Any, seed: int) -> None:
    one = constraint.tool_calls(tools(), "=both", tagged, shape=BARE)
    call = json.loads(tagged.decode(generate(one, tagged, seed)))
    assert call["name"] == "both"
    assert isinstance(call["arguments"]["a"], int)
    assert call["arguments"]["b"] in ("x", "<tool_call>")


def test_vocabulary_is_built_once_and_not_kept_alive(make_tokenizer: Callable[..., Any]) -> None:
    tokenizer = make_tokenizer([EOS], EOS)
    one = constraint.json_object(tokenizer)
    first = matcher.vocabulary(tokenizer)
    constraint.json_object(tokenizer)
    assert matcher.vocabulary(tokenizer) is first
    watch = weakref.ref(tokenizer)
    del tokenizer, first
    gc.collect()
    assert watch() is not None  # the constraint still needs it
    del one
    gc.collect()
    assert watch() is None


def test_missing_library_names_the_extra(untagged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(MissingExtraError, match="llama"):
        constraint.json_object(untagged)


@pytest.mark.weights
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "smollm2-135m"])
def test_real_vocabulary(
    vocabulary: Callable[[str], tuple[Any, str | None]], weights: Callable[[str], Path], name: str
) -> None:
    tokenizer, _ = vocabulary(str(weights(name)))
    text = '<tool_call>\n{"name": "both", "arguments": {"a": 31, "b": "<tool_call>"}}\n</tool_call>'
    for choice in ("required", "=both"):
        head, _, tail = text.rpartition('"<tool_call>"')
        ids = [
            *tokenizer.encode_special(head),
            *tokenizer.encode('"<tool_call>"'),
            *tokenizer.encode_special(tail),
        ]
        one = constraint.tool_calls(
            tools(), choice, tokenizer, vocab_size=tokenizer.vocab_size + 64
        )
        valid = one.valid_prefix(ids)
        assert valid == len(ids)
    # what a model writes by itself is never masked: the ids of the text as it is encoded
    for shape, written in WRITTEN.items():
        one = constraint.tool_calls(tools(), "required", tokenizer, shape=shape)
        follow(one, tokenizer.encode_special(written))
        assert one.finished
    for seed in range(2):
        one = constraint.tool_calls(tools(), "required", tokenizer)
        made = generate(one, tokenizer, seed, limit=60)
        if one.finished:
            raw = b"".join(map(tokenizer.piece, made)).decode()
            assert raw.startswith("<tool_call>\n")
            body = raw.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
            assert json.loads(body)["name"] in ("read", "list", "both")
    one = constraint.json_object(tokenizer)
    with at_most(2.0):
        for _ in range(100):
            one.fork().mask()
