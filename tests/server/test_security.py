"""Who is let in, what a body may be, and what every answer carries."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.server.options import ServerOptions
from agentspec.server.security import check_bind, check_keys, read_keys
from tests.server.conftest import HI

CHAT = "/v1/chat/completions"
KEY = "sk-a-good-long-key"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_a_loopback_address_needs_no_key(host: str) -> None:
    check_bind(ServerOptions(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "", "example.org", "127.0.0.1.x"])
def test_any_other_address_needs_one(host: str) -> None:
    with pytest.raises(ConfigError, match="needs an API key"):
        check_bind(ServerOptions(host=host))
    check_bind(ServerOptions(host=host, keys=(KEY,)))


@pytest.mark.parametrize("origin", ["*", "example.org", "https://", "https://a/b", "file://x"])
def test_origins_that_are_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ConfigError, match="--allow-origin"):
        check_bind(ServerOptions(allow_origins=(origin,)))


def test_origins_that_are_taken() -> None:
    check_bind(ServerOptions(allow_origins=("https://a.b:8", "app://obsidian.md")))
    check_bind(ServerOptions(allow_origins=("*",), keys=(KEY,)))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("LocalHost.:99", 200),
        ("[::1]:8080", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:80", 403),
        ("192.168.0.7", 403),
        ("my.host", 200),
        ("127.0.0.1:80@evil", 400),
        ("", 400),
    ],
)
def test_the_host_must_be_a_name_of_this_server(client: Any, host: str, status: int) -> None:
    here = client(allow_hosts=("my.host",))
    for path in ("/health", "/v1/models", "/"):
        answer = here.get(path, headers={"host": host})
        assert answer.status_code == status, answer.text
    assert here.post(CHAT, json={"messages": HI}, headers={"host": host}).status_code == status


def test_a_wildcard_address_answers_to_addresses_but_not_to_names(client: Any) -> None:
    here = client(host="0.0.0.0", keys=(KEY,))
    for host, status in (("192.168.0.7:8080", 200), ("[fe80::1]", 200), ("evil.example", 403)):
        headers = {"host": host, "x-api-key": KEY}
        assert here.get("/v1/models", headers=headers).status_code == status
    bound = client(host="10.0.0.5", keys=(KEY,))
    for host, status in (("10.0.0.5:8080", 200), ("10.0.0.6", 403)):
        headers = {"host": host, "x-api-key": KEY}
        assert bound.get("/v1/models", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:8080"}, 200),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "https://good.example"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
    ],
)
def test_other_web_pages_are_refused(client: Any, headers: dict[str, str], status: int) -> None:
    here = client(allow_origins=("https://good.example",))
    assert here.get("/v1/models", headers=headers).status_code == status
    answer = here.post(CHAT, json={"messages": HI}, headers=headers)
    assert answer.status_code == status
    good = headers.get("origin") == "https://good.example"
    assert (answer.headers.get("access-control-allow-origin") == "https://good.example") == good
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["vary"] == "Origin"


def test_a_link_to_the_page_works(client: Any) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    here = client()
    assert here.get("/", headers=headers).status_code == 200
    assert here.get("/slots", headers=headers).status_code == 403


def test_the_question_before_a_request_of_another_page(client: Any) -> None:
    asked = {
        "origin": "https://good.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, x-api-key, bad header\x7f",
    }
    here = client(allow_origins=("https://good.example",), keys=(KEY,))
    answer = here.options(CHAT, headers={k: v.replace("\x7f", "!") for k, v in asked.items()})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "https://good.example"
    assert answer.headers["access-control-allow-headers"] == "content-type, x-api-key"
    asked["origin"] = "https://evil.example"
    evil = here.options(CHAT, headers={k: v.replace("\x7f", "!") for k, v in asked.items()})
    assert evil.status_code == 403
    assert "access-control-allow-origin" not in evil.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer  {KEY} "}, 200),
        ({"x-api-key": KEY}, 200),
        ({"x-api-key": "other-key-2"}, 200),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": f"Bearer {KEY}x"}, 401),
        ({"authorization": f"Bearer {KEY[:-1]}"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Bearer ungültig".encode("latin-1")}, 401),
    ],
)
def test_the_key(client: Any, headers: Any, status: int, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    here = client(keys=(KEY, "other-key-2"))
    for path in ("/v1/models", "/props", "/slots", "/metrics", "/openapi.json", "/api/live"):
        answer = here.get(path, headers=headers)
        assert answer.status_code == status
        assert KEY not in answer.text
    answer = here.post(CHAT, json={"messages": HI}, headers=headers)
    assert answer.status_code == status
    assert here.get("/health").status_code == 200
    assert here.get("/").status_code == 200
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"
        anthropic = here.post("/v1/messages", json={}, headers=headers).json()
        assert anthropic["error"]["type"] == "authentication_error"
    assert KEY not in caplog.text
    assert KEY not in repr(here.state.options)


def test_keys_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# mine\n{KEY}\n\nother-key-2\n")
    assert read_keys(file) == (KEY, "other-key-2")
    for text in ("", "# nothing\n", "short\n", "with a space in it\n", "schlüssel-lang\n"):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            read_keys(file)
        assert "short" not in str(caught.value) or text == ""
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "absent")
    with pytest.raises(ConfigError, match="too many"):
        check_keys([KEY] * 1001)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"content-type": "application/x-www-form-urlencoded"}, 415),
        (b"{}", {"content-type": "multipart/form-data"}, 415),
        (b"{}", {"content-type": "application/json; charset=utf-16"}, 415),
        (b"{}", {"content-type": "application/json", "content-encoding": "gzip"}, 415),
        (b"", {}, 400),
        (b"[]", {}, 400),
        (b"{", {}, 400),
        (b'{"messages": "\xff"}', {}, 400),
        (b'{"messages": NaN}', {}, 400),
        (b'{"max_tokens": 1e999}', {}, 400),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", {}, 400),
        (b'{"messages": "\\ud800"}', {}, 400),
        (b'{"messages": "\xed\xa0\x80"}', {}, 400),
        ('{"messages": [{"role": "user", "content": "hi"}]}'.encode("utf-16"), {}, 400),
        ('{"metadata": {"a": "\\ud800"}, "input": "hi"}'.encode("utf-32"), {}, 400),
        (b'{"\\ud800": 1}', {}, 400),
        (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", {}, 400),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}, 400),
        (b'{"a": [' + b"1," * 2_000_001 + b"1]}", {}, 400),
        (b'{"a": "' + b"x" * (6 << 20) + b'"}', {}, 413),
    ],
)
def test_bodies_that_are_refused(
    client: Any, body: bytes, headers: dict[str, str], status: int
) -> None:
    here = client(max_body=5 << 20)
    headers = {"content-type": "application/json", **headers}
    for path in (CHAT, "/v1/messages", "/v1/responses", "/tokenize"):
        answer = here.post(path, content=body, headers=headers)
        assert answer.status_code == status, answer.text
        message = answer.json()["error"]["message"]
        assert message
        if b"[[" in body:
            assert "nested" in message


def test_a_body_in_chunks_is_counted_as_it_comes(client: Any) -> None:
    sent = 0

    def parts() -> Any:
        nonlocal sent
        for _ in range(100):
            sent += 1000
            yield b" " * 1000

    headers = {"content-type": "application/json"}
    answer = client(max_body=10_000).post(CHAT, content=parts(), headers=headers)
    assert answer.status_code == 413


def test_bodies_at_a_time_are_bounded_and_let_go(client: Any) -> None:
    here = client(max_body=1000)
    for path in (CHAT, "/v1/messages", "/tokenize"):
        here.post(path, json={"messages": HI, "stream": True})
    intake = here.state.intake
    assert intake.held == 0
    intake.held = 7990  # as if others were being read
    refused = here.post(CHAT, json={"messages": HI})
    assert refused.status_code == 429
    assert refused.headers["retry-after"]
    assert intake.held == 7990


def test_headers_of_every_answer(client: Any) -> None:
    here = client()
    for answer in (
        here.get("/"),
        here.get("/nothing"),
        here.get("/health"),
        here.post(CHAT, json={"messages": HI}),
        here.post(CHAT, json={"messages": HI, "stream": True}),
        here.post(CHAT, json={}),
        here.get("/health", headers={"host": "evil.example"}),
    ):
        headers = answer.headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "name",
    [
        "..%2fapp.py",
        "%2e%2e/app.py",
        "..%5capp.py",
        "app.py",
        ".html",
        "index.html%00",
        "%00.js",
        "x",
        "a" * 300 + ".js",
    ],
)
def test_the_page_gives_its_own_files_only(client: Any, name: str) -> None:
    assert client().get(f"/page/{name}").status_code == 404


def test_unknown_paths_and_methods_in_the_bodies_of_each_api(client: Any) -> None:
    here = client()
    assert here.get("/nothing").json()["error"]["code"] == "not_found"
    wrong = here.get(CHAT)
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert here.get("/v1/messages").json()["type"] == "error"
    refused = here.post("/v1/embeddings", json={"input": "x"})
    assert refused.status_code == 501
    assert "no embeddings" in refused.json()["error"]["message"]


def test_without_the_page_no_text_is_kept(client: Any) -> None:
    here = client(page=False)
    assert here.post(CHAT, json={"messages": HI}).status_code == 200
    for path in ("/events", "/api/live", "/page/index.html"):
        assert here.get(path).status_code == 404
    assert not here.state.live._recent


@pytest.mark.parametrize("page", [True, False])
def test_who_looks_whether_a_server_lives_asks_for_the_root(client: Any, page: bool) -> None:
    here = client(page=page, keys=(KEY,))
    assert here.head("/").status_code == here.get("/").status_code == 200
    assert here.head("/").content == b""
    if not page:
        (line,) = here.get("/").text.splitlines()
        assert "agentspec" in line
        assert "/openapi.json" in line
    assert here.head("/health").status_code == 200
