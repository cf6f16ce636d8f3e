"""The servers with the clients that people use: OpenAI's and Anthropic's SDKs, on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.server.conftest import CALL, HI, TOOL

pytestmark = pytest.mark.program

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

KEY = "sk-a-good-long-key"
REPLY = f"Sure.\n{CALL}"
READ = {"name": "read", "input_schema": TOOL["function"]["parameters"]}
RESPONSE_TOOL = {"type": "function", **TOOL["function"], "strict": False}


@pytest.fixture
def server(serve: Any) -> Any:
    return serve(REPLY, keys=(KEY,))


@pytest.fixture
def chat_client(server: Any) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def message_client(server: Any) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        yield client


def test_openai_chat_with_a_tool_round_trip(chat_client: Any) -> None:
    answer = chat_client.chat.completions.create(model="x", messages=HI, tools=[TOOL])
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Sure."
    (call,) = choice.message.tool_calls
    assert json.loads(call.function.arguments) == {"path": "a.py"}
    back = [
        *HI,
        choice.message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "x = 1"},
    ]
    again = chat_client.chat.completions.create(model="x", messages=back, tools=[TOOL])
    details = again.usage.prompt_tokens_details
    known = answer.usage.prompt_tokens + answer.usage.completion_tokens
    # all but the tokens that the template writes otherwise than the model did
    assert details.cached_tokens > 0.8 * known


def test_openai_chat_as_a_stream(chat_client: Any) -> None:
    with chat_client.chat.completions.stream(
        model="x", messages=HI, tools=[TOOL], stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    assert final.choices[0].message.content == "Sure."
    (call,) = final.choices[0].message.tool_calls
    assert call.function.name == "read"
    assert json.loads(call.function.arguments) == {"path": "a.py"}
    assert final.usage.completion_tokens > 10
    with chat_client.chat.completions.create(model="x", messages=HI, stream=True) as plain:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in plain)
    assert text == REPLY


def test_openai_responses_with_a_tool_round_trip(chat_client: Any) -> None:
    answer = chat_client.responses.create(model="x", input="hi", tools=[RESPONSE_TOOL], store=False)
    assert answer.output_text == "Sure."
    message, call = answer.output
    items = [
        {"role": "user", "content": "hi"},
        message.model_dump(),
        call.model_dump(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "x = 1"},
    ]
    again = chat_client.responses.create(model="x", input=items, tools=[RESPONSE_TOOL])
    assert again.status == "completed"
    assert again.usage.input_tokens_details.cached_tokens > answer.usage.input_tokens
    with chat_client.responses.stream(model="x", input="hi", tools=[RESPONSE_TOOL]) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == "Sure."
    assert json.loads(final.output[1].arguments) == {"path": "a.py"}


def test_openai_completions_models_and_errors(chat_client: Any) -> None:
    prompt = "<|im_start|>assistant\n"
    assert chat_client.completions.create(model="x", prompt=prompt).choices[0].text == REPLY
    assert [model.id for model in chat_client.models.list()] == ["local"]
    assert chat_client.models.retrieve("local").owned_by == "agentspec"
    with pytest.raises(openai.BadRequestError) as bad:
        chat_client.chat.completions.create(model="x", messages=[])
    assert bad.value.param == "messages"
    with pytest.raises(openai.APIStatusError) as refused:
        chat_client.embeddings.create(model="x", input="x")
    assert refused.value.status_code == 501
    with pytest.raises(openai.AuthenticationError):
        chat_client.with_options(api_key="sk-the-wrong-key").models.list()


def test_openai_async_many_at_once(server: Any) -> None:
    async def work() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:

            async def whole() -> str:
                answer = await client.chat.completions.create(model="x", messages=HI)
                return answer.choices[0].message.content or ""

            async def stream() -> str:
                chunks = await client.chat.completions.create(model="x", messages=HI, stream=True)
                return "".join([c.choices[0].delta.content or "" async for c in chunks])

            return await asyncio.gather(*(whole() if n % 2 else stream() for n in range(8)))

    assert asyncio.run(work()) == [REPLY] * 8


def test_the_sdks_raise_what_fails_in_a_stream(serve: Any, chat: Any) -> None:
    engine = chat.engine(chat.backend(chat.writing("x" * 200)))
    server = serve(engine)
    ask = {"model": "x", "stream": True}
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as one,
        anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as other,
    ):
        cases: list[tuple[Any, Callable[[], Any]]] = [
            (openai.APIError, lambda: one.chat.completions.create(messages=HI, **ask)),
            (
                openai.APIError,
                lambda: one.completions.create(prompt="<|im_start|>assistant\n", **ask),
            ),
            (openai.APIError, lambda: one.responses.create(input="hi", **ask)),
            (
                anthropic.APIStatusError,
                lambda: other.messages.create(messages=HI, max_tokens=500, **ask),
            ),
        ]
        for error, begin in cases:
            engine.target.fail_at = frozenset({len(engine.target.passes) + 2})
            with pytest.raises(error, match="engine failed"):
                list(begin())


def test_anthropic_with_a_tool_round_trip(message_client: Any) -> None:
    ask = {"model": "x", "max_tokens": 500, "tools": [READ]}
    answer = message_client.messages.create(messages=HI, **ask)
    assert answer.stop_reason == "tool_use"
    text, use = answer.content
    assert text.text == "Sure."
    assert use.input == {"path": "a.py"}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "x = 1"}
    back = [
        *HI,
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": [result]},
    ]
    again = message_client.messages.create(messages=back, **ask)
    assert again.usage.cache_read_input_tokens > answer.usage.input_tokens
    counted = message_client.messages.count_tokens(model="x", messages=back, tools=[READ])
    usage = again.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_anthropic_as_a_stream(message_client: Any) -> None:
    ask = {"model": "x", "max_tokens": 500, "tools": [READ], "messages": HI}
    with message_client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "Sure."
    assert final.stop_reason == "tool_use"
    assert final.content[1].input == {"path": "a.py"}
    assert final.usage.output_tokens > 10


def test_anthropic_async_models_and_errors(server: Any, message_client: Any) -> None:
    async def work() -> str:
        async with anthropic.AsyncAnthropic(base_url=server.url, auth_token=KEY) as client:
            stream = client.messages.stream(model="x", max_tokens=500, messages=HI)
            async with stream as events:
                return "".join([text async for text in events.text_stream])

    assert asyncio.run(work()) == REPLY
    assert [model.id for model in message_client.models.list()] == ["local"]
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        message_client.messages.create(model="x", max_tokens=5, messages=[])
    with pytest.raises(anthropic.AuthenticationError):
        message_client.with_options(api_key="sk-the-wrong-key").models.list()
