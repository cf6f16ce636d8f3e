"""On a real socket: waiting, keep-alive, cancelling, draining, clients that do not behave."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from agentspec.aio import Stop
from agentspec.backends.base import Output, Rows
from agentspec.errors import CancelledError, ConfigError
from agentspec.request import parse_request
from agentspec.server.jobs import Idle, Job
from agentspec.server.run import bind
from agentspec.testing.scripted import ScriptedBackend
from tests.server.conftest import HI, sse_events
from tests.threads import wait_for

pytestmark = pytest.mark.program

httpx = pytest.importorskip("httpx2")

CHAT = "/v1/chat/completions"
# only what hangs takes so long
LIMIT = 120
API_BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI},
    "/v1/completions": {"prompt": "<|im_start|>assistant\n"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 100},
}


class Gated(ScriptedBackend):
    """Each pass waits for the gate when `gated` says so of its number."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gate = threading.Event()
        self.gate.set()
        self.inside = threading.Event()
        self.pause = 0.0

    def forward(self, rows: Sequence[Rows]) -> Output:
        self.inside.set()
        time.sleep(self.pause)
        assert self.gate.wait(LIMIT)
        return super().forward(rows)


def gated(chat: Any, reply: str = "Hello.", **options: Any) -> Any:
    return chat.engine(chat.writing(reply), kind=Gated, **options)


def ask(url: str, path: str = CHAT, **options: Any) -> Any:
    return httpx.post(url + path, json={**API_BODIES[path], **options}, timeout=LIMIT)


def ask_text(url: str, path: str) -> str:
    return str(ask(url, path, stream=True).text)


def raw_request(
    port: int, body: dict[str, Any], path: str = CHAT, *, receives: int | None = None
) -> socket.socket:
    """A connection on which a request was sent and whose answer nobody reads."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    sock = socket.socket()
    _open.append(sock)
    sock.settimeout(LIMIT)
    if receives is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    sock.connect(("127.0.0.1", port))
    sock.sendall(head.encode() + data)
    return sock


_open: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _hung_up() -> Iterator[None]:
    """What a failing test left open is not reported as a second failure."""
    yield
    while _open:
        _open.pop().close()


def hang_up(sock: socket.socket) -> None:
    sock.close()


def quiet(server: Any) -> bool:
    line = server.state.line
    return not line.running and not line.waiting and not server.state.live._running


def passes_above(engine: Any, number: int) -> Callable[[], bool]:
    return lambda: len(engine.target.passes) > number


def asked_for(server: Any, number: int) -> bool:
    return bool(server.state.line.running + server.state.line.waiting == number)


def busy(engine: Any) -> bool:
    return any(slot.busy for slot in engine.slots())


def background(work: Any) -> tuple[threading.Thread, list[Any]]:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(work()), daemon=True)
    thread.start()
    return thread, got


def test_health_answers_and_real_events_come_while_a_long_prompt_is_read(
    serve: Any, chat: Any
) -> None:
    engine = gated(chat, chunk=128)
    server = serve(engine)
    # for as long as it is asked meanwhile it reads, two pieces for each time
    allowed = 0
    forward = engine.target.forward

    def held(rows: Sequence[Rows]) -> Output:
        wait_for(lambda: len(engine.target.passes) < allowed or meanwhile > 6)
        output: Output = forward(rows)
        return output

    engine.target.forward = held
    long = [{"role": "user", "content": "x" * 4000}]
    body = {"messages": long, "stream": True}
    meanwhile = 0
    progress = []
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=LIMIT) as answer:
        assert answer.status_code == 200
        text = ""
        for part in answer.iter_text():
            text += part
            if "prompt_progress" in part:
                assert httpx.get(server.url + "/health", timeout=LIMIT).json() == {"status": "ok"}
                meanwhile += engine.slots()[0].prompt_read < 4000
                allowed += 2
    assert meanwhile > 6
    for _, chunk in sse_events(text)[:-1]:
        assert chunk["choices"][0]["index"] == 0
        if "prompt_progress" in chunk:
            progress.append(chunk["prompt_progress"]["processed"])
            assert chunk["prompt_progress"]["total"] > 4000
    assert len(progress) > 5
    assert progress == sorted(progress)
    assert progress[-1] > 0


def test_keep_alive_events_of_each_api(
    serve: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    idles: Counter[Job] = Counter()
    idle = Job._idle

    def counted(job: Job) -> Idle:
        idles[job] += 1
        return idle(job)

    monkeypatch.setattr(Job, "_idle", counted)
    engine = gated(chat)
    server = serve(engine, parallel=1)
    engine.target.gate.clear()
    # one is held in its first pass, the others in the line
    asked = [background(partial(ask_text, server.url, path)) for path in API_BODIES]
    wait_for(lambda: len(idles) == 4 and min(idles.values()) > 3)
    engine.target.gate.set()
    for thread, got in asked:
        thread.join(LIMIT)
        found = 0
        for name, data in sse_events(got[0]):
            found += name in ("ping", "response.in_progress") or "prompt_progress" in data
        assert found >= 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_while_it_generates(serve: Any, chat: Any, stream: bool) -> None:
    engine = gated(chat, "x" * 5000, max_tokens=5000)
    server = serve(engine)
    for path in API_BODIES:
        engine.target.pause = 0.01
        body = {**API_BODIES[path], "stream": stream, "speculation": False}
        if "max_tokens" in body:
            body["max_tokens"] = 5000
        before = len(engine.target.passes)
        sock = raw_request(server.port, body, path)
        wait_for(passes_above(engine, before + 3))
        hang_up(sock)
        passes = len(engine.target.passes)
        wait_for(lambda: quiet(server))
        assert len(engine.target.passes) - passes < 4000  # of the 5000 that it would take
        assert server.state.live._recent[-1].state == "cancelled"
        engine.target.pause = 0
        assert ask(server.url, max_tokens=2).json()["choices"][0]["message"]["content"] == "xx"


def test_a_client_that_hangs_up_while_its_prompt_is_read(serve: Any, chat: Any) -> None:
    engine = gated(chat, chunk=16)
    engine.target.pause = 0.01
    server = serve(engine)
    for stream in (False, True):
        before = len(engine.target.passes)
        long = [{"role": "user", "content": f"{stream}" + "x" * 8000}]
        sock = raw_request(server.port, {"messages": long, "stream": stream})
        wait_for(passes_above(engine, before + 2))
        hang_up(sock)
        wait_for(lambda: quiet(server))
        assert len(engine.target.passes) - before < 450  # of more than 500
    engine.target.pause = 0
    assert ask(server.url).json()["choices"][0]["message"]["content"] == "Hello."


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_while_it_waits(serve: Any, chat: Any, stream: bool) -> None:
    engine = gated(chat)
    engine.target.gate.clear()
    server = serve(engine)
    thread, got = background(lambda: ask(server.url))
    wait_for(engine.target.inside.is_set)
    sock = raw_request(server.port, {"messages": HI, "stream": stream})
    wait_for(lambda: server.state.line.waiting == 1)
    hang_up(sock)
    wait_for(lambda: server.state.line.waiting == 0)
    assert server.state.line.running == 1
    engine.target.gate.set()
    thread.join(LIMIT)
    assert got[0].status_code == 200
    wait_for(lambda: quiet(server))


def test_who_hangs_up_while_a_request_is_prepared_counts_until_nothing_of_it_runs(
    serve: Any, monkeypatch: Any
) -> None:
    server = serve(parallel=1, max_queue=0)
    real, gate, inside = server.engine.begin, threading.Event(), threading.Event()
    stops: list[threading.Event] = []

    def begin(request: Any, stop: threading.Event) -> Any:
        stops.append(stop)
        inside.set()
        assert gate.wait(LIMIT)
        return real(request, stop)

    monkeypatch.setattr(server.engine, "begin", begin)
    sock = raw_request(server.port, {"messages": HI})
    assert inside.wait(LIMIT)
    hang_up(sock)
    assert stops[0].wait(LIMIT)
    assert ask(server.url).status_code == 429
    assert server.state.line.running == 1
    assert server.state.intake.held > 0
    gate.set()
    wait_for(lambda: quiet(server) and not server.state.intake.held)
    assert ask(server.url).json()["choices"][0]["message"]["content"] == "Hello."


def test_counting_tokens_ends_with_the_server(serve: Any, monkeypatch: Any) -> None:
    server = serve()
    inside = threading.Event()

    def begin(request: Any, stop: threading.Event) -> Any:
        inside.set()
        assert stop.wait(LIMIT)
        raise CancelledError("stopped")

    monkeypatch.setattr(server.engine, "begin", begin)
    thread, got = background(
        lambda: httpx.post(
            server.url + "/v1/messages/count_tokens", json={"messages": HI}, timeout=LIMIT
        )
    )
    assert inside.wait(LIMIT)
    server.state.stop_all()
    thread.join(LIMIT)
    assert got[0].status_code == 503


def test_a_prompt_is_not_made_for_a_server_that_stops(chat: Any) -> None:
    engine = chat.engine(chat.writing("Hello."))
    stop = Stop()
    stop.set()
    with pytest.raises(CancelledError):
        engine.begin(parse_request(HI), stop)
    assert not engine.target.passes


def test_clients_at_a_time_get_the_texts_that_they_get_in_turn(serve: Any, chat: Any) -> None:
    law = chat.hashed(5)
    asked = [[{"role": "user", "content": f"question {n}"}] for n in range(6)]
    alone = [chat.engine(law).complete(messages, max_tokens=30).text for messages in asked]
    engine = chat.engine(law, kind=Gated, max_sessions=3)
    engine.target.pause = 0.001
    server = serve(engine)
    assert server.state.options.parallel == 3
    threads = [
        background(partial(ask, server.url, messages=messages, max_tokens=30)) for messages in asked
    ]
    for (thread, got), text in zip(threads, alone, strict=True):
        thread.join(LIMIT)
        assert got[0].json()["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_while_its_prompt_finds_no_room(
    serve: Any, chat: Any, stream: bool
) -> None:
    engine = gated(chat, "x" * 100, max_sessions=2, n_ctx=700)
    engine.target.gate.clear()
    server = serve(engine)
    before = [{"role": "user", "content": "x" * 500}]
    thread, got = background(
        lambda: ask(server.url, messages=before, speculation=False, max_tokens=100)
    )
    wait_for(engine.target.inside.is_set)
    body = {"messages": [{"role": "user", "content": "X" * 500}], "stream": stream}
    sock = raw_request(server.port, body)
    wait_for(lambda: server.state.line.running == 2 and engine._scheduler.waiting == 1)
    hang_up(sock)
    wait_for(lambda: server.state.line.running == 1)
    assert thread.is_alive()
    engine.target.gate.set()
    thread.join(LIMIT)
    assert got[0].status_code == 200
    wait_for(lambda: quiet(server))


def test_a_full_line_is_a_429_that_says_when(serve: Any, chat: Any) -> None:
    engine = gated(chat)
    engine.target.gate.clear()
    server = serve(engine, max_queue=1)
    threads = []
    for n in range(2):
        threads.append(background(lambda: ask(server.url)))
        wait_for(partial(asked_for, server, n + 1))
    for path in API_BODIES:
        answer = ask(server.url, path)
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 600
        assert "error" in answer.json()
    assert httpx.get(server.url + "/health", timeout=LIMIT).status_code == 200
    engine.target.gate.set()
    for thread, got in threads:
        thread.join(LIMIT)
        assert got[0].status_code == 200
    assert ask(server.url).status_code == 200


def test_a_signal_drains_and_refuses_what_is_new(serve: Any, chat: Any) -> None:
    engine = gated(chat)
    engine.target.gate.clear()
    server = serve(engine)
    thread, got = background(lambda: ask(server.url))
    wait_for(engine.target.inside.is_set)
    server.signal()
    wait_for(lambda: server.state.line.draining)
    refused = ask(server.url)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert httpx.get(server.url + "/health", timeout=LIMIT).status_code == 503
    engine.target.gate.set()
    thread.join(LIMIT)
    assert got[0].json()["choices"][0]["message"]["content"] == "Hello."
    server.thread.join(LIMIT)
    assert not server.thread.is_alive()
    assert server.server.ended_by is None


@pytest.mark.parametrize("how", ["second signal", "deadline"])
def test_an_answer_that_does_not_end_is_ended(serve: Any, chat: Any, how: str) -> None:
    engine = gated(chat, "x" * 10_000, max_tokens=10_000)
    engine.target.pause = 0.01
    server = serve(engine, drain_seconds=20 if how == "second signal" else 0.2)
    url = server.url
    thread, got = background(lambda: ask(url, stream=True).text)
    wait_for(lambda: len(engine.target.passes) > 3)
    server.signal()
    if how == "second signal":
        wait_for(lambda: server.state.line.draining)
        server.signal()
    server.thread.join(LIMIT)
    assert not server.thread.is_alive()
    thread.join(LIMIT)
    if got:  # told, or cut off: never a whole answer
        assert "[DONE]" not in got[0]
    wait_for(lambda: not busy(engine))


def test_an_open_page_does_not_keep_the_server(serve: Any) -> None:
    server = serve()
    with httpx.stream("GET", server.url + "/events", timeout=LIMIT) as feed:
        parts = feed.iter_text()
        next(parts)
        server.signal()
        for _ in parts:
            pass
        server.thread.join(LIMIT)
    assert not server.thread.is_alive()


def test_a_head_that_never_ends_is_cut_off(serve: Any) -> None:
    server = serve(header_seconds=0.3)
    first = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    protocol = server.server.config.http
    assert protocol.header_seconds == 0.3
    for before in (b"", first):
        protocol.header_seconds = LIMIT if before else 0.3
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)
        if before:
            sock.sendall(before)
            assert b"200 OK" in sock.recv(4096)
        protocol.header_seconds = 0.3
        with suppress(ConnectionError):  # on a busy machine it is cut off before
            sock.sendall(b"GET /health HTTP/1.1\r\n")
            while sock.recv(4096):
                pass
        sock.close()


def test_a_body_that_never_ends_is_a_408(serve: Any) -> None:
    server = serve(body_seconds=0.3)
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    assert b" 408 " in sock.recv(4096)
    sock.close()


def test_heads_that_are_refused(serve: Any) -> None:
    server = serve()
    start = b"GET /health HTTP/1.1\r\n"
    good = start + b"Host: 127.0.0.1\r\n"
    for head in (
        start + b"\r\n",
        start + b"Host: a\r\nHost: 127.0.0.1\r\n\r\n",
        good + b"X: " + b"x" * 100_000 + b"\r\n\r\n",
        good + b"X: x\r\n" * 150 + b"\r\n",
        b"nonsense\r\n\r\n",
    ):
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)
        sock.sendall(head)
        assert sock.recv(4096).split(b" ")[1] in (b"400", b"431")
        sock.close()
    assert httpx.get(server.url + "/health", timeout=LIMIT).status_code == 200


def deaf_request(server: Any) -> socket.socket:
    """A connection that was asked for much and takes little of it."""
    # what is accepted from now on has as little room
    listening = server.server.servers[0].sockets[0]
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    body = {"messages": HI, "stream": True, "logprobs": True, "top_logprobs": 20}
    body["speculation"] = False
    return raw_request(server.port, body, receives=2048)


@pytest.mark.parametrize("how", ["second signal", "deadline"])
def test_who_reads_nothing_is_hung_up_on_quietly_at_the_end(
    serve: Any,
    chat: Any,
    how: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentspec.server.run._TOLD_SECONDS", 0.5)
    engine = gated(chat, "x" * 600, max_tokens=600)
    server = serve(engine, drain_seconds=20 if how == "second signal" else 0.2)
    sock = deaf_request(server)

    def stuck() -> bool:
        before = len(engine.target.passes)
        time.sleep(0.2)
        return 20 < before == len(engine.target.passes)

    wait_for(stuck)
    server.signal()
    if how == "second signal":
        server.signal()
    server.thread.join(LIMIT)
    assert not server.thread.is_alive()
    assert [record.msg for record in caplog.records if record.levelname == "ERROR"] == []
    sock.close()


def test_a_page_that_comes_as_the_server_ends_is_told(client: Any) -> None:
    here = client()
    here.state.live.close()
    assert here.get("/events").status_code == 503


def test_a_client_that_reads_nothing_does_not_hold_the_engine(serve: Any, chat: Any) -> None:
    engine = gated(chat, "x" * 3000, max_tokens=3000)
    server = serve(engine, send_seconds=0.3)
    sock = deaf_request(server)
    wait_for(lambda: engine.target.passes)
    wait_for(lambda: quiet(server))
    assert ask(server.url, max_tokens=2).status_code == 200
    sock.close()


def test_a_hundred_cancelled_requests_leave_nothing_behind(serve: Any, chat: Any) -> None:
    law = chat.hashed(3)
    fresh = chat.engine(law).complete(HI, max_tokens=40).text
    engine = chat.engine(law, kind=Gated, max_tokens=400, chunk=16)
    engine.target.pause = 0.001
    server = serve(engine)
    counts = []
    for n in range(100):
        path = list(API_BODIES)[n % 4]
        body = {**API_BODIES[path], "stream": bool(n % 3)}
        before = len(engine.target.passes)
        sock = raw_request(server.port, body, path)
        if n % 5:
            wait_for(passes_above(engine, before + n % 4))
        hang_up(sock)
        if n in (19, 99):
            wait_for(lambda: quiet(server))
            gc.collect()
            wait_for(lambda: sum(t.name == "agentspec-stream" for t in threading.enumerate()) == 0)
            counts.append(sum(issubclass(type(o), threading.Event) for o in gc.get_objects()))
            counts.append(len(server.state._stops))
            counts.append(len(engine.target.caches))
            counts.append(busy(engine))
    assert counts[1:4] == counts[5:8] == [0, 1, False]
    assert counts[4] <= counts[0] + 40  # one each, were they kept
    answer = ask(server.url, max_tokens=40).json()
    assert answer["choices"][0]["message"]["content"] == fresh
    assert server.state.line.running == server.state.line.waiting == 0


def test_a_port_in_use_is_said_clearly() -> None:
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use"):
        bind("127.0.0.1", port)
    sock.close()
    with pytest.raises(ConfigError, match="is no address of this machine"):
        bind("no.such.host.invalid", 0)
    with pytest.raises(ConfigError, match="cannot listen"):
        bind("203.0.113.7", 0)


def test_the_feed_streams_while_an_answer_is_written(serve: Any, chat: Any) -> None:
    engine = gated(chat, "x" * 150, max_tokens=400)
    engine.target.gate.clear()
    server = serve(engine)
    thread, _ = background(lambda: ask(server.url, speculation=False))
    wait_for(engine.target.inside.is_set)
    pieces: dict[str, list[Any]] = {}
    states = set()
    with httpx.stream("GET", server.url + "/events", timeout=LIMIT) as feed:
        text = ""
        for part in feed.iter_text():
            text += part
            engine.target.gate.set()
            if '"state":"stop"' in text and "pieces" in text:
                break
    for name, data in sse_events(text.rpartition("\n\n")[0]):
        if name == "live":
            states |= {answer["state"] for answer in [*data["running"], *data["recent"]]}
        else:
            known = pieces.setdefault(data["id"], [])
            known[data["from"] :] = data["pieces"]
    thread.join(LIMIT)
    assert "stop" in states
    (known,) = pieces.values()
    assert set("".join(piece for piece, _ in known)) == {"x"}
    wait_for(lambda: server.state.live._readers == 0)
