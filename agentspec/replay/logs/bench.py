"""A report of `agentspec bench --json`: the packaged prompts, each with plain decoding's answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentspec.chat.template import packaged_prompt
from agentspec.replay.logs.files import Files, Form
from agentspec.replay.logs.talk import Talk


def _claims(record: Mapping[str, Any]) -> bool:
    sessions = record.get("sessions")
    return isinstance(sessions, list) and any(_answer(session) is not None for session in sessions)


def _read(files: Files) -> Iterator[Talk]:
    prompts = [json.loads(line) for line in packaged_prompt("bench_sessions.jsonl").splitlines()]
    for file in files.named(".json"):
        report = files.document(file)
        if not isinstance(report, dict) or not _claims(report):
            continue
        answers = {one["id"]: _answer(one) for one in report["sessions"] if _answer(one)}
        for prompt in prompts:
            if prompt["id"] in answers:
                talk = Talk(prompt["id"], files.where(file), tools=prompt.get("tools") or ())
                for message in prompt["messages"]:
                    talk.add(message)
                talk.say(answers[prompt["id"]])
                yield talk


def _answer(session: Any) -> str | None:
    """What plain decoding wrote; None for what is no session of a report."""
    runs = session.get("plain") if isinstance(session, dict) else None
    first = runs[0] if isinstance(runs, list) and runs else None
    text = first.get("text") if isinstance(first, dict) else None
    return text if isinstance(text, str) and isinstance(session.get("id"), str) else None


FORM = Form("bench", (".json",), _claims, _read)
