"""Raw prompts: what the caller wrote is continued, without a template."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agentspec.errors import CancelledError, ContextOverflowError, InvalidRequestError
from agentspec.request import parse_text_request


def answered(engine: Any, prompt: Any, **options: Any) -> Any:
    answer, events = engine.begin(parse_text_request(prompt, **options))
    for event in events:
        answer.add(event)
    return answer.completion()


def test_the_prompt_is_the_text_and_nothing_else(chat: Any) -> None:
    engine = chat.engine(chat.hashed(3))
    got = answered(engine, "def f(", max_tokens=5)
    assert engine.tokens[: got.usage.prompt_tokens] == list(b"def f(")
    ids = chat.engine(chat.hashed(3))
    assert answered(ids, list(b"def f("), max_tokens=5).text == got.text


def test_marks_in_a_raw_prompt_are_special_as_in_a_template(chat: Any) -> None:
    engine = chat.engine(chat.writing("abc"))
    assert answered(engine, "<|im_start|>assistant\n").text == "abc"
    assert engine.tokens[0] == chat.start


def test_bos_as_the_vocabulary_says(chat: Any) -> None:
    tokenizer = chat.tokenizer()
    tokenizer.bos_id, tokenizer.adds_bos = 7, True
    engine = chat.engine(chat.backend(chat.hashed(), tokenizer=tokenizer))
    assert answered(engine, "ab", max_tokens=1).usage.prompt_tokens == 3
    assert engine.tokens[:3] == [7, *b"ab"]
    assert answered(engine, [1, 2], max_tokens=1).usage.prompt_tokens == 2
    tokenizer.adds_bos = False
    assert answered(engine, "ab", max_tokens=1).usage.prompt_tokens == 2


def test_prompts_that_cannot_be_are_refused_at_once(chat: Any) -> None:
    engine = chat.engine(chat.hashed(), n_ctx=16)
    for prompt in ("", [], [1, 262]):
        with pytest.raises(InvalidRequestError) as caught:
            engine.begin(parse_text_request(prompt))
        assert caught.value.param == "prompt"
    with pytest.raises(ContextOverflowError):
        engine.begin(parse_text_request("x" * 16))


def test_a_stop_event_ends_the_answer(chat: Any) -> None:
    engine = chat.engine(chat.writing("x" * 50))
    stop = threading.Event()
    _, events = engine.begin(parse_text_request("<|im_start|>assistant\n"), stop)
    next(events)
    assert [slot.busy for slot in engine.slots()] == [True]
    stop.set()
    with pytest.raises(CancelledError):
        list(events)
    assert [slot.busy for slot in engine.slots()] == [False]
