from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.chat.tools.machine import Broken
from agentspec.chat.tools.python_literal import from_python

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=6),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(VALUES)
def test_what_repr_writes_is_read(value: Any) -> None:
    text = from_python(repr(value))
    assert text is not None
    assert json.loads(text) == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(1, 2)", [1, 2]),
        ("()", []),
        ("[1, 2,]", [1, 2]),
        ("{1: 'a', 'b': (), None: 2,}", {"1": "a", "b": [], "null": 2}),
        ("0x1f", 31),
        ("1_000", 1000),
        (".5", 0.5),
        ("+3", 3),
        ("1.", 1.0),
        ("true", True),
        ("'a\\\nb'", "ab"),
        (r"'\x41\u00e9\U0001F600\t\q\''", "Aé\U0001f600\t\\q'"),
        (r"'\ud83d\ude00'", "\U0001f600"),
        (r"'\xZ1'", "\\xZ1"),
        ('"""a "b" ""c\n"""', 'a "b" ""c\n'),
        ("''", ""),
        ('""""""', ""),
        ("{}", {}),
        ("[[], {}]", [[], {}]),
    ],
)
def test_literals(text: str, value: Any) -> None:
    got = from_python(text)
    assert got is not None
    assert json.loads(got) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "f()", "[1", "1]", "[1 2]", "[,]", "{1}", "{1:}", "{:1}", "{1, 2}", "'a", '"""a""',
        "[1}", "(1]x", "nan", "inf", "1e999", "1+1", "--1", "{[1]: 2}", "9" * 6000,
        "0x" + "f" * 4999, "__import__('os')", "lambda: 1",
        "[x for x in y]", "f'{a}'", "{**a}", "1 # a", "1;2",
    ],
)  # fmt: skip
def test_what_is_no_literal(text: str) -> None:
    assert from_python(text) is None


def test_nesting_has_an_end() -> None:
    assert from_python("[" * 100 + "]" * 100) == "[" * 100 + "]" * 100
    with pytest.raises(Broken, match="too_deep"):
        from_python("[" * 101 + "]" * 101)


@given(
    st.lists(st.sampled_from([*"[](){},:'\"\\ \n1a-.xu", "True", '"""']), max_size=16).map("".join)
)
def test_any_text_is_json_or_nothing(text: str) -> None:
    value = from_python(text)
    if value is not None:
        json.loads(value)
