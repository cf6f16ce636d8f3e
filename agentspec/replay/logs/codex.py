"""Codex: `~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl`.

A line is `{"timestamp", "type", "payload"}`; what the model read and wrote are those of type
`response_item`, whose payloads are items of OpenAI's responses: messages, calls and their
outputs. Before version 0.32 a line was the item itself. `compacted` replaces what was said before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentspec.replay.logs.files import Files, Form
from agentspec.replay.logs.talk import Talk, text_of, time_of

_ENVELOPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")


def _claims(record: Mapping[str, Any]) -> bool:
    if record.get("type") in _ENVELOPES:
        return isinstance(record.get("payload"), dict)
    return {"id", "timestamp"} <= record.keys() and bool({"instructions", "git"} & record.keys())


def _read(files: Files) -> Iterator[Talk]:
    for file in files.named(".jsonl"):
        yield from _talks(files, file)


def _talks(files: Files, file: Path) -> Iterator[Talk]:
    where, begun, told = files.where(file), "", False
    talk, parts = Talk(file.stem, where), 1
    for line in files.lines(file):
        kind, payload = line.get("type"), line.get("payload")
        begun = begun or time_of(line.get("timestamp"))
        if kind == "compacted" and isinstance(payload, dict):
            yield talk
            parts += 1
            talk = Talk(f"{file.stem}-{parts}", where, begun)
            history = payload.get("replacement_history")
            if isinstance(history, list):
                for item in history:
                    _hear(talk, item)
            else:
                talk.hear("user", payload.get("message"))
        elif kind == "session_meta" and isinstance(payload, dict):
            given = payload.get("base_instructions")
            if not told:
                talk.hear("system", given.get("text") if isinstance(given, dict) else given)
            told = True  # a session that goes on from another repeats that one's
        elif kind == "response_item" or "payload" not in line:
            talk.begun = talk.begun or begun
            _hear(talk, payload if kind == "response_item" else line)
    yield talk


def _hear(talk: Talk, item: Any) -> None:
    if not isinstance(item, dict):
        return
    kind = item.get("type")
    if kind == "message" and item.get("role") == "assistant":
        talk.say(text_of(item.get("content")))
    elif kind == "message":
        talk.hear(item.get("role"), text_of(item.get("content")))
    elif kind == "custom_tool_call":
        talk.call(item.get("name"), {"input": item.get("input")})
    elif kind == "local_shell_call":
        talk.call("local_shell", item.get("action"))
    elif kind == "function_call":
        talk.call(item.get("name"), item.get("arguments"))
    elif isinstance(kind, str) and kind.removesuffix("_output") in _CALLS:
        output = item.get("output")
        # some versions wrapped it: {"content": …, "success": …}
        talk.hear("tool", text_of(output.get("content") if isinstance(output, dict) else output))


FORM = Form("codex", (".jsonl",), _claims, _read)
