"""Where requests go, what goes with them, and what a refusal is."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from agentspec.api import Engine
from agentspec.errors import (
    AgentspecError,
    AuthenticationError,
    BackendError,
    ConfigError,
    ContextOverflowError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedError,
)
from agentspec.remote.client import Client
from agentspec.remote.engine import RemoteEngine
from agentspec.remote.retry import Retries
from tests.remote.conftest import Fake, Reply
from tests.server.conftest import HI, Running, serve

__all__ = ["serve"]

Remote = Callable[..., RemoteEngine]


def test_the_model_is_asked_of_the_server_once(fake: Fake, remote: Remote) -> None:
    engine = remote(model=None)
    assert not fake.paths
    assert (engine.model, engine.n_ctx, engine.kind) == ("m", 999, "vllm")
    engine.complete(HI)
    assert fake.paths.count("/v1/models") == 1
    assert fake.bodies[0]["model"] == "m"
    fake.models = {"data": []}
    with pytest.raises(ModelNotFoundError, match="name one"):
        remote(model=None).complete(HI)
    fake.models = [1]
    with pytest.raises(BackendError, match="name the model"):
        _ = remote(model=None).model


@pytest.mark.parametrize(
    ("owner", "kind"),
    [("vllm", "vllm"), ("llamacpp", "llama.cpp"), ("agentspec", "agentspec"), ("OpenAI", "openai"),
     ("sglang", "sglang"), ("library", ""), (None, ""), (5, "")],
)  # fmt: skip
def test_what_the_server_is(fake: Fake, remote: Remote, owner: Any, kind: str) -> None:
    fake.models = {"data": [{"id": "x", "owned_by": owner, "meta": {"n_ctx": 5}}]}
    engine = remote(model="x")
    assert (engine.kind, engine.n_ctx) == (kind, 5)
    # an alias: the server is the same, the context may be another; llama-server answers to any name
    n_ctx = 5 if kind == "llama.cpp" else 0
    assert (remote(model="y").kind, remote(model="y").n_ctx) == (kind, n_ctx)
    assert remote(model="x", kind="sglang").kind == "sglang"


def test_the_context_of_an_alias_and_of_one_model_of_several(fake: Fake, remote: Remote) -> None:
    entry = {"id": "x", "aliases": ["y", 5], "owned_by": "llamacpp", "meta": {"n_ctx": 5}}
    fake.models = {"data": [{**entry, "id": "z", "aliases": None, "meta": {"n_ctx": 9}}, entry]}
    assert [remote(model=name).n_ctx for name in ("x", "y", "z", "other")] == [5, 5, 9, 0]


def test_a_server_without_a_list_of_models(fake: Fake, remote: Remote) -> None:
    for models in (None, "x", {"data": 5}):
        fake.models = models
        engine = remote()
        assert (engine.complete(HI).text, engine.kind, engine.n_ctx) == ("hi", "", 0)
        with pytest.raises(UnsupportedError, match="top_k"):
            engine.stream(HI, top_k=5)
        assert remote(kind="vllm").complete(HI, top_k=5).text == "hi"


def test_a_list_of_models_that_fails_once_is_asked_for_again(fake: Fake, remote: Remote) -> None:
    engine = remote()
    fake.models, models = "no list", fake.models
    assert (engine.complete(HI).text, engine.kind) == ("hi", "")
    fake.models = models
    assert (engine.kind, engine.complete(HI, top_k=5).text) == ("vllm", "hi")
    assert fake.paths.count("/v1/models") == 3


def test_nothing_is_asked_where_everything_is_told(fake: Fake, remote: Remote) -> None:
    assert remote(kind="openai").complete(HI).text == "hi"
    assert fake.paths == ["/v1/chat/completions"]


def test_a_request_is_checked_before_anything_is_sent(fake: Fake, remote: Remote) -> None:
    engine = remote()
    for ask in (engine.complete, engine.stream):
        with pytest.raises(InvalidRequestError, match="did you mean temperature"):
            ask(HI, temprature=1)
        with pytest.raises(InvalidRequestError, match="messages"):
            ask([])
    assert not fake.paths


def test_what_goes_into_every_request(fake: Fake, remote: Remote) -> None:
    engine = remote(extra_body={"priority": 5, "stream_options": {"x": 1}})
    engine.complete(HI)
    assert fake.bodies[0]["priority"] == 5
    assert fake.bodies[0]["stream_options"] == {"x": 1}


def test_the_key_goes_to_this_host_alone_and_nowhere_else(
    fake: Fake, remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = remote(api_key="sk-secret")
    engine.complete(HI)
    assert set(fake.keys) == {"Bearer sk-secret"}
    fake.replies = [
        Reply(status=503),
        Reply(status=307, Location="http://example.invalid/v1/chat/completions"),
    ]
    engine._retries = Retries(1, first=0.01)
    with pytest.raises(ConfigError, match="redirects") as caught:
        engine.complete(HI)
    assert "503" in caplog.text
    seen = caplog.text + repr(engine) + repr(vars(engine)) + str(caught.value)
    assert "sk-secret" not in seen
    for key in ("a\nb", "a\r\nX: y", "schlüssel", "tab\t"):
        with pytest.raises(ConfigError, match="key") as caught:
            remote(api_key=key)
        assert key not in str(caught.value)


def test_no_key_in_the_clear_to_another_machine() -> None:
    for url in ("http://10.0.0.5:8000/v1", "http://gpu/v1", "http://[2001:db8::1]/v1"):
        with pytest.raises(ConfigError, match="https"):
            Engine.remote(url, api_key="k")
        Engine.remote(url, api_key="k", plain_http=True).close()
        Engine.remote(url).close()
    for url in ("http://127.0.0.1/v1", "http://[::1]:1/v1", "http://localhost/v1", "https://gpu/"):
        Engine.remote(url, api_key="k").close()


def test_our_own_server_with_a_key(serve: Callable[..., Running]) -> None:
    server = serve(keys=("right-key-of-16-characters",))
    url = server.url + "/v1"
    for key in (None, "wrong"):
        with pytest.raises(AuthenticationError, match="refuses the key") as caught:
            Engine.remote(url, api_key=key).complete(HI)
        assert isinstance(caught.value, ConfigError)  # commands end as for any other setting
    with Engine.remote(url, api_key="right-key-of-16-characters") as engine:
        assert engine.complete(HI).text == "Hello."
        assert (engine.kind, engine.n_ctx) == ("agentspec", 1 << 20)


def test_our_own_servers_refusals(chat: Any, serve: Callable[..., Running]) -> None:
    pytest.importorskip("llguidance")
    server = serve(chat.engine(chat.writing("x"), n_ctx=64))
    with Engine.remote(server.url + "/v1") as engine:
        with pytest.raises(ContextOverflowError) as caught:
            engine.complete([{"role": "user", "content": "x" * 200}])
        assert (caught.value.n_ctx, caught.value.n_prompt > 200) == (64, True)
        with pytest.raises(InvalidRequestError, match="exact=True") as wrong:
            engine.complete(HI, speculation={"exact": True})
        assert wrong.value.param == "speculation.exact"
        with pytest.raises(InvalidRequestError, match="grammar"):
            engine.complete(HI, grammar="][")


VLLM = (
    "This model's maximum context length is 1024 tokens. However, your prompt contains at least "
    "1025 input tokens, which exceeds this limit even without any output tokens."
)
LLAMA = "request (9031 tokens) exceeds the available context size (2048 tokens), try increasing it"


@pytest.mark.parametrize(
    ("status", "error", "kind", "why"),
    [
        (400, {"type": "exceed_context_size_error", "message": "x", "n_prompt_tokens": 9,
               "n_ctx": 5}, ContextOverflowError, "9 tokens.*of 5"),
        (400, {"code": 400, "message": LLAMA, "type": "exceed_context_size_error",
               "n_prompt_tokens": 9031, "n_ctx": 2048}, ContextOverflowError,
         "9031 tokens.*of 2048"),
        (400, {"code": 400, "message": "JSON schema error at #: unrecognized type nonsense",
               "type": "invalid_request_error"}, InvalidRequestError, "unrecognized type"),
        (401, {"message": "Invalid API Key", "type": "authentication_error", "code": 401},
         ConfigError, "refuses the key"),
        (503, {"message": "Loading model", "type": "unavailable_error", "code": 503}, BackendError,
         "503: Loading model"),
        (400, {"code": 400, "type": "BadRequestError", "message": VLLM}, ContextOverflowError,
         "1025 tokens.*of 1024"),
        (400, {"code": "context_length_exceeded", "message": "x"}, ContextOverflowError, "999"),
        (400, {"message": "bad\n\x1b[31mthing", "param": "top_k"}, InvalidRequestError,
         "400: bad thing"),
        (400, "no object", InvalidRequestError, "400: no object"),
        (404, {"message": "The model `x` does not exist."}, InvalidRequestError, "does not exist"),
        (403, {"message": "no"}, ConfigError, "key"),
        (307, {}, ConfigError, "redirects"),
        (500, {"message": "broken"}, BackendError, "500: broken"),
        (502, 5, BackendError, "502: 5"),
        (408, {}, BackendError, "no reason given"),
        (429, "slow down", BackendError, "slow down"),
    ],
)  # fmt: skip
def test_refusals(
    fake: Fake, remote: Remote, status: int, error: object, kind: type[AgentspecError], why: str
) -> None:
    fake.replies = [Reply(json.dumps({"error": error}).encode(), status=status)]
    with pytest.raises(kind, match=why) as caught:
        remote().complete(HI)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:1",
        "ftp://x/v1",
        "http://",
        "http://u:p@x/v1",
        "http://x:99999/v1",
        "file:///x",
        "http://x/v1?key=1",
        "http://x/v1#a",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError):
        Engine.remote(url)


@pytest.mark.parametrize(
    "settings",
    [{"kind": "none"}, {"timeout": 0}, {"connect_timeout": -1.0}, {"timeout": float("nan")},
     {"max_requests": 0}, {"max_retries": -1}],
)  # fmt: skip
def test_settings_that_are_wrong(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Engine.remote("http://localhost:1/v1", **settings)


def test_a_host_that_is_no_name() -> None:
    with pytest.raises(BackendError, match="no server answers"):
        Engine.remote("http://a..b/v1", "m").complete(HI)


def test_what_lies_beside_the_base_url() -> None:
    assert Client("http://x/v1/").beside("/metrics") == "//metrics"
    assert Client("http://x/a/v1").beside("/metrics") == "//a/metrics"
    assert Client("http://x").beside("/metrics") == "//metrics"
