"""Schemas: what is compiled holds, what cannot be held is refused or said, nothing hangs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from agentspec.chat import constraint
from agentspec.chat.constraint import matcher
from agentspec.chat.constraint.patterns import held_pattern, pattern_atoms
from agentspec.errors import InvalidRequestError, UnsupportedError
from agentspec.wire import parse_tools
from tests.clock import at_most

pytest.importorskip("llguidance")

EOS = "<|im_end|>"
WHERE = "response_format.json_schema.schema"


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer: Callable[..., Any]) -> Any:
    return make_tokenizer([EOS], EOS)


def keys(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "c d", "é", '"q"'])

    def closed(properties: dict[str, Any], required: set[str], open_: bool) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": properties,
            "required": sorted(required & set(properties)),
            **({} if open_ else {"additionalProperties": False}),
        }

    return st.builds(
        closed, st.dictionaries(names, inner, max_size=3), st.sets(names), st.booleans()
    )


SCALARS: Any = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(lambda low, n: {"type": "integer", "minimum": low, "maximum": low + n},
              st.integers(-50, 50), st.integers(0, 40)),
    st.just({"type": "number"}),
    st.builds(lambda low, n: {"type": "string", "minLength": low, "maxLength": low + n},
              st.integers(0, 3), st.integers(0, 4)),
    st.just({"type": "string", "pattern": "^(x|yz){1,3}$"}),
    st.just({"type": "string", "pattern": "[0-9]"}),
    st.builds(lambda values: {"enum": values},
              st.lists(st.sampled_from(["x", "y\n", "", 1, None, True]), min_size=1, max_size=3,
                       unique_by=repr)),
    st.builds(lambda value: {"const": value}, st.sampled_from(["k", 7, False, None])),
)  # fmt: skip
SCHEMAS: Any = keys(
    st.recursive(
        SCALARS,
        lambda inner: (
            keys(inner)
            | st.builds(
                lambda items, low, n: {
                    "type": "array", "items": items, "minItems": low, "maxItems": low + n,
                },
                inner, st.integers(0, 2), st.integers(0, 2),
            )
            | st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
        ),
        max_leaves=5,
    )
)  # fmt: skip

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=4)


@st.composite
def instances(draw: st.DrawFn, schema: dict[str, Any]) -> Any:
    """A value that is meant to be valid, keys in the order of the schema."""
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return draw(instances(draw(st.sampled_from(schema["anyOf"]))))
    match schema["type"]:
        case "null":
            return None
        case "boolean":
            return draw(st.booleans())
        case "integer":
            return draw(st.integers(schema["minimum"], schema["maximum"]))
        case "number":
            return draw(st.integers(-5, 5) | st.sampled_from([0.5, -12.25, 1e-3]))
        case "string" if schema.get("pattern") == "[0-9]":
            return draw(TEXT) + "4" + draw(TEXT)
        case "string" if "pattern" in schema:
            return draw(st.sampled_from(["x", "yz", "xyzx", "yzyzyz"]))
        case "string":
            text = st.text(
                st.characters(codec="utf-8"),
                min_size=schema["minLength"],
                max_size=schema["maxLength"],
            )
            return draw(text)
        case "array":
            n = draw(st.integers(schema["minItems"], schema["maxItems"]))
            return [draw(instances(schema["items"])) for _ in range(n)]
    value = {
        key: draw(instances(part))
        for key, part in schema["properties"].items()
        if key in schema["required"] or draw(st.booleans())
    }
    if "additionalProperties" not in schema and draw(st.booleans()):
        value["more"] = draw(st.sampled_from([1, [None], {"x": "y"}]))
    return value


def refused_at(one: Any, ids: list[int]) -> int:
    for n, token in enumerate(ids):
        if not one.mask()[token]:
            return n
        one.advance(token)
    return len(ids)


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_valid_instances_pass_and_what_ends_is_valid(tokenizer: Any, data: st.DataObject) -> None:
    schema = data.draw(SCHEMAS)
    value = data.draw(instances(schema))
    jsonschema.validate(value, schema)
    one = constraint.json_schema(schema, tokenizer)
    # what stays forbidden in JSON text is escaped as llguidance writes it
    text = json.dumps(value, ensure_ascii=False)
    assume("\x7f" not in text)
    ids = tokenizer.encode(text)
    assert refused_at(one, ids) == len(ids), text
    assert one.mask()[list(tokenizer.eos_ids)].all()


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_random_walk_ends_in_what_validates(tokenizer: Any, data: st.DataObject) -> None:
    schema = data.draw(SCHEMAS)
    one = constraint.json_schema(schema, tokenizer)
    chance = data.draw(st.randoms(use_true_random=False))
    ids: list[int] = []
    while len(ids) < 250:
        allowed = [int(i) for i in np.flatnonzero(one.mask())]
        ends = [i for i in allowed if i in {*b'"}]', *tokenizer.eos_ids}]
        token = chance.choice(ends if ends and chance.random() < 0.6 else allowed)
        one.advance(token)
        if token in tokenizer.eos_ids:
            value = json.loads(tokenizer.decode(ids))
            jsonschema.validate(value, schema)
            return
        ids.append(token)


# -- what is refused -------------------------------------------------------------------------------


def loop(kind: str) -> dict[str, Any]:
    return {"$defs": {"a": {kind: [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}


ENDLESS: dict[str, tuple[dict[str, Any], str]] = {
    "itself": ({"$ref": "#"}, ""),
    "two": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "",
    ),
    "anyOf": (loop("anyOf"), ""),
    "required": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        ".properties.a",
    ),
    "items": (
        {"type": "object", "properties": {"l": {"$ref": "#/$defs/l"}},
         "$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}, "minItems": 1}}},
        ".properties.l",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_a_schema_whose_values_never_end_is_refused(tokenizer: Any, name: str) -> None:
    schema, path = ENDLESS[name]
    with pytest.raises(InvalidRequestError) as caught:
        constraint.json_schema(schema, tokenizer)
    assert str(caught.value).startswith(WHERE)
    assert caught.value.param is not None
    assert f"{WHERE}{path}.$ref cannot be compiled" in str(caught.value) or name == "anyOf"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"const": 1}]}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 0},
    ],
)
def test_a_recursion_that_can_end_is_taken(tokenizer: Any, schema: dict[str, Any]) -> None:
    assert not constraint.json_schema(schema, tokenizer).finished


HELD_NOT = {
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "a"}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 2}},
    "not": {"not": {"type": "string"}},
    "contains": {"type": "array", "contains": {"type": "string"}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "format": {"type": "string", "format": "no such format"},
    "oneOf": {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]},
    "$dynamicRef": {"$dynamicRef": "#q"},
}


@pytest.mark.parametrize("name", HELD_NOT)
def test_a_keyword_that_is_not_held_is_refused_or_noted(tokenizer: Any, name: str) -> None:
    schema = {"type": "object", "properties": {"p": HELD_NOT[name]}}
    with pytest.raises(InvalidRequestError) as caught:
        constraint.json_schema(schema, tokenizer)
    assert caught.value.param == f"{WHERE}.properties.p"
    options: dict[str, Any] = {"vocab_size": tokenizer.vocab_size}
    form: dict[str, Any] = {"type": "json_schema", "json_schema": {"schema": schema}}
    form["json_schema"]["strict"] = False
    one = constraint.constraint_of(tokenizer, response_format=form, **options)
    assert isinstance(one, constraint.GrammarConstraint)
    assert any(WHERE in note for note in one.notes)
    loose = parse_tools([{"function": {"name": "f", "parameters": schema, "strict": False}}])
    one = constraint.constraint_of(tokenizer, tools=loose, tool_choice="required", **options)
    assert isinstance(one, constraint.GrammarConstraint)
    assert any("tools[0].function.parameters" in note for note in one.notes)
    for strict in (None, True):
        form["json_schema"]["strict"] = strict
        with pytest.raises(InvalidRequestError, match="cannot be compiled"):
            constraint.constraint_of(tokenizer, response_format=form, **options)


def test_words_that_hold_nothing_are_noted_and_annotations_are_not(tokenizer: Any) -> None:
    part = {"type": "string", "nullable": True, "contentEncoding": "base64", "title": "t"}
    one = constraint.json_schema({"type": "object", "properties": {"p": part}}, tokenizer)
    assert one.notes == (
        f"{WHERE}.properties.p.nullable is no keyword that is held",
        f"{WHERE}.properties.p.contentEncoding is no keyword that is held",
    )
    # the library's own switches are not the caller's
    with pytest.raises(InvalidRequestError):
        constraint.json_schema({"not": {}, "x-guidance": {"lenient": True}}, tokenizer)


# -- nothing hangs -----------------------------------------------------------------------------


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def doubling(n: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{n}": {"type": "object"}}
    for i in range(n):
        step = {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "object"}]}
        defs[f"d{i}"] = {"allOf": [step, step]}
    return {"$ref": "#/$defs/d0", "$defs": defs}


def chain(n: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{n}": {"type": "null"}}}


HOSTILE: dict[str, dict[str, Any]] = {
    "values": {"enum": [f"value {i}" for i in range(20_000)]},
    "keys": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4000)}},
    "repetition": {"type": "string", "pattern": "^(((a{1000}){1000}){1000})$"},
    "backtracking": {"type": "string", "pattern": "^(a+)+$"},
    "states": {"type": "string", "pattern": "^[\\s\\S]*([a-z].{200}){3}$"},
    "long pattern": {"type": "string", "pattern": "(a|b)" * 1000},
    "string": {"type": "string", "maxLength": 10**12},
    "array": {"type": "array", "items": {}, "minItems": 10**9, "maxItems": 10**9},
    "number": {"type": "integer", "maximum": 10**400, "multipleOf": 10**9 + 7},
    "deep": nested(49),
    "deeper": nested(4000),
    "doubling": doubling(14),
    "chain": chain(800),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_taken_or_refused_in_time(tokenizer: Any, name: str) -> None:
    problem = f"{WHERE} is taken"
    with at_most(4.0):
        try:
            one = constraint.json_schema(HOSTILE[name], tokenizer)
            for token in tokenizer.encode('"aaaa'):
                if not one.mask()[token]:
                    break
                one.advance(token)
        except InvalidRequestError as error:
            problem = str(error)
    assert problem.startswith(WHERE)
    assert len(problem) < 1000
    assert "\n" not in problem


def test_what_becomes_too_complex_on_the_way_is_a_typed_error(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # states that only a large vocabulary reaches soon
    monkeypatch.setitem(matcher._LIMITS, "max_lexer_states", 400)
    schema = {"type": "string", "pattern": r"^secret[\s\S]*([a-z].{200}){3}$"}
    one = constraint.json_schema(schema, tokenizer)

    def write(text: str) -> None:
        for token in tokenizer.encode(text):
            assert one.mask()[token]
            one.advance(token)

    write('"secret')
    with pytest.raises(UnsupportedError, match="too complex to follow") as caught:
        write("ab" * 300)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    # it stays an error, never a free answer
    for ask in (one.mask, one.only, lambda: one.advance(97), lambda: one.forced(4)):
        with pytest.raises(UnsupportedError, match="too complex"):
            ask()


@settings(max_examples=100)
@given(st.text("ab(){}[]^$\\,0123456789|*+?", max_size=30))
def test_atoms_of_any_text_are_counted(text: str) -> None:
    assert pattern_atoms(text) >= 0


@pytest.mark.parametrize(
    ("pattern", "atoms"),
    [("", 0), ("abc", 3), ("a{10}", 10), ("(ab){2,5}c", 11), ("((a{9}){9}){9}", 729),
     ("[(){}]{3}x", 4), (r"\(\{a{2}", 4), ("[]a]{2}", 2), ("^a*b+$", 2), ("a{,}", 3)],
)  # fmt: skip
def test_repetitions_are_multiplied(pattern: str, atoms: int) -> None:
    assert pattern_atoms(pattern) == atoms


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "properties", "items", "anyOf", "allOf", "oneOf", "$ref", "$defs", "enum",
             "const", "required", "minItems", "pattern", "additionalProperties", "format", "not",
             "prefixItems", "a", "x-guidance"]
        )
        | st.text(max_size=3),
        inner | st.sampled_from(["object", "string", "array", "#", "#/$defs/a", ["a"]]),
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=100)
@given(schema=JSON)
def test_any_json_as_schema_is_taken_or_refused_by_its_path(tokenizer: Any, schema: Any) -> None:
    try:
        one = constraint.json_schema(schema, tokenizer)
    except InvalidRequestError as error:
        param = error.param or ""
    else:
        param = WHERE
        assert one.mask().any()
    assert param.startswith(WHERE)


def chained(n: int, wrap: Callable[[Any], Any], place: str) -> dict[str, Any]:
    """Parts that refer to one another one behind the other, the last one first."""
    parts: dict[str, Any] = {f"d{n}": {"type": "null"}}
    for i in reversed(range(n)):
        parts[f"d{i}"] = wrap({"$ref": f"#/{place}/d{i + 1}"})
    return {place: parts, "$ref": f"#/{place}/d0"}


@pytest.mark.parametrize("place", ["$defs", "elsewhere"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda ref: ref,
        lambda ref: {"anyOf": [ref, {"type": "integer"}]},
        lambda ref: {"type": "object", "properties": {"a": ref}},
    ],
)
def test_a_long_way_through_references_is_refused_before_it_ends_the_process(
    tokenizer: Any, wrap: Any, place: str
) -> None:
    constraint.json_schema(chained(10, wrap, place), tokenizer)
    for n in (1000, 2000):
        with pytest.raises(InvalidRequestError, match=f"^{WHERE}.* cannot be compiled"):
            constraint.json_schema(chained(n, wrap, place), tokenizer)


def test_parts_that_only_references_lead_to_are_checked_too(tokenizer: Any) -> None:
    again = {"type": "object", "properties": {"a": {"$ref": "#/y"}}, "required": ["a"]}
    circle = {"$ref": "#/x", "x": again, "y": {"allOf": [{"$ref": "#/x"}]}}
    with pytest.raises(InvalidRequestError, match="needs itself"):
        constraint.json_schema(circle, tokenizer)
    hidden = {"$ref": "#/x", "x": {"type": "string", "pattern": "((a{1,999}){1,999}){1,999}"}}
    with pytest.raises(InvalidRequestError, match=r"schema\.x\.pattern cannot be compiled"):
        constraint.json_schema(hidden, tokenizer)


def text_is_held(schema: dict[str, Any], value: Any, tokenizer: Any) -> bool:
    """Whether an answer of the schema may be the JSON text of this value, and end behind it."""
    one = constraint.json_schema(schema, tokenizer)
    ids = tokenizer.encode(json.dumps(value, ensure_ascii=False))
    if refused_at(one, ids) < len(ids):
        return False
    return bool(one.mask()[list(tokenizer.eos_ids)].all())


DENIED = [
    (r'^[^"]+$', ["a", "\\", "\n", "é"], ['"', 'a"']),
    (r"^[^\\]+$", ["a", '"', "/"], ["\\", "a\\"]),
    (r"^[^/\\]+$", ["a b", '"'], ["a\\b", "a/b"]),
    (r'^[^]"]$', ["[", "a"], ["]", '"']),
    (r'^[^-"]$', ["a", "\t"], ["-", '"']),
    (r'^\[[^"\]]\]$', ["[a]"], ['["]', "[]]"]),
    (r'[^"]', ['a"'], ['"', '""']),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), DENIED)
def test_what_a_class_denies_is_not_written_as_an_escape_either(
    tokenizer: Any, pattern: str, good: list[str], bad: list[str]
) -> None:
    for schema in (
        {"type": "string", "pattern": pattern},
        {"anyOf": [{"type": "string", "pattern": pattern, "maxLength": 5}]},
        {"$ref": "#/$defs/pattern", "$defs": {"pattern": {"type": "string", "pattern": pattern}}},
    ):
        assert [text for text in good if not text_is_held(schema, text, tokenizer)] == []
        assert [text for text in bad if text_is_held(schema, text, tokenizer)] == []
    keys = {
        "type": "object",
        "patternProperties": {pattern: {"type": "null"}},
        "additionalProperties": False,
    }
    assert all(text_is_held(keys, {text: None}, tokenizer) for text in good)
    assert not any(text_is_held(keys, {text: None}, tokenizer) for text in bad)


def test_a_value_that_looks_like_a_pattern_stays_as_it_is(tokenizer: Any) -> None:
    value = {"pattern": "[^a]", "patternProperties": {"[^a]": 1}}
    schema = {
        "type": "object",
        "properties": {
            "enum": {"type": "string", "pattern": '^[^"]$'},
            "pattern": {"enum": [value]},
        },
        "required": ["enum", "pattern"],
        "additionalProperties": False,
    }
    assert text_is_held(schema, {"enum": "x", "pattern": value}, tokenizer)
    assert not text_is_held(schema, {"enum": '"', "pattern": value}, tokenizer)


@given(st.text(st.sampled_from('[]^-\\"a(|)'), max_size=12))
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
def test_a_pattern_is_as_valid_as_it_was(tokenizer: Any, pattern: str) -> None:
    def refused(text: str) -> bool:
        library = matcher.library()
        schema = json.dumps({"type": "string", "pattern": text})
        return bool(
            library.LLMatcher.validate_grammar(library.LLMatcher.grammar_from_json_schema(schema))
        )

    assert refused(held_pattern(pattern)) == refused(pattern)


MORE_THAN_ONE_KEY = [
    ({"minProperties": 1}, True),
    ({"minProperties": 2}, False),
    ({"minProperties": 2, "additionalProperties": {"type": "integer"}}, False),
    ({"minProperties": 2, "patternProperties": {"a": {}}, "additionalProperties": False}, False),
    ({"minProperties": 2, "properties": {"a": {}}, "required": ["a"]}, True),
    ({"minProperties": 3, "properties": {"a": {}}, "required": ["a"]}, False),
    ({"minProperties": 2, "required": ["a", "b"]}, True),
]


@pytest.mark.parametrize(("words", "held"), MORE_THAN_ONE_KEY)
def test_a_key_written_twice_is_not_two(tokenizer: Any, words: Any, held: bool) -> None:
    schema = {"type": "object", "properties": {"o": {"type": "object", **words}}}
    if held:
        assert constraint.json_schema(schema, tokenizer).notes == ()
        return
    with pytest.raises(InvalidRequestError) as caught:
        constraint.json_schema(schema, tokenizer)
    assert caught.value.param == f"{WHERE}.properties.o.minProperties"
    loose = constraint.constraint_of(
        tokenizer,
        vocab_size=tokenizer.vocab_size,
        response_format={"type": "json_schema", "json_schema": {"schema": schema, "strict": False}},
    )
    assert any("minProperties is not held" in note for note in loose.notes)  # type: ignore[union-attr]
