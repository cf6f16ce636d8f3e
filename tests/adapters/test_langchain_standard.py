"""langchain-tests' own suites for chat models, over an engine that answers what they ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest

pytest.importorskip("langchain_tests")
pytest.importorskip("pytest_asyncio")
pytest.importorskip("llguidance")

from langchain_tests.unit_tests import ChatModelUnitTests

from agentspec.adapters.langchain import ChatAgentSpec
from tests.adapters.langchain_suite import Suite

JOKE = {"setup": "Why do cats sit on keyboards?", "punchline": "They like the mouse."}


def _call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


# What the last message holds, and what is answered.
ANSWERS = (
    ("magic_function(3)", _call("magic_function", input=3)),
    ("magic_function_no_args()", _call("magic_function_no_args")),
    ("Pirate greeting", _call("greeting_generator", answer_style="Pirate")),
    ("你好啊集团", _call("unicode_customer", customer_name="你好啊集团", description="A company")),
    ("こんにちは", _call("unicode_customer", customer_name="こんにちは", description="A company")),
    ("3 + 4", _call("my_adder_tool", a=3, b=4)),
    ("weather in San Francisco", _call("get_weather", location="San Francisco")),
    ("joke about cats", json.dumps(JOKE)),
    ("setup to a joke", json.dumps({"setup": JOKE["setup"], "punchline": None})),
)


def _answer(prompt: str) -> str:
    last = prompt.rpartition("<|im_start|>user")[2]
    if "<tool_response>" in last:
        return "It's sunny."
    if "Hello!" in last and "magic_function" in prompt:
        return _call("magic_function", input=3)
    return next((answer for words, answer in ANSWERS if words in last), "Hello, nice to meet you.")


@pytest.fixture(scope="module")
def engines(chat: Any) -> Iterator[Callable[..., Any]]:
    """What loads an engine that answers as written above, one for each name."""
    tokenizer, noise = chat.tokenizer(), chat.hashed()

    @cache
    def written(prompt: tuple[int, ...]) -> list[int]:
        text = b"".join(map(tokenizer.piece, prompt)).decode("utf-8", "replace")
        return list(tokenizer.encode_special(_answer(text)))

    def law(cached: Sequence[int]) -> Any:
        logits = noise(cached).copy()
        begun = len(cached) - 1 - list(reversed(cached)).index(chat.start)
        answer, said = written(tuple(cached[:begun])), len(cached) - begun - len("assistant\n") - 1
        logits[answer[said] if said < len(answer) else chat.eos] = 50.0
        return logits

    made: dict[str, Any] = {}

    def load(name: str, **settings: Any) -> Any:
        return made.setdefault(name, chat.engine(law, model=name, max_sessions=2))

    yield load
    for engine in made.values():
        engine.close()


class _Scripted:
    """The model; the suites make it from parameters that they print: a name."""

    @pytest.fixture(autouse=True)
    def _loaded(self, engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("agentspec.api.Engine.load", engines)

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "scripted"}


class TestUnit(_Scripted, ChatModelUnitTests):  # type: ignore[misc]
    @property
    def chat_model_class(self) -> type[ChatAgentSpec]:
        return ChatAgentSpec

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"AGENTSPEC_API_KEY": "key"}, self.chat_model_params, {"api_key": "key"}


class TestIntegration(_Scripted, Suite):
    @property
    def model_override_value(self) -> str:
        return "another"
