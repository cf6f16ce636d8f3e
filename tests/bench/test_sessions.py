"""Session files: what is taken, and one line naming file and line for what is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.bench.sessions import load_sessions, packaged_sessions
from agentspec.errors import InvalidRequestError
from agentspec.request import parse_request

HI = [{"role": "user", "content": "hi"}]


def test_the_packaged_ones_are_ten_valid_requests() -> None:
    sessions = packaged_sessions()
    assert len({s.id for s in sessions}) == len(sessions) == 10
    assert len({s.kind for s in sessions}) > 2
    for session in sessions:
        parse_request(session.messages, tools=session.tools or None)


def test_one_conversation_a_line_or_one_a_file(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    # U+2028 ends a line for str.splitlines, but not in JSON
    odd = json.dumps([{"role": "user", "content": "a\u2028b\x85c"}], ensure_ascii=False)
    whole = {"messages": HI, "id": 7, "kind": "k", "tools": [{"name": "f"}]}
    lines.write_text(f"{odd}\n\n{json.dumps(whole)}\r\n", "utf-8", newline="")
    pretty = tmp_path / "pretty.json"
    pretty.write_text(json.dumps({"messages": HI}, indent=2))
    first, second, third = load_sessions([lines, pretty])
    assert first.messages[0]["content"] == "a\u2028b\x85c"
    assert (first.id, first.kind, first.tools) == ("lines.jsonl-1", "", [])
    assert (second.id, second.kind, second.tools) == ("7", "k", [{"name": "f"}])
    assert (third.id, third.messages) == ("pretty.json-1", HI)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "s.jsonl holds no session"),
        (b"\n \n", "s.jsonl holds no session"),
        (b"not json", "s.jsonl:1 is not JSON"),
        (json.dumps(HI).encode() + b"\n{oops", "s.jsonl:2 is not JSON"),
        (b"[" * 100_000, "s.jsonl:1 is not JSON"),
        (b"5", "s.jsonl:1 holds no list of messages"),
        (b'{"tools": []}', "s.jsonl:1 holds no list of messages"),
        (b'{"messages": "hi"}', "s.jsonl:1 holds no list of messages"),
        (b"[]", "s.jsonl:1: messages must hold at least one"),
        (b'[{"role": "robot"}]', r"s.jsonl:1: messages\[0\].role"),
        (b'{"messages": [{"role": "user", "content": "a"}], "tools": [1]}', r"tools\[0\]"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        load_sessions([path])
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        load_sessions([tmp_path])
