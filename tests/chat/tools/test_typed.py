from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.chat.tools.machine import Broken
from agentspec.chat.tools.typed import allowed_types, property_schema, value_text

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
BOOLEAN, ARRAY, OBJECT = {"type": "boolean"}, {"type": "array"}, {"type": "object"}
MAYBE = {"type": ["string", "null"]}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        # a string is its text, whatever it looks like
        ("007", STRING, '"007"'),
        ("true", STRING, '"true"'),
        ("null", STRING, '"null"'),
        ('{"a": 1}', STRING, '"{\\"a\\": 1}"'),
        (" a\n", STRING, '" a\\n"'),
        ("5", {"type": ["integer", "string"]}, '"5"'),
        ("null", MAYBE, "null"),
        ("None", MAYBE, "null"),
        ("nothing", MAYBE, '"nothing"'),
        # numbers keep their digits
        (" 12\n", INTEGER, "12"),
        ("12345678901234567890123", INTEGER, "12345678901234567890123"),
        ("3.0", INTEGER, "3"),
        ("9007199254740993.0", INTEGER, "9007199254740993"),
        ("1e3", INTEGER, "1000"),
        ("3.5", INTEGER, '"3.5"'),
        ("1.10", NUMBER, "1.10"),
        ("-7", NUMBER, "-7"),
        ("0x10", NUMBER, '"0x10"'),
        ("1_000", INTEGER, '"1_000"'),
        ("NaN", NUMBER, '"NaN"'),
        ("-Infinity", NUMBER, '"-Infinity"'),
        ("9" * 5000, INTEGER, f'"{"9" * 5000}"'),
        ("ten", INTEGER, '"ten"'),
        ("True", BOOLEAN, "true"),
        ("false", BOOLEAN, "false"),
        ("yes", BOOLEAN, '"yes"'),
        ("null", INTEGER, '"null"'),
        ("null", {"type": ["integer", "null"]}, "null"),
        # lists and objects, also as Python writes them
        ('["a", 1]', ARRAY, '["a", 1]'),
        ('{"a": {"b": []}}', OBJECT, '{"a": {"b": []}}'),
        ("{'a': True, 'b': None}", OBJECT, '{"a": true, "b": null}'),
        ('{"a": "x\ny"}', OBJECT, '{"a": "x\\ny"}'),
        ("[1, 2", ARRAY, '"[1, 2"'),
        ("[]", OBJECT, '"[]"'),
        # without a type
        ("5", {}, "5"),
        ("false", None, "false"),
        ("[1]", {}, "[1]"),
        ("[x]", {}, '"[x]"'),
        ("{'a': 1}", {}, "\"{'a': 1}\""),
        ('"quoted"', {}, '"\\"quoted\\""'),
        ("5", {"enum": ["5", "6"]}, '"5"'),
        ("5", {"enum": [5, 6]}, "5"),
        ("5", {"const": "5"}, '"5"'),
        ("", INTEGER, '""'),
    ],
)
def test_values_follow_the_schema(text: str, schema: Any, value: str) -> None:
    assert value_text(text, schema) == value


def test_schemas_in_other_words() -> None:
    root = {
        "$defs": {"a/b": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}, "n": INTEGER},
        "properties": {"x": {"$ref": "#/$defs/a~1b"}},
    }
    schema = property_schema(root, "x")
    assert allowed_types(schema, root) == {"integer", "null"}
    assert value_text("5", schema, root) == "5"
    assert value_text("null", schema, root) == "null"


LOOP: dict[str, Any] = {"$ref": "#"}
ENDLESS: dict[str, Any] = {}
ENDLESS["anyOf"] = [ENDLESS, ENDLESS]


@pytest.mark.parametrize(
    "schema",
    [None, 3, [], "string", {"type": 3}, {"type": [3, None]}, {"enum": 3}, {"anyOf": {}}, ENDLESS,
     {"$ref": 3}, {"$ref": "http://example.org/x"}, {"$ref": "#/no/where"}, True, LOOP],
)  # fmt: skip
def test_a_schema_of_any_shape(schema: Any) -> None:
    assert json.loads(value_text("text", schema, LOOP)) == "text"


def test_nesting_has_an_end_and_strings_do_not_count() -> None:
    with pytest.raises(Broken, match="too_deep"):
        value_text("[" * 101 + "]" * 101, ARRAY)
    inside = json.dumps(["[" * 500 + '\\"'])
    assert value_text(inside, ARRAY) == inside


SCHEMAS = st.sampled_from([STRING, INTEGER, NUMBER, BOOLEAN, ARRAY, OBJECT, MAYBE, {}, None])


@given(st.text(st.characters(codec="utf-8"), max_size=12), SCHEMAS)
def test_any_text_becomes_json(text: str, schema: Any) -> None:
    value = json.loads(value_text(text, schema))
    if schema == STRING:
        assert value == text


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3), max_leaves=5))  # fmt: skip
def test_json_is_read_as_what_it_is(value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    kind = {type(None): "null", bool: "boolean", int: "integer", str: "string", list: "array"}
    assert json.loads(value_text(text, {"type": kind[type(value)]})) == value
