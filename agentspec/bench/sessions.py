"""Sessions to measure on: files of OpenAI-shaped messages, and a set that comes along."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentspec.chat.template import packaged_prompt
from agentspec.errors import InvalidRequestError
from agentspec.wire import parse_messages, parse_tools


@dataclass(frozen=True, slots=True)
class BenchSession:
    """One conversation to answer: its messages end where the answer begins."""

    id: str
    kind: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)


def packaged_sessions() -> list[BenchSession]:
    """Ten agent-like prompts: rewrites, edits, tool calls, new code, prose."""
    return _parse(packaged_prompt("bench_sessions.jsonl"), "bench_sessions.jsonl")


def load_sessions(paths: Sequence[Path]) -> list[BenchSession]:
    """Sessions of JSONL files, or of JSON files that hold one conversation.

    Raises InvalidRequestError naming file and line.
    """
    sessions = []
    for path in paths:
        try:
            sessions += _parse(path.read_text("utf-8"), path.name)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"{path} cannot be read: {error}") from error
    return sessions


def _parse(text: str, name: str) -> list[BenchSession]:
    sessions = []
    stripped = text.strip()
    documents = [(1, stripped)] if _is_one(stripped) else list(enumerate(text.split("\n"), 1))
    for number, line in documents:
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{where} is not JSON: {error}") from None
        if isinstance(data, list):
            data = {"messages": data}
        if not isinstance(data, dict) or not isinstance(data.get("messages"), list):
            raise InvalidRequestError(f"{where} holds no list of messages")
        try:
            parse_messages(data["messages"])
            parse_tools(data.get("tools"))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{where}: {error}") from None
        sessions.append(
            BenchSession(
                str(data.get("id", f"{name}-{number}")),
                str(data.get("kind", "")),
                data["messages"],
                list(data.get("tools") or []),
            )
        )
    if not sessions:
        raise InvalidRequestError(f"{name} holds no session")
    return sessions


def _is_one(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
