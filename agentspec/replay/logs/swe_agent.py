"""SWE-agent and mini-SWE-agent: `.traj` and `.traj.json`, one JSON document per run.

`history` (`messages` in mini-SWE-agent) are the messages as the model read and wrote them. Of a
document without it, `trajectory` has the answer and the observation of every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentspec.replay.logs.files import Files, Form
from agentspec.replay.logs.talk import Talk


def _claims(record: Mapping[str, Any]) -> bool:
    form = record.get("trajectory_format")
    return (
        isinstance(record.get("trajectory"), list)
        or (isinstance(record.get("history"), list) and isinstance(record.get("info"), dict))
        or (isinstance(form, str) and form.startswith("mini-swe-agent"))
    )


def _read(files: Files) -> Iterator[Talk]:
    for file in files.named(".traj", ".json"):
        document = files.document(file)
        if not isinstance(document, dict) or not _claims(document):
            continue
        talk = Talk(file.name.partition(".traj")[0], files.where(file))
        history = document.get("history") or document.get("messages")
        if isinstance(history, list) and history:
            for message in history:
                talk.add(message)
        else:
            _steps(talk, document.get("trajectory"))
        yield talk


def _steps(talk: Talk, steps: Any) -> None:
    steps = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    query = steps[0].get("query") if steps else None
    for message in query if isinstance(query, list) else ():
        talk.add(message)
    for step in steps:
        talk.turn()
        talk.say(step.get("response"))
        talk.hear("user", step.get("observation"))


FORM = Form("swe-agent", (".traj", ".json"), _claims, _read)
