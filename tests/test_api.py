"""One answer, four ways to get it: complete, stream, acomplete, astream agree."""

from __future__ import annotations

import asyncio
import json
import random
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentspec.shared as shared
from agentspec.backends.base import Rollback
from agentspec.control.cost import CostCurve
from agentspec.control.rows import RowClass
from agentspec.errors import AgentspecError, CancelledError, InvalidRequestError
from agentspec.testing.scripted import ScriptedProposer
from agentspec.wire import Chunk, Completion

HI = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "read",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["path"],
        },
    },
}
CALL = '{"name": "read", "arguments": {"path": "a.py"}}'


def joined(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """A stream put together the way a client does it."""
    out: dict[str, Any] = {"text": "", "thinking": "", "calls": {}, "logprobs": [], "finish": None}
    for chunk in chunks:
        for choice in chunk.choices:
            out["text"] += choice.delta.content or ""
            out["thinking"] += choice.delta.reasoning_content or ""
            for call in choice.delta.tool_calls or ():
                known = out["calls"].setdefault(call.index, ["", ""])
                assert call.function is not None
                known[0] += call.function.name or ""
                known[1] += call.function.arguments or ""
            if choice.logprobs:
                out["logprobs"] += [e.model_dump() for e in choice.logprobs.content or ()]
            out["finish"] = choice.finish_reason or out["finish"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    return {**out, "usage": chunks[-1].usage.model_dump()}


def whole(answer: Completion) -> dict[str, Any]:
    choice = answer.choices[0]
    calls = [[c.function.name, c.function.arguments] for c in answer.tool_calls]
    logprobs = choice.logprobs.content if choice.logprobs else None
    return {
        "text": answer.text,
        "thinking": choice.message.reasoning_content or "",
        "calls": dict(enumerate(calls)),
        "logprobs": [e.model_dump() for e in logprobs or ()],
        "finish": choice.finish_reason,
        "usage": answer.usage.model_dump(),
    }


def four_ways(make: Any, **options: Any) -> dict[str, Any]:
    async def collected() -> list[Chunk]:
        return [chunk async for chunk in make().astream(HI, **options)]

    answers = [
        whole(make().complete(HI, **options)),
        joined(list(make().stream(HI, **options))),
        whole(asyncio.run(make().acomplete(HI, **options))),
        joined(asyncio.run(collected())),
    ]
    assert answers[0] == answers[1] == answers[2] == answers[3]
    return answers[0]


@pytest.mark.parametrize(
    ("reply", "options", "text", "calls", "finish"),
    [
        ("Hello, wörld!", {}, "Hello, wörld!", [], "stop"),
        ("", {}, "", [], "stop"),
        ("abc abc abc abc abc", {"max_tokens": 7}, "abc abc", [], "length"),
        ("one, two, three", {"stop": "two"}, "one, ", [], "stop"),
        ("one, two, three", {"stop": [", t", "wo"]}, "one", [], "stop"),
        ("aaab", {"stop": "aab"}, "a", [], "stop"),
        ("almost sto", {"stop": "stop"}, "almost sto", [], "stop"),
        ("é" * 3, {"max_tokens": 3}, "é\ufffd", [], "length"),
        ("abc", {"stop_token_ids": [ord("c")]}, "ab", [], "stop"),
        (
            f"Sure.\n<tool_call>\n{CALL}\n</tool_call>",
            {"tools": [TOOL]},
            "Sure.",
            [["read", '{"path": "a.py"}']],
            "tool_calls",
        ),
        (
            f"```json\n{CALL}\n```",
            {"tools": [TOOL]},
            "",
            [["read", '{"path": "a.py"}']],
            "tool_calls",
        ),
        (CALL, {"tools": [TOOL]}, "", [["read", '{"path": "a.py"}']], "tool_calls"),
        (
            f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>",
            {"tools": [TOOL]},
            "",
            [["read", '{"path": "a.py"}']] * 2,
            "tool_calls",
        ),
        (f"<tool_call>{CALL[:-9]}", {"tools": [TOOL]}, f"<tool_call>{CALL[:-9]}", [], "stop"),
        (CALL, {"tools": [TOOL], "tool_choice": "none"}, CALL, [], "stop"),
        (CALL, {}, CALL, [], "stop"),
    ],
)
def test_all_ways_agree(
    chat: Any, reply: str, options: dict[str, Any], text: str, calls: list[Any], finish: str
) -> None:
    answer = four_ways(
        lambda: chat.engine(chat.writing(reply)), logprobs=True, top_logprobs=2, **options
    )
    assert (answer["text"], list(answer["calls"].values()), answer["finish"]) == (
        text,
        calls,
        finish,
    )
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert len(answer["logprobs"]) == usage["completion_tokens"]
    for entry in answer["logprobs"]:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]  # greedy


def test_thinking_is_kept_apart(chat: Any) -> None:
    def make() -> Any:
        engine = chat.engine(chat.writing("<think>hm, so</think>\n\nYes."))
        engine._template.source += "{# <think> #}"
        return engine

    answer = four_ways(make)
    assert (answer["thinking"], answer["text"]) == ("hm, so", "Yes.")


def test_usage_and_prefix_reuse(chat: Any) -> None:
    engine = chat.engine(chat.writing("abcdef"))
    first = engine.complete(HI)
    assert first.usage.prompt_tokens == len(engine.tokens) - 7
    assert first.usage.completion_tokens == 7  # the end-of-text token is one
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    known = len(engine.tokens)
    again = engine.complete(
        [*HI, {"role": "assistant", "content": "abcdef"}, {"role": "user", "content": "more"}]
    )
    # all but the end-of-text token, which was never a row of a pass
    assert again.usage.prompt_tokens_details.cached_tokens == known - 1
    assert again.speculation is not None
    assert again.speculation.generated_tokens == 7
    assert again.model == "local"


def test_predictions_count_and_context_is_used(chat: Any, tmp_path: Path) -> None:
    reply = "def area(width, height):\n    return width * height\n"
    engine = chat.engine(chat.writing(reply), cost=CostCurve.from_points({1: 1.0, 64: 1.1}))
    wrong = reply.replace("*", "+")
    answer = engine.complete(HI, prediction={"type": "content", "content": wrong})
    details = answer.usage.completion_tokens_details
    assert answer.text == reply
    assert details.accepted_prediction_tokens > 20
    assert details.rejected_prediction_tokens > 0
    assert answer.speculation.sources["predicted"].accepted == details.accepted_prediction_tokens
    file = tmp_path / "shapes.py"
    file.write_text(reply)
    answer = engine.complete(HI, context=[file])
    assert answer.text == reply
    assert answer.speculation.sources["lookup"].accepted > 20
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens == 0
    assert answer.speculation.acceptance_length > 2
    assert sum(answer.speculation.accepted_per_position) == answer.speculation.accepted


def test_nothing_is_read_for_proposers_that_are_off(chat: Any) -> None:
    engine = chat.engine(chat.writing("abc"))
    encoded: list[str] = []

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return []

    engine._encode_file = encode
    engine.complete(HI, context="some text", speculation=False)
    engine.complete(HI, context="some text", speculation={"k": 0})
    assert encoded == []
    engine.complete(HI, context="some text")
    assert encoded == ["some text"]


@pytest.mark.parametrize(
    ("loaded", "asked", "drafts"),
    [
        (True, None, True),
        (False, None, False),
        (False, {"k": 4}, False),
        (False, True, True),
        (True, False, False),
        (True, {"enabled": False}, False),
        (True, {"k": 0}, False),
        (True, {"lookup": False}, False),
    ],
)
def test_speculation_as_loaded_and_as_asked(
    chat: Any, loaded: bool, asked: Any, drafts: bool
) -> None:
    engine = chat.engine(chat.writing("abcd " * 9), speculation=loaded)
    answer = engine.complete(HI, speculation=asked)
    assert (answer.speculation.drafted > 0) == drafts
    assert answer.text == "abcd " * 9


# -- the same stream, token by token, whatever is drafted ------------------------------------------


def same_chunks(chunks: Sequence[Chunk]) -> list[Any]:
    """What a client sees of a stream, but for ids and times."""
    out: list[Any] = []
    for chunk in chunks:
        seen = [c.model_dump() for c in chunk.choices]
        for choice in seen:
            for call in choice["delta"]["tool_calls"] or ():
                call["id"] = call["id"] and "id"
        usage = chunk.usage.model_dump() if chunk.usage else {}
        usage.pop("completion_tokens_details", None)
        out.append([seen, usage])
    return out


def with_drafts(chat: Any, law: Any, seed: int, **options: Any) -> Any:
    """An engine that drafts what would come, with mistakes at random places."""
    engine = chat.engine(law, cost=CostCurve.from_points({1: 1.0, 2: 1.0}), **options)
    chance = random.Random(seed)
    truth = chat.engine(law)

    def guess(tokens: Sequence[int], most: int) -> list[int]:
        run = list(tokens)
        for _ in range(chance.randint(0, most)):
            token = int(truth.target.law(run).argmax())
            if chance.random() < 0.2:
                token = chance.randrange(chat.vocab)
            run.append(token)
        return run[len(tokens) :]

    engine._proposers = lambda request, seat: (
        [ScriptedProposer(guess)] if request.speculation.enabled is not False else []
    )
    return engine


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    k=st.integers(0, 16),
    sampled=st.booleans(),
    logprobs=st.booleans(),
    reply=st.none() | st.sampled_from([f"x\n<tool_call>{CALL}</tool_call>", "one two é three"]),
    stop=st.lists(st.sampled_from(["e", "tw", "o t", "\n", "\ufffd"]), max_size=2, unique=True),
    most=st.integers(1, 60),
)
def test_the_stream_is_the_same_with_and_without_speculation(
    chat: Any,
    seed: int,
    k: int,
    sampled: bool,
    logprobs: bool,
    reply: str | None,
    stop: list[str],
    most: int,
) -> None:
    law = chat.hashed(seed) if reply is None else chat.writing(reply)
    options: dict[str, Any] = {"max_tokens": most, "tools": [TOOL], "stop": stop or None}
    if sampled:
        options |= {"temperature": 0.8, "top_p": 0.95, "seed": seed}
    if logprobs:
        options |= {"logprobs": True, "top_logprobs": 1}
    plain = same_chunks(list(chat.engine(law).stream(HI, speculation=False, **options)))
    engine = with_drafts(chat, law, seed)
    chunks = list(engine.stream(HI, speculation={"k": k}, **options))
    assert same_chunks(chunks) == plain
    assert chunks[-1].speculation is not None
    assert not any("left out" in note for note in chunks[-1].speculation.notes)
    # and again over the cache that is there now
    assert same_chunks(list(engine.stream(HI, speculation={"k": k}, **options)))[:-1] == plain[:-1]


@pytest.mark.parametrize("rollback", list(Rollback))
@pytest.mark.parametrize("sizes", [(), (2, 4, 8)])
def test_turn_after_turn_on_every_kind_of_cache(
    chat: Any, rollback: Rollback, sizes: tuple[int, ...]
) -> None:
    law = chat.hashed(3)
    fast = chat.engine(
        chat.backend(law, rollback=rollback, n_ctx=600), rows=RowClass(sizes), chunk=7
    )
    plain = chat.engine(law)
    talk = list(HI)
    for turn in range(4):
        options = {"max_tokens": 25, "context": "".join(map(chr, range(32, 99)))}
        answer = fast.complete(talk, **options)
        expected = plain.complete(talk, max_tokens=25, speculation=False)
        assert answer.text == expected.text
        assert fast.tokens == plain.tokens
        talk += [
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": f"turn {turn}"},
        ]


def test_a_draft_model_beside_lookup(chat: Any) -> None:
    law = chat.writing("abcdefgh abcdefgh xyz")
    draft = chat.backend(law)
    engine = chat.engine(law, draft=draft)
    answer = engine.complete(HI)
    assert answer.text == "abcdefgh abcdefgh xyz"
    assert {"draft_model", "lookup"} & set(answer.speculation.sources)
    assert answer.speculation.acceptance_length > 2
    off = engine.complete(HI, speculation={"draft_model": False, "lookup": False})
    assert off.speculation.drafted == 0
    engine.close()
    assert draft.closed
    assert engine.target.closed


# -- constraints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_from_a_model_that_would_not(chat: Any, k: int, temperature: float) -> None:
    pytest.importorskip("llguidance")
    engine = chat.engine(chat.hashed(1))
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    options: dict[str, Any] = {
        "temperature": temperature,
        "seed": 5,
        "speculation": {"k": k},
        "context": '{"a": "x", "b": true}',
    }
    answer = engine.complete(
        HI,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        **options,
    )
    assert answer.choices[0].finish_reason == "stop"
    value = json.loads(answer.text)
    assert set(value) == {"a", "b"}
    assert value["a"] in ("x", "yy")
    assert isinstance(value["b"], bool)

    leaning = chat.hashed(2)

    def short(cached: Sequence[int]) -> Any:
        logits = leaning(cached).copy()
        logits[ord("}")] += 6.0
        logits[ord('"')] += 6.0
        return logits

    engine = chat.engine(short)
    answer = engine.complete(HI, response_format={"type": "json_object"}, **options)
    assert isinstance(json.loads(answer.text), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "ls"}}])
def test_a_call_from_a_model_that_would_not(chat: Any, choice: Any) -> None:
    pytest.importorskip("llguidance")
    leaning = chat.hashed(4)

    def law(cached: Sequence[int]) -> Any:
        logits = leaning(cached).copy()
        logits[ord('"')] += 6.0
        return logits

    tools = [TOOL, {"type": "function", "function": {"name": "ls", "parameters": {}}}]
    engine = chat.engine(law)
    answer = engine.complete(HI, tools=tools, tool_choice=choice)
    (call,) = answer.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert not answer.text
    arguments = json.loads(call.function.arguments)
    if call.function.name == "read":
        assert isinstance(arguments["path"], str)
    if choice != "required":
        assert call.function.name == "ls"
    assert [c.function.name for c in engine.complete(HI, tools=tools).tool_calls] == []


def test_a_schema_that_cannot_be_compiled_is_refused_before_the_engine_is_held(chat: Any) -> None:
    pytest.importorskip("llguidance")
    engine = chat.engine(chat.writing("x"))
    bad = {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}
    with pytest.raises(InvalidRequestError, match=r"response_format\.json_schema\.schema"):
        engine.stream(HI, response_format=bad)
    with pytest.raises(InvalidRequestError, match="grammar"):
        engine.complete(HI, grammar="start: (")
    assert engine.complete(HI).text == "x"
    assert engine.complete(HI, grammar='start: "no" | "yes"').text in ("no", "yes")


# -- the engine behind the module's functions ------------------------------------------------------


@pytest.fixture
def loads(chat: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    made: list[tuple[Any, Any]] = []

    def load(model: Any = None, *, exact: Any = None, **_: Any) -> Any:
        made.append((model, exact))
        if model == "broken":
            raise AgentspecError("broken")
        return chat.engine(
            chat.writing(f"I am {model}"),
            model=str(model),
            exact=bool(exact),
            rows=RowClass((1, 2)),
        )

    monkeypatch.setattr(shared, "load", load)
    loaded = shared._Loaded()
    monkeypatch.setattr(shared, "_loaded", lambda: loaded)
    return made


def test_the_module_loads_once_per_model(loads: list[Any]) -> None:
    import agentspec

    assert agentspec.complete(HI, model="a").text == "I am a"
    assert "".join(joined(list(agentspec.stream(HI, model="a")))["text"]) == "I am a"
    assert asyncio.run(agentspec.acomplete(HI, model=Path("a"))).text == "I am a"
    assert loads == [("a", None)]
    assert agentspec.complete(HI, model="a", speculation={"exact": True}).text == "I am a"
    assert loads[1:] == [("a", True)]
    with pytest.raises(AgentspecError, match="broken"):
        agentspec.complete(HI, model="broken")
    assert agentspec.complete(HI).text == "I am None"

    async def collect() -> str:
        return str(joined([c async for c in agentspec.astream(HI, model="b")])["text"])

    assert asyncio.run(collect()) == "I am b"


def test_another_model_does_not_end_requests_on_the_first(loads: list[Any]) -> None:
    import agentspec

    stream = agentspec.stream(HI, model="a")
    chunks = [next(stream), next(stream)]
    gone = weakref.ref(shared._loaded()._engine)
    assert agentspec.complete(HI, model="b").text == "I am b"
    assert joined([*chunks, *stream])["text"] == "I am a"
    del stream
    assert gone() is None  # nobody uses it any more, so it is freed


def test_cancel_stops_the_running_request_only(chat: Any) -> None:
    engine = chat.engine(chat.writing("abcdefghij"))
    engine.cancel()
    assert engine.complete(HI).text == "abcdefghij"
    stream = engine.stream(HI)
    for _ in range(4):
        next(stream)
    engine.cancel()
    with pytest.raises(CancelledError) as caught:
        list(stream)
    assert caught.value.partial == "abc"
    assert engine.complete(HI).text == "abcdefghij"


@pytest.mark.parametrize(
    ("sign", "reply", "text", "thinking", "calls"),
    [
        ("[TOOL_CALLS]", f"[TOOL_CALLS][{CALL}]", "", None, [{"path": "a.py"}]),
        ("<function=<parameter=", "<tool_call>\n<function=read>\n<parameter=path>\na.py\n"
         "</parameter>\n</function>\n</tool_call>", "", None, [{"path": "a.py"}]),
        ("<|channel|><|message|>", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
         "<|channel|>final<|message|>Hello", "Hello", "hm", []),
    ],
)  # fmt: skip
def test_the_template_says_how_a_model_writes(
    chat: Any, sign: str, reply: str, text: str, thinking: str | None, calls: list[Any]
) -> None:
    from agentspec.api import Engine
    from agentspec.chat.template import ChatTemplate, packaged_prompt

    source = packaged_prompt("chatml.jinja") + f"{{# {sign} #}}"
    template = ChatTemplate(source, bos="", eos=chat.marks[chat.eos])
    with Engine(chat.backend(chat.writing(reply)), template=template) as engine:
        # a channel is one with tools and without
        answer = engine.complete(HI, tools=[TOOL] if calls else None, speculation=False)
    assert answer.text == text
    assert answer.choices[0].message.reasoning_content == thinking
    assert [json.loads(call.function.arguments) for call in answer.tool_calls] == calls
