"""What a request asks of its answer's form, from the request to the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from agentspec.chat.tools.formats import FORMATS
from agentspec.errors import InvalidRequestError, UnsupportedError

pytest.importorskip("llguidance")

HI = [{"role": "user", "content": "hi"}]
PATH = {
    "type": "object",
    "properties": {"path": {"enum": ["a.py", "b.py"]}},
    "required": ["path"],
    "additionalProperties": False,
}
OBJECT = '{"name": "read", "arguments": {"path": "a.py"}}'
CALL = f"<tool_call>\n{OBJECT}\n</tool_call>"
FORM = {"type": "json_schema", "json_schema": {"name": "p", "schema": PATH, "strict": True}}
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


def tool(name: str = "read", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PATH, **more}}


def called(answer: Any) -> list[tuple[str, Any]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in answer.tool_calls]


SPECULATE = pytest.mark.parametrize("k", [0, 3, None], ids=["plain", "k3", "free"])


@SPECULATE
@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (f"First. {CALL}\n{CALL} more", "First. "),
        (f"{CALL}\nand this", ""),
        (f"{CALL}\n\n{CALL.replace('a.py', 'b.py')}", ""),
        (f"{OBJECT}\n{OBJECT}", ""),
        (CALL, ""),
    ],
)
def test_one_call_ends_the_answer_without_parallel_calls(
    chat: Any, reply: str, text: str, k: int | None
) -> None:
    engine = chat.engine(chat.writing(reply))
    options = {
        "tools": [tool()],
        "context": reply,
        "speculation": {"k": k} if k is not None else {},
    }
    answer = engine.complete(HI, parallel_tool_calls=False, **options)
    assert called(answer) == [("read", {"path": "a.py"})]
    assert answer.text.strip() == text.strip()
    assert answer.choices[0].finish_reason == "tool_calls"
    streamed = list(engine.stream(HI, parallel_tool_calls=False, **options))
    indices = {c.index for part in streamed for d in part.choices for c in d.delta.tool_calls or ()}
    assert indices == {0}
    both = engine.complete(HI, **options)
    assert len(called(both)) == reply.count('"name"')
    assert engine.complete(HI, tools=[tool()], tool_choice="none").tool_calls == []


@SPECULATE
def test_required_calls_are_one_or_several(chat: Any, k: int | None) -> None:
    engine = chat.engine(chat.writing(f"{CALL}\n{CALL.replace('a.py', 'b.py')}"))
    speculation = {"k": k} if k is not None else {}
    options: dict[str, Any] = {"tools": [tool(), tool("other")], "speculation": speculation}
    several = engine.complete(HI, tool_choice="required", **options)
    assert called(several) == [("read", {"path": "a.py"}), ("read", {"path": "b.py"})]
    one = engine.complete(HI, tool_choice="required", parallel_tool_calls=False, **options)
    assert called(one) == [("read", {"path": "a.py"})]
    named = {"type": "function", "function": {"name": "other"}}
    other = engine.complete(HI, tool_choice=named, **options)
    assert [name for name, _ in called(other)] == ["other"]
    if k is None:
        assert other.speculation.sources["forced"].accepted > 20
        assert other.speculation.passes < 10
    if k == 0:
        assert "forced" not in other.speculation.sources
    if k:
        assert other.speculation.acceptance_length <= k + 1


@SPECULATE
def test_strict_tools_are_held_where_a_call_is_free_to_come(chat: Any, k: int | None) -> None:
    wrong = CALL.replace("a.py", "z.py")
    engine = chat.engine(chat.writing(f"Look: {wrong}"))
    options: dict[str, Any] = {"context": wrong, "speculation": {"k": k} if k is not None else {}}
    loose = engine.complete(HI, tools=[tool()], **options)
    assert called(loose) == [("read", {"path": "z.py"})]
    strict = engine.complete(HI, tools=[tool(strict=True), tool("other")], **options)
    assert strict.text.strip() == "Look:"
    ((name, arguments),) = called(strict)
    assert name == "read"
    assert arguments["path"] in ("a.py", "b.py")
    # of the other tool nothing was asked
    free = chat.engine(chat.writing(wrong.replace("read", "other")))
    answer = free.complete(HI, tools=[tool(strict=True), tool("other")], **options)
    assert called(answer) == [("other", {"path": "z.py"})]


def test_with_tools_a_response_format_leaves_the_choice(chat: Any) -> None:
    options: dict[str, Any] = {"tools": [tool()], "response_format": FORM}
    calls = chat.engine(chat.writing(CALL)).complete(HI, **options)
    assert called(calls) == [("read", {"path": "a.py"})]
    answer = chat.engine(chat.writing('{"path": "b.py"}')).complete(HI, **options)
    assert json.loads(answer.text) == {"path": "b.py"}
    assert answer.tool_calls == []
    never = chat.engine(chat.writing(CALL)).complete(HI, tool_choice="none", **options)
    assert set(json.loads(never.text)) == {"path"}


def test_notes_say_what_a_loose_schema_does_not_hold(chat: Any) -> None:
    schema = {**PATH, "propertyNames": {"minLength": 1}}
    form = {"type": "json_schema", "json_schema": {"schema": schema, "strict": False}}
    answer = chat.engine(chat.writing("x")).complete(HI, response_format=form)
    assert any("propertyNames" in note for note in answer.speculation.notes)
    with pytest.raises(InvalidRequestError, match="propertyNames"):
        chat.engine(chat.writing("x")).complete(
            HI, response_format={"type": "json_schema", "json_schema": {"schema": schema}}
        )


def test_gbnf(chat: Any) -> None:
    engine = chat.engine(chat.writing("maybe"))
    assert engine.complete(HI, grammar='root ::= "yes" | "no"').text in ("yes", "no")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"grammar": ""}, "grammar"),
        ({"grammar": 'start: "a"', "response_format": FORM}, "grammar"),
        ({"grammar": 'start: "a"', "tools": [tool()], "tool_choice": "required"}, "grammar"),
        (
            {"response_format": {**FORM, "json_schema": {"schema": {}, "name": 1}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {**FORM, "json_schema": {"schema": {}, "strict": "x"}}},
            "response_format.json_schema.strict",
        ),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(chat: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat.engine(chat.writing("x")).complete(HI, **options)
    assert caught.value.param == param


@pytest.mark.parametrize("family", FORMATS)
def test_every_family_calls_in_its_own_form(chat: Any, family: str) -> None:
    leaning = chat.hashed(4)

    def law(cached: Sequence[int]) -> Any:
        logits = leaning(cached).copy()
        logits[chat.eos] += 9.0
        return logits

    engine = chat.engine(law, call_format=FORMATS[family]())
    named = {"type": "function", "function": {"name": "read"}}
    answer = engine.complete(HI, tools=[tool(), tool("other")], tool_choice=named)
    ((name, arguments),) = called(answer)
    assert (name, set(arguments)) == ("read", {"path"})
    assert not answer.text.strip()
    assert answer.choices[0].finish_reason == "tool_calls"
    if family == "harmony":
        with pytest.raises(UnsupportedError, match="tool_choice"):
            engine.complete(HI, tools=[tool(strict=True)])


def test_a_raw_prompt_is_held_at_once(chat: Any) -> None:
    from agentspec.request import parse_text_request

    engine = chat.engine(chat.writing("x"), call_format=FORMATS["harmony"]())
    answer, events = engine.begin(parse_text_request("a", grammar='start: "yes"'))
    for event in events:
        answer.add(event)
    assert answer.completion().text == "yes"


# -- thinking --------------------------------------------------------------------------------------


def thinking(chat: Any, law: Any, opening: str) -> Any:
    from agentspec.api import Engine
    from agentspec.chat.template import load_template

    source = THINKING + opening + "{# <think> #}"
    template = load_template(source, bos="", eos=chat.marks[chat.eos])
    return Engine(chat.backend(law), template=template)


@SPECULATE
@pytest.mark.parametrize("opened", [True, False])
def test_the_grammar_begins_behind_the_thinking(chat: Any, opened: bool, k: int | None) -> None:
    thoughts = 'Hm, {"path": "c"}: no.</think>\n\n'
    reply = f'{thoughts}{{"path": "z.py"}}'
    opening = "<think>\n" if opened else ""
    # the law counts from the role on
    engine = thinking(chat, chat.writing(opening + reply), opening)
    options: dict[str, Any] = {
        "context": reply, "response_format": FORM, "speculation": {"k": k} if k is not None else {},
    }  # fmt: skip
    answer = engine.complete(HI, **options)
    assert json.loads(answer.text)["path"] in ("a.py", "b.py")
    assert answer.choices[0].finish_reason == "stop"
    message = answer.choices[0].message
    if opened:
        assert message.reasoning_content == 'Hm, {"path": "c"}: no.'
        calls = engine.complete(HI, tools=[tool()], tool_choice="required", context=reply)
        assert [name for name, _ in called(calls)] == ["read"]
        assert calls.choices[0].message.reasoning_content == message.reasoning_content
    else:
        # the vocabulary has no token that opens it, so the grammar holds at once
        assert message.reasoning_content is None
