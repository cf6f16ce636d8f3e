"""Header lines that change with every request, read as if they did not: only when asked."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.chat.normalise import normalised
from agentspec.errors import InvalidRequestError
from agentspec.wire import parse_messages

LINE = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={};"


def system(value: str, role: str = "system") -> list[dict[str, str]]:
    return [{"role": role, "content": f"{LINE.format(value)}\nYou are an agent."}]


def read(messages: Any, names: tuple[str, ...] = ("cch",)) -> tuple[list[Any], list[str]]:
    out, notes = normalised(parse_messages(messages), names)
    return [message.content for message in out], notes


def test_the_changing_part_is_the_same_in_every_request() -> None:
    one, notes = read(system("fa690"))
    assert one == read(system("0aaa9"))[0] == [f"{LINE.format(0)}\nYou are an agent."]
    assert "cch=" in notes[0]


@pytest.mark.parametrize(
    ("messages", "names"),
    [
        (system("fa690"), ()),
        (system("fa690", "user"), ("cch",)),
        ([{"role": "system", "content": "set cch=fa690; in the header"}], ("cch",)),
        ([{"role": "system", "content": "say x-anthropic-billing-header: cch=fa690;"}], ("cch",)),
        ([{"role": "system", "content": "x-anthropic-billing-header:\ncch=fa690;"}], ("cch",)),
    ],
)
def test_nothing_else_is_touched(messages: Any, names: tuple[str, ...]) -> None:
    assert read(messages, names) == ([m["content"] for m in messages], [])


def test_a_request_that_asks_reuses_its_beginning_and_says_so(chat: Any) -> None:
    for how in ("engine", "request"):
        engine = chat.engine(chat.writing("ok"), normalise=("cch",) if how == "engine" else ())
        options = {} if how == "engine" else {"normalise": ["cch"]}
        ask = [{"role": "user", "content": "hi"}]
        engine.complete([*system("fa690"), *ask], **options)
        again = engine.complete([*system("0aaa9"), *ask], **options)
        assert again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens - 1
        assert any("cch=" in note for note in again.speculation.notes)
    engine = chat.engine(chat.writing("ok"))
    engine.complete([*system("fa690"), *ask])
    again = engine.complete([*system("0aaa9"), *ask])
    assert again.usage.prompt_tokens_details.cached_tokens < 100
    assert not again.speculation.notes
    with pytest.raises(InvalidRequestError, match="normalise"):
        engine.complete(ask, normalise=["foo"])
