"""The fixed parts of calls, from the format and from schemas of any shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.context.index import SEPARATOR
from agentspec.context.skeleton import Skeleton, parts
from agentspec.errors import InvalidRequestError
from agentspec.testing.scripted import ScriptedTokenizer
from agentspec.types import HERMES, CallShape

SHAPE = CallShape("<", ":", ">")


class Tokenizer(ScriptedTokenizer):
    """Says no to what is no valid Unicode, as real ones do."""

    def __init__(self) -> None:
        super().__init__(262, special={258: "<tool_call>", 259: "</tool_call>"})

    def encode_special(self, text: str) -> list[int]:
        try:
            return super().encode_special(text)
        except UnicodeEncodeError as error:
            raise InvalidRequestError(str(error)) from None


def tool(name: str, required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required is not None:
        parameters["required"] = required
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


STRING, NUMBER = {"type": "string"}, {"type": "integer"}
GENERAL = ["<", ':{"', '"}>']


def of(*tools: Any) -> list[str]:
    made = list(parts(SHAPE, tools))
    assert made[:3] == GENERAL
    return made[3:]


def test_keys_come_required_first_then_as_in_the_schema() -> None:
    edit = tool("edit", ["path", "gone"], new=STRING, old=STRING, path=STRING)
    assert of(edit) == ['<edit:{"path": "', '", "new": "', '", "old": "']


def test_numbers_and_values_that_are_few() -> None:
    run = tool("run", n=NUMBER, all={"type": "boolean"}, mode={"enum": ["fast", 2, None]})
    assert of(run) == [
        '<run:{"n": ', ', "all": true, ', ', "all": false, ', ', "mode": "fast"}>',
        ', "mode": 2}>', ', "mode": null}>',
    ]  # fmt: skip
    # what follows a value that is written out needs no quote
    assert of(tool("t", a={"enum": ["x"]}, b=STRING)) == ['<t:{"a": "x", ', ', "b": "']


def test_a_tool_without_arguments_is_one_part() -> None:
    assert of(tool("now")) == ["<now:{}>"]
    assert of({"function": {"name": "now"}}, {"name": "flat", "parameters": {}}) == [
        "<now:{}>", "<flat:{}>",
    ]  # fmt: skip


def test_a_call_is_spelt_by_its_parts() -> None:
    """The parts of a format are those of a call that a model writes."""
    made = list(parts(HERMES, [tool("read", path=STRING, all={"type": "boolean"})]))
    call = json.dumps({"name": "read", "arguments": {"path": "a", "all": True}})
    text = f"\n<tool_call>\n{call}\n</tool_call>"
    opening, middle, closing = made[3], made[4], made[0]
    assert text.startswith(closing)
    assert text.startswith(opening)
    assert text.endswith(middle)
    assert text == f"{opening}a{middle}"
    call = json.dumps({"name": "now", "arguments": {}})
    assert list(parts(HERMES, [tool("now")]))[3] == f"\n<tool_call>\n{call}\n</tool_call>"


XML = CallShape("<call>", ">", "</call>", between="~", style="xml", argument=("<p=", ">", "</p>"))
PYTHONIC = CallShape(
    "", "(", ")", between=", ", before="[", after="]", style="pythonic",
    argument=("", "=", ""), argument_between=", ",
)  # fmt: skip


def test_calls_of_other_styles_are_spelt_by_their_parts() -> None:
    read = tool("read", path=STRING, all={"type": "boolean"}, mode={"enum": ["a b", 2]})
    assert list(parts(XML, [read]))[1:] == [
        "~<call>read><p=path>",
        "</p><p=all>true</p>", "</p><p=all>false</p>",
        "</p><p=mode>a b</p></call>", "</p><p=mode>2</p></call>",
    ]  # fmt: skip
    assert list(parts(XML, [tool("now"), tool("say", text=STRING)]))[1:] == [
        "~<call>now></call>", "~<call>say><p=text>", "</p></call>",
    ]  # fmt: skip
    assert list(parts(PYTHONIC, [read]))[2:] == [
        ', read(path="',
        '", all=True, ', '", all=False, ', ', mode="a b")]', ", mode=2)]",
    ]  # fmt: skip
    assert list(parts(PYTHONIC, [tool("say", n=NUMBER, text=STRING)]))[1:] == [
        "[", ', say(n=', ', text="', '")]',
    ]  # fmt: skip


def test_the_index_holds_every_part_and_the_marks_as_one_id() -> None:
    skeleton = Skeleton(Tokenizer())
    skeleton.follow([tool("read", path=STRING)])
    ids = skeleton.index.tokens.tolist()
    assert ids.count(SEPARATOR) == 4
    assert ids.count(258) == 2
    assert ids.count(259) == 1
    place, length = skeleton.index.places([*b'{"name": "re'])[0]
    assert length == 12
    assert bytes(ids[place : place + 2]) == b"ad"


def test_only_other_tools_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    skeleton = Skeleton(Tokenizer())
    read, edit = tool("read", path=STRING), tool("edit", path=STRING, old=STRING)
    skeleton.follow([read])
    first = skeleton.index.tokens.tolist()
    with monkeypatch.context() as patch:
        patch.setattr(skeleton.index, "load", lambda run: pytest.fail("read again"))
        skeleton.follow([json.loads(json.dumps(read))])
    skeleton.follow([edit])
    assert skeleton.index.tokens.tolist() != first
    skeleton.follow([read])
    assert skeleton.index.tokens.tolist() == first
    skeleton.follow([])
    assert skeleton.index.tokens.tolist().count(SEPARATOR) == 3


def test_the_order_of_keys_is_part_of_the_tools() -> None:
    """A model writes its arguments in the order of the schema it was shown."""
    skeleton = Skeleton(Tokenizer())
    skeleton.follow([tool("t", a=STRING, b=STRING)])
    first = skeleton.index.tokens.tolist()
    skeleton.follow([tool("t", b=STRING, a=STRING)])
    assert skeleton.index.tokens.tolist() != first


def test_a_name_that_is_no_unicode_costs_its_own_parts_only() -> None:
    skeleton = Skeleton(Tokenizer())
    skeleton.follow([tool("\ud800", path=STRING), tool("good", path=STRING)])
    assert bytes(t for t in skeleton.index.tokens.tolist() if 0 <= t < 256).count(b"good") == 1


def test_there_is_an_end_to_values_and_to_tools() -> None:
    many = tool("t", a={"enum": list(range(10_000))})
    assert len(of(many)) == 64
    assert len(of(*[tool(f"t{n}") for n in range(10_000)])) == 256
    long = "x" * 300
    assert of(tool("t", a={"enum": ["ab", long]})) == ['<t:{"a": "ab"}>']
    names = [f"k{n}" for n in range(20_000)]
    skeleton = Skeleton(Tokenizer())
    skeleton.follow([tool("t", names, **{name: {"enum": [1, 2]} for name in names})])
    assert skeleton.index.tokens.tolist().count(SEPARATOR) == 8192


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "hostile",
    [
        None, 3, "tool", [], {}, {"function": 7}, {"name": 7}, {"function": None, "name": "x"},
        {"name": "x", "parameters": []},
        {"name": "x", "parameters": {"properties": [1]}},
        {"name": "x", "parameters": {"properties": {"a": None, 3: {}}, "required": "a"}},
        {"name": "x", "parameters": {"properties": {"a": {}}, "required": [["a"], None, 3]}},
        {"name": "x", "parameters": {"properties": {"\udfff": {"enum": ["\ud800"]}}}},
        {"name": "x", "parameters": {"properties": {"a": {"enum": ENDLESS}}}},
        {"name": "x", "parameters": {"properties": {"a": {"enum": [DEEP]}}}},
        {"name": "x", "parameters": {"properties": {"a": {"enum": [{(1, 2): 3}]}}}},
        {"name": "x", "parameters": {"properties": {"a": {"enum": 5, "type": ["string"]}}}},
        {"name": "x", 5: "mixed keys"},
    ],
)  # fmt: skip
def test_a_schema_of_any_shape_leaves_the_others(hostile: Any) -> None:
    skeleton = Skeleton(Tokenizer())
    skeleton.follow([hostile, tool("good", path=STRING)])
    assert skeleton.index.places([*b'{"name": "good'])[0][1] == 14


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(st.characters(), max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "function", "parameters", "properties", "required", "enum",
                             "type", "a"]), inner, max_size=4,
        ),
    ),
    max_leaves=12,
)  # fmt: skip
SCHEMA = st.fixed_dictionaries({"name": st.one_of(JSON, st.just("t")), "parameters": JSON})


@settings(max_examples=150)
@given(st.lists(st.one_of(JSON, SCHEMA, st.builds(lambda s: {"function": s}, SCHEMA)), max_size=4))
def test_no_tools_ever_raise(tools: list[Any]) -> None:
    skeleton = Skeleton(Tokenizer())
    skeleton.follow(tools)
    assert skeleton.index.tokens.tolist().count(SEPARATOR) >= 3


def test_tools_that_broke_off_are_taken_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    skeleton = Skeleton(ScriptedTokenizer(260))
    tools = [{"name": "look"}]

    def interrupted(text: str) -> list[int]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(skeleton._tokenizer, "encode_special", interrupted)
        with pytest.raises(KeyboardInterrupt):
            skeleton.follow(tools)
    skeleton.follow(tools)
    assert len(skeleton.index)
