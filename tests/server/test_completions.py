"""`/v1/completions`."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.testing.scripted import ScriptedBackend
from tests.server.conftest import sse_events

URL = "/v1/completions"


@pytest.fixture
def here(client: Any, chat: Any) -> Any:
    script = [*b"ab", *b"cdefgh", chat.eos]

    def law(cached: Any) -> Any:
        logits = chat.hashed()(cached).copy()
        logits[script[len(cached)] if len(cached) < len(script) else chat.eos] = 50.0
        return logits

    return client(chat.engine(ScriptedBackend(law, chat.vocab, tokenizer=chat.tokenizer())))


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]])
def test_a_raw_prompt_goes_on(here: Any, prompt: Any) -> None:
    body = here.post(URL, json={"prompt": prompt, "logprobs": 1}).json()
    assert body["object"] == "text_completion"
    (choice,) = body["choices"]
    assert choice["text"] == "cdefgh"
    assert choice["finish_reason"] == "stop"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"][:6] == list("cdefgh")
    assert logprobs["text_offset"][:6] == [0, 1, 2, 3, 4, 5]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 7


def test_a_stream(here: Any) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3}
    events = sse_events(here.post(URL, json={"prompt": "ab", **options}).text)
    assert events[-1] == (None, "[DONE]")
    chunks = [data for _, data in events[:-1]]
    assert "".join(c["text"] for chunk in chunks for c in chunk["choices"]) == "cde"
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [1, 10**6]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "x"}, "suffix"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
    ],
)
def test_what_is_wrong_is_a_400(here: Any, options: dict[str, Any], param: str) -> None:
    answer = here.post(URL, json=options)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
