"""OpenAI's client over an engine in this process, and of a server: streams, cancels, loops."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai", minversion="3")

import openai

from agentspec.adapters.openai_client import named_client, openai_client
from agentspec.errors import ConfigError, MissingExtraError
from scripts.client_scripted import ScriptedServer, scripted_engine
from tests.threads import wait_for

HI = [{"role": "user", "content": "Of herons?"}]
ENDLESS = [{"role": "user", "content": "Write without end."}]


def reply(prompt: str, made: int) -> str:
    if "without end" in prompt:
        return "and so on " * 20_000
    return "Herons wait."


@pytest.fixture
def engine() -> Iterator[Any]:
    with scripted_engine(reply) as engine:
        yield engine


async def ask(client: Any, messages: Any = HI, **options: Any) -> Any:
    return await client.chat.completions.create(model="any", messages=messages, **options)


def run(client: Any, work: Callable[[], Awaitable[Any]]) -> Any:
    """The result of `work` in a loop of its own, which closes the client too."""

    async def main() -> Any:
        async with client:
            return await work()

    return asyncio.run(main())


def stands_still(engine: Any) -> None:
    """Wait until nothing runs; nothing may go on then."""
    wait_for(lambda: not any(slot.busy for slot in engine.slots()))
    passes = len(engine.target.passes)
    assert len(engine.complete(HI).text) > 0
    assert len(engine.target.passes) - passes < 50


def test_a_whole_answer_with_its_statistics(engine: Any) -> None:
    client = openai_client(engine=engine)

    async def work() -> None:
        assert [model.id for model in (await client.models.list()).data] == ["local"]
        answer = await ask(client)
        assert answer.choices[0].message.content == "Herons wait."
        assert answer.usage.completion_tokens == len("Herons wait.") + 1
        assert answer.speculation["passes"] > 0
        again = await ask(client)
        assert again.usage.prompt_tokens_details.cached_tokens > 0

    run(client, work)
    assert engine.complete(HI).text == "Herons wait."  # it was given, so it stays open


def test_a_prediction_arrives(engine: Any) -> None:
    client = openai_client(engine=engine)
    prediction = {"type": "content", "content": "Herons wait."}
    answer = run(client, lambda: ask(client, prediction=prediction))
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_every_api_of_the_server_is_there(engine: Any) -> None:
    client = openai_client(engine=engine)

    async def work() -> None:
        response = await client.responses.create(model="any", input="Of herons?", store=False)
        assert response.output_text == "Herons wait."

    run(client, work)


def test_chunks_come_while_the_engine_still_writes(engine: Any) -> None:
    client, go_on = openai_client(engine=engine), threading.Event()
    law = engine.target.law

    def held(cached: Any) -> Any:
        if bytes(t for t in cached if t < 256).endswith(b"Herons"):
            assert go_on.wait(60)
        return law(cached)

    engine.target.law = held

    async def work() -> str:
        text = ""
        async with await ask(client, stream=True) as chunks:
            async for chunk in chunks:
                text += chunk.choices[0].delta.content or ""
                if text == "Heron":
                    assert not go_on.is_set()
                    go_on.set()
        return text

    assert run(client, work) == "Herons wait."
    assert go_on.is_set()


def test_closing_a_stream_stops_the_engine(engine: Any) -> None:
    client = openai_client(engine=engine)

    async def work() -> None:
        async with await ask(client, ENDLESS, stream=True) as chunks:
            async for chunk in chunks:
                if chunk.choices[0].delta.content:
                    break
        stands_still(engine)

    run(client, work)


@pytest.mark.parametrize("read", [False, True])
def test_a_stream_that_is_left_open_stops_the_engine(engine: Any, read: bool) -> None:
    client = openai_client(engine=engine)

    async def work() -> None:
        stream = await ask(client, ENDLESS, stream=True, max_tokens=100_000)
        if read:
            async for _ in stream:
                break
        while not engine.target.passes:
            await asyncio.sleep(0.005)
        del stream
        gc.collect()
        idle = lambda: not any(slot.busy for slot in engine.slots())  # noqa: E731
        await asyncio.to_thread(wait_for, idle)

    run(client, work)
    stands_still(engine)
    assert len(engine.tokens) < 100_000


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_a_task_stops_the_engine(engine: Any, stream: bool) -> None:
    client = openai_client(engine=engine)

    async def consume() -> None:
        answer = await ask(client, ENDLESS, stream=stream)
        if stream:
            async with answer:
                async for _ in answer:
                    pass

    async def work() -> None:
        task = asyncio.create_task(consume())
        while len(engine.target.passes) < 30:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stands_still(engine)

    run(client, work)


def test_a_loop_that_ends_stops_its_answers(engine: Any) -> None:
    client = openai_client(engine=engine)

    async def leave() -> None:
        task = asyncio.create_task(ask(client, ENDLESS))
        while len(engine.target.passes) < 30:
            await asyncio.sleep(0.001)
        assert not task.done()

    asyncio.run(leave())
    stands_still(engine)
    assert run(client, lambda: ask(client)).choices[0].message.content == "Herons wait."


@pytest.mark.parametrize("stream", [False, True])
def test_closing_the_client_ends_its_answers(engine: Any, stream: bool) -> None:
    client = openai_client(engine=engine)

    async def consume() -> None:
        answer = await ask(client, ENDLESS, stream=stream)
        if stream:
            async with answer:
                async for _ in answer:
                    pass

    async def work() -> None:
        task = asyncio.create_task(consume())
        while len(engine.target.passes) < 30:
            await asyncio.sleep(0.001)
        await client.close()
        with pytest.raises(openai.APIError, match="cancelled"):
            await task
        stands_still(engine)

    asyncio.run(work())


def test_a_timeout_of_the_client_holds_and_stops_the_engine(engine: Any) -> None:
    client = openai_client(engine=engine)

    async def work() -> None:
        with pytest.raises(openai.APITimeoutError):
            await ask(client.with_options(timeout=0.2), ENDLESS)
        stands_still(engine)

    run(client, work)


def test_one_client_serves_loops_one_after_another_and_at_a_time(engine: Any) -> None:
    client = openai_client(engine=engine)
    texts: list[str] = []

    async def few() -> None:
        answers = await asyncio.gather(*(ask(client) for _ in range(3)))
        texts.extend(answer.choices[0].message.content for answer in answers)

    asyncio.run(few())
    threads = [threading.Thread(target=asyncio.run, args=(few(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    run(client, few)
    assert texts == ["Herons wait."] * 15


def test_more_than_the_engine_takes_at_a_time_wait_their_turn(engine: Any) -> None:
    client = openai_client(engine=engine)

    async def work() -> None:
        # more than a server lets wait
        answers = await asyncio.gather(*(ask(client, max_tokens=1) for _ in range(70)))
        assert {answer.choices[0].message.content for answer in answers} == {"H"}

    run(client, work)


def test_refusals_are_the_frameworks_errors() -> None:
    with scripted_engine(reply, n_ctx=200) as engine:
        client = openai_client(engine=engine)

        async def work() -> None:
            with pytest.raises(openai.BadRequestError, match="too long") as failed:
                await ask(client, [{"role": "user", "content": "long " * 100}])
            assert failed.value.code == "exceed_context_size_error"
            with pytest.raises(openai.BadRequestError) as failed:
                await ask(client, temperature=1.5, tools=[{"type": "function"}])
            assert failed.value.param == "tools[0].name"

        run(client, work)


@pytest.mark.parametrize("stream", [False, True])
def test_a_pass_that_fails_is_told_and_not_tried_again(engine: Any, stream: bool) -> None:
    client = openai_client(engine=engine)
    engine.target.fail_at = frozenset(range(4, 100))

    async def consume() -> None:
        answer = await ask(client, stream=stream)
        async with answer:
            async for _ in answer:
                pass

    with pytest.raises(openai.APIError, match="DecodeError"):
        run(client, consume)
    assert len(engine.target.passes) == 5


def test_who_may_ask_is_checked_here_too(engine: Any) -> None:
    client = openai_client(engine=engine)

    async def work() -> None:
        for header in ({"Host": "elsewhere.example"}, {"Origin": "https://elsewhere.example"}):
            with pytest.raises(openai.PermissionDeniedError):
                await ask(client, extra_headers=header)
        listed = await client.models.with_raw_response.list()
        assert listed.headers["x-frame-options"] == "DENY"

    run(client, work)


def test_a_model_is_loaded_at_the_first_request_and_freed_at_the_end(
    loads: Callable[..., list[Any]],
) -> None:
    made = loads("Herons wait.")
    client = openai_client("some-model", n_ctx=512)
    assert not made

    async def work() -> None:
        answers = await asyncio.gather(ask(client), ask(client))
        assert [a.choices[0].message.content for a in answers] == ["Herons wait."] * 2

    run(client, work)
    (engine,) = made
    assert engine.loaded == ("some-model", {"n_ctx": 512})
    assert engine.target.closed


def test_a_model_that_cannot_be_loaded_is_an_error_response() -> None:
    def refused(kind: type[openai.APIStatusError], *model: str, **settings: Any) -> Any:
        client = openai_client(*model, **settings)
        with pytest.raises(kind) as failed:
            run(client, lambda: ask(client))
        return failed.value

    missing = refused(openai.NotFoundError, "./no-such-model.gguf")
    assert missing.code == "model_not_found"
    assert "no-such-model.gguf" in str(missing)
    assert "did you mean n_ctx" in str(refused(openai.BadRequestError, n_cxt=512))


def test_a_client_and_the_name_to_ask_it_for(engine: Any) -> None:
    url = "http://127.0.0.1:8080"
    for given, name in (
        ({"model": "m", "base_url": url, "api_key": "k"}, "m"),
        ({"base_url": url}, "local"),
        ({"model": Path("m.gguf")}, "m.gguf"),
        ({"engine": engine}, engine.model),
        ({}, "local"),
    ):
        client, named = named_client(**given)
        assert named == name
        assert str(client.base_url).startswith(url if "base_url" in given else "http://localhost/")
        run(client, lambda: asyncio.sleep(0))


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_a_server_is_asked_with_its_own_key(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn")
    monkeypatch.setenv("OPENAI_API_KEY", "of-somebody-else")
    monkeypatch.setenv("AGENTSPEC_API_KEY", "a-key-of-the-tests")
    with ScriptedServer(reply, keys=("a-key-of-the-tests",)) as server:
        client = openai_client(base_url=server.url + end, max_retries=0)
        assert run(client, lambda: ask(client)).choices[0].message.content == "Herons wait."
        monkeypatch.delenv("AGENTSPEC_API_KEY")
        client = openai_client(base_url=server.url, max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            run(client, lambda: ask(client))
        client = openai_client(base_url=server.url, api_key="a-key-of-the-tests", timeout=60)
        assert run(client, lambda: ask(client)).choices[0].message.content == "Herons wait."


def test_what_contradicts_itself_is_refused(engine: Any) -> None:
    with pytest.raises(ConfigError, match="not both"):
        openai_client(engine=engine, base_url="http://127.0.0.1:8080")
    with pytest.raises(ConfigError, match="not both"):
        openai_client("some-model", engine=engine)
    with pytest.raises(ConfigError, match="with each request"):
        openai_client("some-model", base_url="http://127.0.0.1:8080")
    with pytest.raises(ConfigError, match="base_url"):
        openai_client(engine=engine, api_key="some-key")

    class OverAServer:
        model = "local"

    with pytest.raises(ConfigError, match="base_url"):
        openai_client(engine=OverAServer())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["openai", "httpx2", "starlette"])
def test_an_absent_library_is_named_with_its_extra(
    name: str, absent: Callable[[str, str], None]
) -> None:
    with pytest.raises(MissingExtraError, match=r"\.\[openai-client\]") as failed:
        absent(name, "openai_client")
    assert failed.value.module.partition(".")[0] == name
    assert "\n" not in str(failed.value)
