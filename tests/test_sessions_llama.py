"""Several sequences of llama.cpp in one cache: what each is told stays its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentspec import loading
from agentspec.request import parse_text_request

LONG = "The quick brown fox jumps over the lazy dog. " * 6


def ask(n: int, system: str = LONG) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": f"question {n}: abc abc abc {n * n}"},
    ]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    monkeypatch.setattr("agentspec.audit.store._default_folder", lambda: tmp_path / "kept")
    monkeypatch.setattr("agentspec.control.cost_store._default_folder", lambda: tmp_path / "costs")

    def load_tiny(path: Path, **settings: Any) -> Any:
        small = {"n_ctx": 2048, "n_threads": 1, "n_gpu_layers": 0, "kv_type": "f32"}
        return loading.load_engine(path, **{**small, **settings})

    return load_tiny


def text_of(chunks: Any) -> str:
    return "".join(c.delta.content or "" for k in chunks for c in k.choices)


def cached(answer: Any) -> int:
    return int(answer.usage.prompt_tokens_details.cached_tokens)


@pytest.mark.parametrize("kind", ["dense", "recurrent", "hybrid"])
def test_interleaved_answers_are_those_of_one_after_the_other(
    load: Any, tiny: Any, kind: str
) -> None:
    options: dict[str, Any] = {"max_tokens": 24, "context": "abc abc abc"}
    alone = []
    for n in range(3):
        with load(tiny(kind), max_sessions=1) as engine:
            alone.append(engine.complete(ask(n), **options).text)
    with load(tiny(kind), max_sessions=3, speculation=True) as engine:
        assert len(engine.slots()) == 3
        streams = [engine.stream(ask(n), **options) for n in range(3)]
        got: list[list[Any]] = [[], [], []]
        for step in range(90):
            chunk = next(streams[step % 3], None)
            got[step % 3] += [] if chunk is None else [chunk]
        for n in range(3):
            got[n] += streams[n]
        assert [text_of(chunks) for chunks in got] == alone
        if kind == "dense":  # the instructions were read once
            assert cached_of(got[1]) > 250
            assert cached_of(got[2]) > 250


def cached_of(chunks: list[Any]) -> int:
    return int(chunks[-1].usage.prompt_tokens_details.cached_tokens)


def test_a_sliding_window_takes_one_sequence(load: Any, tiny: Any) -> None:
    with load(tiny("swa"), max_sessions=3) as engine:
        assert len(engine.slots()) == 1
        for n in (0, 1, 0):
            assert engine.complete(ask(n), max_tokens=8).usage.completion_tokens


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_more_conversations_than_cells(load: Any, tiny: Any, kind: str) -> None:
    """A cache of 1,024 cells and five conversations of 500 tokens: nothing fails, all come back."""
    with load(tiny(kind), max_sessions=4, n_ctx=1024) as engine:
        first = [engine.complete(ask(n), max_tokens=8).text for n in range(5)]
        streams = [engine.stream(ask(n, LONG * 2), max_tokens=40) for n in range(2)]
        for stream in streams:
            list(stream)
        again = [engine.complete(ask(n), max_tokens=8).text for n in range(5)]
        assert again == first


def test_one_conversation_can_still_use_the_whole_context(load: Any, tiny: Any) -> None:
    with load(tiny("dense"), max_sessions=4, n_ctx=512) as engine:
        for n in range(4):
            engine.complete([{"role": "user", "content": f"{n}" * 90}], max_tokens=4)
        prompt = [{"role": "user", "content": "x" * 400}]
        answer = engine.complete(prompt, max_tokens=200, stop_token_ids=[])
        assert answer.usage.total_tokens <= 512
        assert answer.usage.completion_tokens > 0


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_a_cache_that_cannot_be_cut_begins_at_the_end_of_the_last_prompt(
    load: Any, tiny: Any, kind: str
) -> None:
    with load(tiny(kind), max_sessions=2) as engine:
        talk = ask(1)
        first = engine.complete(talk, max_tokens=12)
        talk += [{"role": "assistant", "content": "something else"}, *ask(2)[1:]]
        again = engine.complete(talk, max_tokens=12)
        assert cached(again) >= first.usage.prompt_tokens - 20
    with load(tiny(kind), max_sessions=1) as engine:
        assert engine.complete(talk, max_tokens=12).text == again.text


def raw(engine: Any, ids: list[int]) -> Any:
    answer, events = engine.begin(parse_text_request(ids, max_tokens=8))
    for event in events:
        answer.add(event)
    return answer.completion()


@pytest.mark.parametrize("kind", ["dense", "swa", "recurrent", "hybrid"])
def test_a_restart_goes_on_where_it_was(
    load: Any, tiny: Any, kind: str, tmp_path: Path, caplog: Any
) -> None:
    folder = tmp_path / "sessions"
    told = {"max_sessions": 2, "sessions_dir": folder, "speculation": False}
    with load(tiny(kind), **told) as engine:
        engine.complete(ask(1), max_tokens=12)
        ids = [*engine.tokens, *b" and then"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    with load(tiny(kind)) as engine:
        expected = raw(engine, ids).text
    with load(tiny(kind), **told) as engine:
        again = raw(engine, ids)
        assert again.text == expected
        assert cached(again) >= len(ids) - 12
    for other in ({"sessions_salt": "other"}, {"template": "{{ messages[0].content }}"}):
        with load(tiny(kind), **other, **told) as engine:
            assert cached(raw(engine, ids)) == 0
    for path in folder.glob("*.state"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    caplog.clear()
    with load(tiny(kind), **told) as engine:
        assert cached(raw(engine, ids)) == 0
    assert len([r for r in caplog.records if "damaged" in r.message]) == 1


@pytest.mark.weights
def test_two_clients_of_smollm2_get_what_they_get_alone(load: Any, weights: Any) -> None:
    """Up to ties: what else is in the cache changes the rounding of llama.cpp's attention."""
    path = weights("smollm2-135m")
    options: dict[str, Any] = {"max_tokens": 12, "logprobs": True, "top_logprobs": 2}
    alone = []
    asks = [[{"role": "user", "content": f"Name a {what}."}] for what in ("colour", "large city")]
    with load(path, max_sessions=1, speculation=False, n_threads=2, kv_type="f16") as engine:
        alone = [engine.complete(messages, **options) for messages in asks]
    with load(path, max_sessions=2, speculation=False, n_threads=2, kv_type="f16") as engine:
        streams = [engine.stream(messages, **options) for messages in asks]
        both: list[list[Any]] = [[], []]
        for step in range(60):
            chunk = next(streams[step % 2], None)
            both[step % 2] += [] if chunk is None else [chunk]
    for answer, chunks in zip(alone, both, strict=True):
        got = [e for c in chunks for k in c.choices if k.logprobs for e in k.logprobs.content or ()]
        expected = answer.choices[0].logprobs.content
        for mine, its in zip(got, expected, strict=False):
            if mine.token != its.token:
                gap = its.top_logprobs[0].logprob - its.top_logprobs[1].logprob
                assert gap < 1.0, "not a tie"
                break
        else:
            assert text_of(chunks) == answer.text


@pytest.mark.weights
@pytest.mark.parametrize(
    ("model", "turns"),
    [("smollm2-135m", 3), pytest.param("qwen2.5-coder-1.5b", 20, marks=pytest.mark.slow)],
)
def test_a_tool_loop_reads_no_history_twice(
    load: Any, weights: Any, model: str, turns: int
) -> None:
    """What the model wrote comes back as JSON of a client: other keys first, other spacing."""
    pytest.importorskip("llguidance")
    tool = {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Read lines of a file",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "maxLength": 12},
                    "line": {"enum": [1, 2]},
                },
                "required": ["path", "line"],
                "additionalProperties": False,
            },
        },
    }
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read line 1 of a.py."}]
    options: dict[str, Any] = {"tools": [tool], "tool_choice": "required", "max_tokens": 80}
    options["parallel_tool_calls"] = False
    held = reused = 0
    with load(weights(model), n_ctx=8192, n_threads=1, kv_type="f16", speculation=False) as engine:
        for turn in range(turns):
            before = len(engine.tokens)
            answer = engine.complete(messages, **options)
            held += before if turn else 0
            reused += cached(answer)
            (call,) = answer.tool_calls
            arguments = json.loads(call.function.arguments)
            text = json.dumps(arguments, sort_keys=bool(turn % 2), separators=(",", " : "))
            function = {"name": call.function.name, "arguments": text}
            back: dict[str, Any] = {
                "role": "assistant",
                "tool_calls": [{"id": "x", "function": function}],
            }
            if turn % 2:
                back["content"] = None
            messages += [back, {"role": "tool", "tool_call_id": "x", "content": f"x = {turn}"}]
    assert reused >= 0.99 * held
