"""Conversations on disk: per project, one file of JSON lines each, whole after any crash."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.history import UNREADABLE
from agentspec.assistant.model import WireMessage
from agentspec.assistant.records import Records, parsed
from agentspec.visible import one_line

_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
_TITLE = 80


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as it is listed; `at` is when it was last written, in seconds of the epoch."""

    id: str
    title: str
    messages: int
    at: float
    model: str
    turns: int = 0
    last: str = ""
    """The last request, its beginning in one line."""


def project_folder(root: Path, base: Path | None = None) -> Path:
    """Where what belongs to a repository is kept: in the user's data folder, never inside of it."""
    if base is None:
        from platformdirs import user_data_path

        base = user_data_path("agentspec", appauthor=False) / "projects"
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name)[:40].strip(".-") or "root"
    return base / f"{name}-{digest}"


class SessionLog:
    """One session: each message is on disk when `message` returns.

    `messages` are those that the conversation goes on from, `folder` is for what belongs to it,
    such as its changes. `note` says what a crash had torn.
    """

    def __init__(self, project: Path, id_: str, *, model: str = "", root: str = "") -> None:
        if not _ID.fullmatch(id_):
            raise RefusedError(f"{id_!r} is no session; see the list of sessions")
        self.id = id_
        self.folder = project / "sessions" / id_
        self._records = Records(self.folder / "messages.jsonl")
        self.note = self._records.note
        if self._records.damaged:
            damaged = f"{self._records.damaged} damaged records of the session are left out"
            self.note = f"{self.note}; {damaged}" if self.note else damaged
        self.messages = _current(self._records.lines)
        if not self._records.lines:
            self._records.append(
                {"kind": "session", "id": id_, "root": root, "model": model, "at": time.time()}
            )

    @classmethod
    def new(cls, project: Path, *, model: str = "", root: str = "") -> SessionLog:
        """A session that has no messages yet."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        return cls(project, f"{stamp}-{secrets.token_hex(3)}", model=model, root=root)

    @classmethod
    def resume(cls, project: Path, id_: str) -> SessionLog:
        """The session that an id, or its beginning, names.

        Raises RefusedError when none or several do, or when another process has it.
        """
        return cls(project, known(project, id_))

    @classmethod
    def latest(cls, project: Path) -> SessionLog:
        """The session that was written last; raises RefusedError when there is none."""
        return cls(project, known(project))

    def message(self, message: WireMessage, turn: int, said: str = "") -> None:
        """Keep a message; `said` is what the user typed of it."""
        record = {"kind": "message", "turn": turn, "at": time.time(), "message": message}
        self._records.append({**record, "said": said} if said else record)
        self.messages.append(message)

    def replaced(self, messages: Sequence[WireMessage]) -> None:
        """From here on the conversation has other messages; the old ones stay in the file."""
        self._records.append({"kind": "messages", "at": time.time(), "messages": list(messages)})
        self.messages = list(messages)

    def requests(self) -> list[tuple[int, str]]:
        """The turn of each request of the user, and its beginning in one line."""
        return _requests(self._records.lines)

    @property
    def asked(self) -> bool:
        """Whether the user has ever said anything in it, also what was forgotten since."""
        return any(
            line.get("kind") == "message" and line["message"].get("role") == "user"
            for line in self._records.lines
        )

    def export(self) -> str:
        """All that was said, also what was compacted away, as Markdown."""
        return exported(self._records.lines)

    def close(self) -> None:
        """Let other processes have it; safe to call twice."""
        self._records.close()


def sessions(project: Path) -> list[SessionInfo]:
    """The sessions of a project that have messages, the latest first. Opens none of them."""
    found: list[SessionInfo] = []
    try:
        names = os.listdir(project / "sessions")
    except OSError:
        return []
    for name in names:
        path = project / "sessions" / name / "messages.jsonl"
        if not _ID.fullmatch(name):
            continue
        try:
            lines, _, _ = parsed(path.read_bytes())
            at = path.stat().st_mtime
        except OSError:
            continue
        said = [line["message"] for line in lines if line.get("kind") == "message"]
        asked = [message["content"] for message in said if message.get("role") == "user"]
        if asked:
            turns = _requests(lines)
            title, last = (turns[0][1], turns[-1][1]) if turns else ("", "")
            model = str(lines[0].get("model", ""))
            found.append(SessionInfo(name, title, len(said), at, model, len(turns), last))
    return sorted(found, key=lambda info: (info.at, info.id), reverse=True)


def known(project: Path, id_: str | None = None) -> str:
    """The id of the session that an id, or its beginning, names; of the latest without one.

    Raises RefusedError when there is none, or several. Opens none of them.
    """
    found = [info.id for info in sessions(project) if info.id.startswith(id_ or "")]
    if id_ is None:
        if not found:
            raise RefusedError("there is no session of this project to continue")
    elif len(found) != 1 or not id_:
        what = "no session" if not found else f"{len(found)} sessions"
        raise RefusedError(f"{what} of this project has an id that begins with {id_!r}")
    return found[0]


def _requests(lines: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for line in lines:
        message = line.get("message") or {}
        text = str(line.get("said") or message.get("content") or "")
        if message.get("role") == "user" and not text.startswith(UNREADABLE):
            found.append((int(line.get("turn") or 0), one_line(text, _TITLE)))
    return found


def exported(lines: Sequence[dict[str, Any]]) -> str:
    """The records of a session as Markdown."""
    parts: list[str] = []
    for line in lines:
        if line.get("kind") == "messages":
            parts.append("*The messages before this point were compacted.*")
        if line.get("kind") != "message":
            continue
        message = line["message"]
        role = message["role"]
        if role == "system":
            continue
        text = str(message.get("content") or "")
        if role == "tool":
            parts.append(f"**{message.get('name', 'tool')}** gave:\n\n{_fenced(text)}")
            continue
        if text:
            parts.append(f"## {role.capitalize()}\n\n{text}")
        for call in message.get("tool_calls") or ():
            function = call["function"]
            parts.append(f"**{function['name']}**\n\n{_fenced(function['arguments'])}")
    return "\n\n".join(parts) + "\n"


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _current(lines: Sequence[dict[str, Any]]) -> list[WireMessage]:
    messages: list[WireMessage] = []
    for line in lines:
        if line.get("kind") == "message":
            messages.append(line["message"])
        elif line.get("kind") == "messages":
            messages = list(line["messages"])
    return messages


def messages_json(messages: Sequence[WireMessage]) -> str:
    """Messages as JSON, for other programs."""
    return json.dumps(list(messages), ensure_ascii=False, indent=2)
