"""Servers that are broken or mean harm, and what was once got wrong of them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentspec.aio import Stop
from agentspec.api import Engine
from agentspec.assistant.http_model import HttpModel
from agentspec.errors import (
    AgentspecError,
    BackendError,
    CancelledError,
    ConfigError,
    ContextOverflowError,
    InvalidRequestError,
    ModelNotFoundError,
)
from agentspec.remote import client as remote_client
from agentspec.remote.client import Client
from agentspec.remote.engine import RemoteEngine
from tests.clock import at_most
from tests.remote.conftest import STOP, Fake, Part, Reply, delta, sent
from tests.threads import start, wait_for

HI = [{"role": "user", "content": "hi"}]
Remote = Callable[..., RemoteEngine]


def call(**more: Any) -> dict[str, Any]:
    return delta(tool_calls=[more])


def calls(engine: RemoteEngine) -> list[tuple[str, str]]:
    found = engine.complete(HI).tool_calls
    return [(c.function.name, c.function.arguments) for c in found]


# -- events -----------------------------------------------------------------------------------


def test_a_mark_of_byte_order_loses_nothing(fake: Fake, remote: Remote) -> None:
    fake.replies = [Reply(b"\xef\xbb\xbf", *sent(delta(content="a"), delta(content="b"), STOP))]
    assert remote().complete(HI).text == "ab"


def test_an_event_whose_lines_do_not_end(
    fake: Fake, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentspec.remote.events.MAX_LINE", 1 << 16)
    fake.replies = [Reply(*[b"data: x\n" * 1000] * 200)]
    with pytest.raises(BackendError, match="too long"):
        remote().complete(HI)


@pytest.mark.parametrize(
    "parts",
    [
        # vLLM, as it was before 0.10
        [b'data: {"object":"error","message":"no more memory","type":"X","code":500}\n\n'],
        # llama-server, as it was before 2025-09
        [b'error: {"code":500,"message":"no more memory","type":"server_error"}\n\n'],
        [b'data: {"error":{"code":500,"message":"no more memory","type":"server_error"}}\n\n'],
        [b'event: error\ndata: {"message":"no more memory"}\n\n'],
        [b'event: error\r\ndata: {"error":{"message":"no more memory"}}\r\n\r\n'],
        [b'data: {"error":"no more memory"}\n\n'],
    ],
)
def test_errors_inside_of_a_stream(fake: Fake, remote: Remote, parts: list[Part]) -> None:
    fake.replies = [Reply(*sent(delta(content="a"), done=False), *parts, *sent())]
    with pytest.raises(BackendError, match="no more memory") as caught:
        remote().complete(HI)
    assert caught.value.partial == "a"
    with pytest.raises(BackendError, match="no more memory"):
        list(HttpModel(fake.url).answer(HI, [], stop=Stop()))


def test_a_body_that_is_compressed_is_said_to_be(fake: Fake, remote: Remote) -> None:
    fake.replies = [
        Reply(b"\x1f\x8b\x08", Content_Encoding="gzip", Content_Type="text/event-stream")
    ]
    with pytest.raises(BackendError, match="gzip"):
        remote().complete(HI)


def test_the_assistants_model_says_what_a_page_is(fake: Fake) -> None:
    fake.replies = [Reply(b"<html>", Content_Type="text/html; charset=utf-8")]
    with pytest.raises(BackendError, match=r"text/html.*base URL"):
        list(HttpModel(fake.url).answer(HI, [], stop=Stop()))


WHOLE: list[Part] = sent(
    delta(role="assistant", content=""),
    delta(content="é"),
    delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]),
    {**STOP, "timings": {"predicted_n": 3, "draft_n": 2, "draft_n_accepted": 1}},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_streams_with_other_bytes_in_them(fake: Fake, remote: Remote, data: st.DataObject) -> None:
    raw = b"".join(part for part in WHOLE if isinstance(part, bytes))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        other = data.draw(st.sampled_from([b"", b"\0", b"\xff", b"\n\n", b"[[", b"-", b"\r", b'"']))
        raw = raw[:at] + other + raw[at + data.draw(st.sampled_from([0, 1, 30])) :]
    fake.replies = [Reply(raw)]
    try:
        found = remote(kind="vllm", metrics=False).complete(HI)
    except AgentspecError as error:
        said = str(error)
        found = None
    if found is None:
        assert "\n" not in said
        return
    found.model_dump_json().encode()
    assert found.speculation is not None
    assert 0 <= found.speculation.accepted <= found.speculation.drafted


# -- chunks -----------------------------------------------------------------------------------


def test_content_in_parts_is_text(fake: Fake, remote: Remote) -> None:
    fake.say(delta(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), STOP)
    assert remote().complete(HI).text == "ab"


@pytest.mark.parametrize("odd", [5, {"text": "x"}, True, [5], [{"type": "text", "text": 5}]])
def test_content_that_is_no_text_is_not_lost(fake: Fake, remote: Remote, odd: Any) -> None:
    fake.say(delta(content=odd), STOP)
    with pytest.raises(BackendError, match="broke off"):
        remote().complete(HI)


def test_calls_without_ids_and_indices(fake: Fake, remote: Remote) -> None:
    fake.say(
        call(function={"name": "one", "arguments": '{"x"'}),
        call(function={"arguments": ": 1}"}),
        call(id="", function={"name": "two", "arguments": "{}"}),
        call(function={"name": "two", "arguments": "[]"}),
        call(id="c", function={"name": "three", "arguments": {"y": 2}}),
        STOP,
    )
    assert calls(remote()) == [
        ("one", '{"x": 1}'),
        ("two", "{}"),
        ("two", "[]"),
        ("three", '{"y": 2}'),
    ]


def test_calls_that_all_have_the_index_0_and_no_ids(fake: Fake, remote: Remote) -> None:
    fake.say(
        call(index=0, function={"name": "one", "arguments": "{"}),
        call(index=0, function={"name": "one", "arguments": "}"}),
        call(index=0, function={"name": "two", "arguments": "{}"}),
        STOP,
    )
    assert calls(remote()) == [("one", "{}"), ("two", "{}")]


def test_a_name_that_comes_behind_the_id(fake: Fake, remote: Remote) -> None:
    fake.say(
        call(index=0, id="a", function={"name": "", "arguments": "{"}),
        call(index=0, function={"name": "f", "arguments": "}"}),
        STOP,
    )
    assert [
        (c.id, c.function.name, c.function.arguments) for c in remote().complete(HI).tool_calls
    ] == [("a", "f", "{}")]


def test_arguments_that_are_a_list(fake: Fake, remote: Remote) -> None:
    fake.say(call(index=0, id="a", function={"name": "f", "arguments": [1]}), STOP)
    assert calls(remote()) == [("f", "[1]")]


def test_arguments_nested_at_the_limit(fake: Fake, remote: Remote) -> None:
    for depth in range(700, 1000, 7):
        text = '{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f",'
        text += '"arguments":{"a":' + "[" * depth + "]" * depth + "}}}]}}]}"
        fake.replies = [Reply(b"data: " + text.encode() + b"\n\n", *sent(STOP))]
        try:
            remote(metrics=False).complete(HI)
        except AgentspecError:
            continue


@pytest.mark.parametrize("place", ["message", "type", "param", "n_ctx"])
def test_refusals_nested_at_the_limit(fake: Fake, remote: Remote, place: str) -> None:
    for depth in range(880, 1000, 5):
        for pair in ("[]", ('{"a":', "}")):
            deep = f"{pair[0] * depth}1{pair[1] * depth}"
            body = f'{{"error": {{"{place}": {deep}}}}}'.encode()
            fake.replies = [Reply(body, status=400), Reply(b"data: " + body + b"\n\n")]
            for _ in range(2):
                with pytest.raises(AgentspecError) as caught:
                    remote(kind="vllm", metrics=False).complete(HI)
                assert len(str(caught.value)) < 600


def test_calls_that_did_not_come(fake: Fake, remote: Remote) -> None:
    fake.say(delta(content="a"), {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    assert remote().complete(HI).choices[0].finish_reason == "stop"


def test_a_refusal_of_the_model_is_shown(fake: Fake, remote: Remote) -> None:
    fake.say(delta(refusal="I do not"), delta(refusal=" do that."), STOP)
    assert remote().complete(HI).text == "I do not do that."


def test_notes_of_a_server_do_not_steer_a_terminal(fake: Fake, remote: Remote) -> None:
    stats = {
        "notes": ["a\x1b[31mb\nc"],
        "explained": ["\x1b]0;x\x07d"],
        "sources": {"e\x1b[1m": {"drafted": 1, "accepted": 1}},
    }
    fake.say(delta(content="a"), {**STOP, "speculation": stats})
    found = remote().complete(HI).speculation
    assert found is not None
    assert (found.notes, found.explained, [*found.sources]) == (["ab c"], ["d"], ["e"])


# -- keys and addresses -----------------------------------------------------------------------


def test_a_key_that_the_server_repeats_is_not_said(fake: Fake, remote: Remote) -> None:
    key = "sk-very-secret"
    for reply in (
        Reply(json.dumps({"error": f"wrong key: Bearer {key}"}).encode(), status=401),
        Reply(f"bad header {key}".encode(), status=500),
        Reply(*sent({"error": {"message": f"no {key}"}})),
        Reply(*sent({"choices": [{"finish_reason": key}]})),
        Reply(*sent({"choices": [{"logprobs": {"content": [{"token": [key]}]}}]})),
        Reply(b"", Content_Type=f"text/{key}"),
    ):
        fake.replies = [reply]
        with pytest.raises(AgentspecError) as caught:
            remote(api_key=key).complete(HI)
        assert key not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hunter2@x/v1",
        "http://:hunter2@x/v1",
        "http://hunter2@x/v1",
        "http://@x/v1",
        "http://x/v1?key=hunter2",
        "http://x:hunter2/v1",
        "http://x/v1#hunter2",
        "http://[::1/v1",
        "http://[zz]/v1",
        "http://x/ü",
        "http://x/a b",
        "http://x/a\x7f",
        "http://a b/v1",
        "http://x\\y/v1",
        "unix:///run/x.sock",
        "/run/x.sock",
        "",
        "http://[fe80::1%25eth0]:x/v1",
        "http://x:0/v1",
        "http://x:-1/v1",
    ],
)
def test_urls_that_are_none_and_what_is_in_them(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Engine.remote(url)
    assert "hunter2" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_url_that_is_no_string() -> None:
    for url in (None, 5, b"http://x"):
        with pytest.raises(ConfigError):
            Engine.remote(url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": "5"},
        {"timeout": None},
        {"connect_timeout": "x"},
        {"max_requests": "8"},
        {"max_requests": 1.5},
        {"max_retries": None},
        {"retry_seconds": float("nan")},
        {"retry_seconds": -1},
        {"extra_body": {"x": object()}},
        {"extra_body": {"x": float("nan")}},
        {"extra_body": [1]},
        {"api_key": 5},
    ],
)
def test_settings_of_the_wrong_kind(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Engine.remote("http://localhost:1/v1", **settings)


@pytest.mark.parametrize("seconds", [float("inf"), 1e12])
def test_a_time_out_of_ages(fake: Fake, remote: Remote, seconds: float) -> None:
    found = remote(timeout=seconds, connect_timeout=seconds, retry_seconds=seconds)
    assert found.complete(HI).text == "hi"


def test_an_address_that_is_not_the_base_url_is_told(fake: Fake, remote: Remote) -> None:
    fake.replies = [Reply(b'{"detail":"Not Found"}', status=404)]
    with pytest.raises(InvalidRequestError, match="with its /v1"):
        remote().complete(HI)


def test_a_server_without_a_list_needs_a_name(fake: Fake, remote: Remote) -> None:
    fake.models = None
    with pytest.raises(ModelNotFoundError, match="name one"):
        remote(model=None).complete(HI)
    fake.paths.clear()
    engine = remote()
    for _ in range(3):
        assert engine.complete(HI).text == "hi"
    assert fake.paths.count("/v1/models") == 1  # that there is none is known then


def test_a_proxy_of_the_environment_gets_nothing(
    fake: Fake, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as (url, proxy):
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, url)
        assert remote(api_key="sk-very-secret").complete(HI).text == "hi"
        proxy.settimeout(0.1)
        with pytest.raises(TimeoutError):
            proxy.accept()


# -- refusals ---------------------------------------------------------------------------------

OPENAI = (
    "This model's maximum context length is 4097 tokens. However, your messages resulted in 5000 "
    "tokens. Please reduce the length of the messages."
)
OPENAI_BOTH = (
    "This model's maximum context length is 4097 tokens. However, you requested 5001 tokens "
    "(4500 in the messages, 501 in the completion). Please reduce the length of the messages or "
    "completion."
)
VLLM_LONG = "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make"
VLLM_EQUAL = (
    "The decoder prompt (length 4096) plus the number of requested output tokens (at least 1) is "
    "longer than the maximum model length of 4096. Make sure that"
)
VLLM_CHARS = (
    "This model's maximum context length is 1024 tokens. However, your prompt contains 90000 "
    "characters (more than 8192 characters, which is the upper bound for 1024 input tokens)."
)
SGLANG = "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
SGLANG_BOTH = (
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You "
    "requested a total of 6000 tokens: 5000 tokens from the input messages and 1000 tokens for "
    "the completion."
)
LLAMA = "the request exceeds the available context size. try increasing the context size"
LLAMA_TOLD = (
    "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it"
)


@pytest.mark.parametrize(
    ("message", "n_prompt", "n_ctx"),
    [
        (OPENAI, 5000, 4097),
        (OPENAI_BOTH, 4500, 4097),
        (VLLM_LONG, 5000, 4096),
        (VLLM_EQUAL, 4096, 4096),
        (VLLM_CHARS, 0, 1024),
        (SGLANG, 5000, 4096),
        (SGLANG_BOTH, 5000, 4096),
        (LLAMA, 0, 999),
        (LLAMA_TOLD, 5000, 4096),
    ],
)
def test_prompts_that_do_not_fit(
    fake: Fake, remote: Remote, message: str, n_prompt: int, n_ctx: int
) -> None:
    error = {"message": message, "type": "BadRequestError", "code": 400}
    for reply in (
        Reply(json.dumps({"error": error}).encode(), status=400),
        Reply(json.dumps({"object": "error", **error}).encode(), status=400),
        Reply(*sent({"error": error})),
    ):
        fake.replies = [reply]
        with pytest.raises(ContextOverflowError) as caught:
            remote().complete(HI)
        assert (caught.value.n_prompt, caught.value.n_ctx) == (n_prompt, n_ctx)
        said = str(caught.value)
        assert str(n_ctx) in said
        assert (f"has {n_prompt} tokens" in said) == (n_prompt > 0)
        assert "-" not in said


@pytest.mark.parametrize(
    ("status", "message"),
    [
        # the prompt fits, the answer does not
        (400, "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum "
         "context length is 4096 tokens and your request has 30 input tokens (5000 > 4096 - 30)."),
        (400, "This model's maximum context length is 4097 tokens. However, you requested 5001 "
         "tokens (10 in the messages, 4991 in the completion)."),
        # what was asked is repeated
        (401, "wrong key, in a prompt of the maximum context length is 5 tokens"),
        (500, "the maximum context length is 5 tokens"),
    ],
)  # fmt: skip
def test_what_only_sounds_like_a_prompt_that_does_not_fit(
    fake: Fake, remote: Remote, status: int, message: str
) -> None:
    fake.replies = [Reply(json.dumps({"error": {"message": message}}).encode(), status=status)]
    with pytest.raises(AgentspecError) as caught:
        remote().complete(HI)
    assert not isinstance(caught.value, ContextOverflowError)


@pytest.mark.parametrize(
    "more",
    [
        {"n_ctx": "many", "n_prompt_tokens": "x"},
        {"n_ctx": -5, "n_prompt_tokens": -7},
        {"n_ctx": True},
        {"n_ctx": 10**30, "n_prompt_tokens": 10**31},
        {"n_ctx": 50, "n_prompt_tokens": 7},
        {"n_ctx": "²"},
    ],
)
def test_counts_of_a_prompt_that_cannot_be(fake: Fake, remote: Remote, more: Any) -> None:
    error = {"type": "exceed_context_size_error", "message": "x", **more}
    fake.replies = [Reply(json.dumps({"error": error}).encode(), status=400)]
    with pytest.raises(ContextOverflowError) as caught:
        remote().complete(HI)
    said = str(caught.value)
    assert "-" not in said
    assert " 0 " not in said
    assert len(said) < 200


@pytest.mark.parametrize(
    "value",
    [
        "-5",
        "1e9",
        "nan",
        "",
        " ",
        "0x5",
        "Thu, 99 Foo 2026",
        "1,5",
        "\xb2",
        "5 5",
        "Mon",
        "a b c d e",
    ],
)
def test_times_to_wait_that_are_none(value: str) -> None:
    assert remote_client._seconds(value) == 0.0


# -- time -------------------------------------------------------------------------------------


def drip(piece: bytes) -> list[Part]:
    """A little every moment, for some minutes."""
    return [piece, 0.05] * 4000


@contextmanager
def listening() -> Iterator[tuple[str, socket.socket]]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1", server


def ends(run: Callable[[], Any], engine: RemoteEngine, how: str = "cancel") -> None:
    """It ends with an error of ours when it is cancelled a moment after it has begun."""

    def leave() -> None:
        wait_for(lambda: engine._running)
        time.sleep(0.3)
        getattr(engine, how)()

    thread = start(leave)
    with pytest.raises(CancelledError):
        run()
    thread.join()


def test_a_cancel_before_the_connection_stands_is_heard(fake: Fake, remote: Remote) -> None:
    silent = threading.Event()
    fake.replies = [Reply(silent)]
    stop = Stop()
    stop.set()
    with pytest.raises((CancelledError, BackendError)):
        Client(fake.url).connect(stop)
    silent.set()


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_cancelling_while_the_list_of_models_does_not_come(how: str) -> None:
    with listening() as (url, _):
        engine = Engine.remote(url, "m")
        ends(lambda: engine.complete(HI), engine, how)


def test_threads_do_not_wait_for_each_others_tries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    engine = Engine.remote(url, max_retries=2)  # nobody listens there any more

    def ask() -> None:
        with pytest.raises(BackendError, match="no server answers"):
            engine.complete(HI)

    begun = time.monotonic()
    threads = [start(ask) for _ in range(80)]
    for thread in threads:
        thread.join(60)
    # one after the other they would take a minute at least
    assert time.monotonic() - begun < 45


def test_cancelling_a_task_while_the_list_of_models_does_not_come() -> None:
    async def main(url: str) -> None:
        engine = Engine.remote(url, "m")
        task = asyncio.create_task(engine.acomplete(HI))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_for, lambda: not engine._running)
        engine.close()

    with listening() as (url, _):
        asyncio.run(main(url))


def test_cancelling_while_the_counters_do_not_come(fake: Fake, remote: Remote) -> None:
    silent = threading.Event()
    fake.metrics = Reply(silent, b"x")
    engine = remote()
    ends(lambda: engine.complete(HI), engine)
    silent.set()


def test_counters_that_do_not_come_hold_no_answer_up(
    fake: Fake, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentspec.remote.counters._SECONDS", 0.3, raising=False)
    fake.metrics = Reply(*drip(b"# x\n"))
    begun = time.monotonic()
    engine = remote()
    assert engine.complete(HI).text == "hi"
    assert engine.complete(HI).text == "hi"
    assert time.monotonic() - begun < 90


def test_facts_that_come_byte_by_byte_have_an_end(
    fake: Fake, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentspec.remote.client._FACTS", 0.5)
    fake.models = Reply(*drip(b" "), Content_Type="application/json")
    begun = time.monotonic()
    with pytest.raises(BackendError, match="cannot be read"):
        _ = remote(model=None).model
    assert time.monotonic() - begun < 90


def test_a_refusal_that_comes_byte_by_byte_has_an_end(
    fake: Fake, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentspec.remote.client._FACTS", 0.5)
    fake.replies = [Reply(*drip(b"x"), status=500)]
    begun = time.monotonic()
    with pytest.raises(BackendError, match="500"):
        remote().complete(HI)
    assert time.monotonic() - begun < 90


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_cancelling_while_the_connection_does_not_stand(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        url = f"{scheme}://127.0.0.1:{port}/v1"
        full = [socket.socket() for _ in range(4)]  # nobody takes them: the next one waits
        try:
            if scheme == "http":
                for one in full:
                    one.setblocking(False)
                    one.connect_ex(("127.0.0.1", port))
                time.sleep(0.2)
            engine = Engine.remote(url, "m", kind="openai", connect_timeout=120)
            ends(lambda: engine.complete(HI), engine)
        finally:
            for one in full:
                one.close()


# -- statistics -------------------------------------------------------------------------------


def test_a_histogram_of_millions_is_no_work(fake: Fake, remote: Remote) -> None:
    speculative = {"acceptance_histogram": [1] * 200_000, "num_draft_tokens": 5}
    fake.say(delta(content="a"), {**STOP, "metrics": {"speculative_decoding": speculative}})
    with at_most(10):
        remote().complete(HI)


# -- leaving ----------------------------------------------------------------------------------


def test_closing_the_engine_with_streams_open(fake: Fake, remote: Remote) -> None:
    silent = threading.Event()
    fake.replies = [Reply(*sent(delta(content="a"), done=False), silent)]
    engine = remote(max_requests=2)
    streams = [engine.stream(HI) for _ in range(2)]
    for stream in streams:
        next(stream)
        next(stream)
    engine.close()
    for stream in streams:
        with pytest.raises(CancelledError):
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)
    assert engine._gate.inside == 0
    silent.set()


def test_a_reader_that_is_interrupted_leaves_nothing(fake: Fake, remote: Remote) -> None:
    silent = threading.Event()
    fake.replies = [Reply(*sent(delta(content="a"), done=False), silent)]
    engine = remote(max_requests=1)

    def read() -> None:
        with closing(engine.stream(HI)) as chunks:  # type: ignore[type-var]
            for _ in chunks:
                raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            read()
    assert engine._gate.inside == 0
    assert not engine._running
    silent.set()


def test_threads_that_read_at_once_do_not_mix(fake: Fake, remote: Remote) -> None:
    engine = remote(max_requests=3)
    found: list[str] = []
    threads = [start(lambda: found.append(engine.complete(HI).text)) for _ in range(12)]
    for thread in threads:
        thread.join(60)
    assert found == ["hi"] * 12
    assert Client(fake.url).url == fake.url
