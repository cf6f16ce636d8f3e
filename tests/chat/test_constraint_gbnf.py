"""llama.cpp's grammars: the same texts are allowed, or fewer, and what is no grammar is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.chat import constraint
from agentspec.chat.constraint.gbnf import gbnf_to_lark, is_gbnf
from agentspec.errors import InvalidRequestError

pytest.importorskip("llguidance")

JSON = r"""
# JSON as llama.cpp ships it
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer: Callable[..., Any]) -> Any:
    return make_tokenizer(["<|im_end|>"], "<|im_end|>")


def takes(tokenizer: Any, grammar: str, text: str) -> bool:
    one = constraint.grammar(grammar, tokenizer)
    ids = tokenizer.encode(text)
    if one.valid_prefix(ids) < len(ids):
        return False
    for token in ids:
        one.advance(token)
    return bool(one.mask()[list(tokenizer.eos_ids)].all())


def test_which_is_which() -> None:
    assert is_gbnf('root ::= "a"')
    assert is_gbnf('# c\n  my-rule::= "a"\nroot ::= my-rule')
    assert not is_gbnf('start: "a ::= b"')
    assert not is_gbnf('start: a\na: "root" "::="')


@pytest.mark.parametrize(
    ("text", "fits"),
    [('{"a": [1, -2.5e3, "x\\u00e9\\n", true, {}]}', True), ("{}", True), ('{"a":}', False),
     ('{"é😀": null}', True), ("[1]", False), ('{"a": 01}', False), ('{"a": "\x01"}', False),
     ('{\n  "a": 1\n}', True)],
)  # fmt: skip
def test_json(tokenizer: Any, text: str, fits: bool) -> None:
    assert takes(tokenizer, JSON, text) == fits


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        (r'root ::= "\u0041\x42\U0001F600"', ["AB😀"], ["AB", "A"]),
        (r'root ::= [\]\[\-^a]+', ["][-^a"], ["b", ""]),
        (r'root ::= [^^]', ["a", "é"], ["^"]),
        ('root ::= [a-c&&b~]', ["a", "&", "~"], ["d"]),
        ('root ::= "x" . "y"', ["x\ny", "xéy"], ["xy"]),
        ('root ::= "a/b" [/]', ["a/b/"], ["a/b"]),
        ('root ::= my-rule | other\nmy-rule ::= "a"{2,3}\nother ::= "b"?', ["aa", "aaa", "", "b"],
         ["a", "bb"]),
        ('root ::= ("a" |\n "b")+ # end', ["abba"], ["c"]),
        ('root ::= "#" [#] ".\\""', ['##."'], ["#"]),
        (r'root ::= "\\" "\"" "\t"', ['\\"\t'], ["\\"]),
    ],
)  # fmt: skip
def test_what_it_means(tokenizer: Any, grammar: str, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not takes(tokenizer, grammar, text)] == []
    assert [text for text in no if takes(tokenizer, grammar, text)] == []


@pytest.mark.parametrize(
    "bad",
    ['root ::= (', 'root ::= "a', "root ::= [a", "root ::= other", 'other ::= "a"', "root ::=\x00",
     r'root ::= "\q"', r'root ::= "\x4"', r'root ::= "\uD800"', "root ::= " + "(" * 5000,
     'root ::= "a"{3', "root ::= root", 'root ::= <[1]> "a"', "root ::= " + "a " * 200_000],
)  # fmt: skip
def test_what_is_no_grammar_is_refused(tokenizer: Any, bad: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^grammar") as caught:
        constraint.grammar(bad, tokenizer)
    assert caught.value.param == "grammar"
    assert "\n" not in str(caught.value)


def chain(n: int, form: str) -> str:
    return "\n".join(form.format(i, i + 1) for i in range(n))


def references(n: int) -> str:
    defs = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**defs, f"d{n}": {}}})


@pytest.mark.parametrize(
    "deep",
    [
        f'start: r0\n{chain(20_000, "r{}: r{}")}\nr20000: "a"',
        f'start: R0\n{chain(20_000, "R{}: R{} | /b/")}\nR20000: "a"',
        f'root ::= r0\n{chain(20_000, "r{} ::= r{}")}\nr20000 ::= "a"',
        f"start: %json {references(4000)}",
        "start: " + "(" * 100_000 + '"a"' + ")" * 100_000,
        "start: /" + "(" * 100_000 + "a" + ")" * 100_000 + "/",
        "start: %json " + '{"anyOf":[' * 20_000 + "{}" + "]}" * 20_000,
    ],
    ids=["rules", "terminals", "gbnf", "references", "groups", "regex", "json"],
)
def test_depth_is_refused_before_it_ends_the_process(tokenizer: Any, deep: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^grammar"):
        constraint.grammar(deep, tokenizer)


def test_schemas_inside_a_grammar_are_checked_too(tokenizer: Any) -> None:
    good = 'start: "x: " %json {"type": "object", "properties": {"%json": {"const": 1}}} "!"'
    assert takes(tokenizer, good, 'x: {"%json": 1}!')
    with pytest.raises(InvalidRequestError, match=r"grammar\.%json.*needs itself"):
        constraint.grammar('start: %json {"$ref": "#"}', tokenizer)


@settings(max_examples=200)
@given(st.text('root:= "ab[]()|*+?{}1,.\\xun#-^\n', max_size=40))
def test_any_text_is_taken_or_refused(text: str) -> None:
    with suppress(InvalidRequestError):
        assert gbnf_to_lark("root ::= " + text).startswith("%llguidance")
