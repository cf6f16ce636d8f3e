"""Files of traces and of messages, and one line for what is wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import InvalidRequestError
from agentspec.replay.recording import Call, Said, read_recordings, read_sample, trace_files

USER = {"role": "user", "content": "hi"}


def read(path: Path, data: Any) -> Any:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return read_recordings([path])


def test_a_trace_file(tmp_path: Path) -> None:
    path = tmp_path / "owner__name.jsonl.gz"
    call = {"id": "1", "name": "read", "arguments": {"path": "ä"}}
    sessions = [
        {"id": "a", "source": "x:y", "messages": [USER]},
        {
            "id": "b",
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "no"},
                {"role": "tool", "content": "text", "tool_call_id": "1"},
            ],
        },
    ]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, sessions)).encode()))
    first, second = read_recordings([path])
    assert (first.id, first.source, first.where) == ("a", "owner__name", f"{path.name}:1")
    assert first.messages == (Said("user", "hi"),)
    assert second.messages == (
        Said("assistant", "", (Call("read", {"path": "ä"}),)),
        Said("tool", "text"),
    )


def test_openai_messages(tmp_path: Path) -> None:
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}},
        {"type": "function", "function": {"name": "g", "arguments": "{broken"}},
    ]
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": calls},
    ]
    (found,) = read(tmp_path / "m.json", {"messages": messages, "tools": tools})
    assert found.messages == (
        Said("user", "ab"),
        Said("assistant", "", (Call("f", {"a": [1]}), Call("g", "{broken"))),
    )
    assert found.tools == tuple(tools)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        ([USER, USER], 1),
        ([[USER], [USER]], 2),
        ([{"messages": [USER]}, {"messages": [USER]}], 2),
        (json.dumps({"messages": [USER]}, indent=1), 1),
        (json.dumps([USER]) + "\n\n" + json.dumps({"messages": [USER]}) + "\n", 2),
    ],
)
def test_how_conversations_are_laid_out(tmp_path: Path, data: Any, count: int) -> None:
    assert len(read(tmp_path / "m.json", data)) == count


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "m.jsonl is empty"),
        ("[]\nno json", "m.jsonl:2 is not JSON"),
        ('{"messages": [\n{,', "m.jsonl:2 is not JSON"),
        ("3", "m.jsonl:1 holds no list of messages"),
        ('[]\n{"messages": 1}', "m.jsonl:2 holds no list of messages"),
        ([USER, 5], "m.jsonl:1: message 1 is not an object"),
        ([{"role": 1}], "message 0 has no role"),
        ([{"role": "user", "content": 1}], "message 0 has content"),
        ([{"role": "user", "content": [{"text": 1}]}], "message 0 has a part"),
        ([{**USER, "tool_calls": {"a": 1}}], "message 0 has tool_calls"),
        ([{**USER, "tool_calls": [1]}], "message 0 has a tool call that"),
        ([{**USER, "tool_calls": [{"function": {}}]}], "message 0 has a tool call without a name"),
        ({"messages": [], "tools": [1]}, "m.jsonl:1: tools is not"),
        ("[" * 100_000, "m.jsonl:1 is not JSON"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, data: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(tmp_path / "m.jsonl", data)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"\x1f\x8bno gzip", gzip.compress(b"[]" * 99, mtime=0)[:-9], b"[]\n\xff"]
)
def test_bytes_that_are_no_text(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.jsonl.gz"
    path.write_bytes(data)
    with pytest.raises(InvalidRequestError, match=r"m\.jsonl\.gz"):
        read_recordings([path])


def test_a_sample_takes_what_it_names(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        lines = [json.dumps({"id": f"{n}", "messages": [USER]}) for n in range(3)]
        (tmp_path / name).write_text("\n".join(lines))
    sample = tmp_path / "sample.json"
    sample.write_text(json.dumps([["b.jsonl", "2"], ["a.jsonl", "0"], ["b.jsonl", "1"]]))
    chosen = read_sample(sample)
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    found = [(r.source, r.id) for r in read_recordings(paths, chosen)]
    assert found == [("a", "0"), ("b", "1"), ("b", "2")]
    with pytest.raises(InvalidRequestError, match=r"names b\.jsonl, which was not given"):
        read_recordings(paths[:1], chosen)
    with pytest.raises(InvalidRequestError, match=r"a\.jsonl has no session '7'"):
        read_recordings(paths, [("a.jsonl", "7")])


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[["a"]]', '[["a", 1]]'])
def test_a_bad_sample(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sample.json"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match=r"sample\.json is not"):
        read_sample(path)


def test_a_folder_is_its_traces(tmp_path: Path) -> None:
    for name in ("b.jsonl.gz", "a.jsonl.gz", "sample.json"):
        (tmp_path / name).touch()
    assert [p.name for p in trace_files([tmp_path])] == ["a.jsonl.gz", "b.jsonl.gz"]
    with pytest.raises(InvalidRequestError, match="the same name"):
        trace_files([tmp_path, tmp_path / "a.jsonl.gz"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequestError, match="holds no"):
        trace_files([tmp_path / "empty"])
