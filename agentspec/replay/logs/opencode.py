"""OpenCode: `~/.local/share/opencode/storage`, or a file that `opencode export` wrote.

In the storage a message is `message/SESSION/MESSAGE.json` and what is in it
`part/MESSAGE/PART.json`, in older versions below `session/` and `part/SESSION/MESSAGE`. A part of
type `tool` is a call with its result. Versions that keep sessions in a database write the same
messages and parts as one document with `opencode export`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os.path import isdir, islink
from pathlib import Path
from typing import Any

from agentspec.replay.logs.files import Files, Form
from agentspec.replay.logs.talk import Talk


def storage(path: Path) -> Path | None:
    """The folder of a storage at this path, with `message` and `part` in it."""
    tried = [path, path / "storage", path / "session", path / "storage" / "session"]
    for folder in tried:
        inside = [folder, folder / "message", folder / "part"]
        if all(isdir(one) and (one == path or not islink(one)) for one in inside):
            return folder
    return None


def _claims(record: Mapping[str, Any]) -> bool:
    messages = record.get("messages")
    if not isinstance(messages, list) or not isinstance(record.get("info"), dict):
        return False
    return any(isinstance(one, dict) and {"info", "parts"} <= one.keys() for one in messages)


def _read(files: Files) -> Iterator[Talk]:
    root = storage(files.root)
    if root is not None:
        yield from _stored(files, root)
        return
    for file in files.named(".json"):
        document = files.document(file)
        if isinstance(document, dict) and _claims(document):
            info = document["info"]
            yield _talk(_id(info) or file.stem, files.where(file), document["messages"])


def _stored(files: Files, root: Path) -> Iterator[Talk]:
    messages: dict[str, list[Path]] = {}
    for file in files.named(".json", below=root / "message"):
        messages.setdefault(file.parent.name, []).append(file)
    parts: dict[str, list[Path]] = {}
    for file in files.named(".json", below=root / "part"):
        parts.setdefault(file.parent.name, []).append(file)
    for session, found in messages.items():
        yield _talk(
            session,
            files.where(found[0].parent),
            (
                {
                    "info": files.document(file),
                    "parts": [files.document(part) for part in parts.get(file.stem, ())],
                }
                for file in found
            ),
        )


def _talk(id: str, where: str, messages: Iterable[Any]) -> Talk:
    told = [
        (one["info"], one.get("parts"))
        for one in messages
        if isinstance(one, dict) and isinstance(one.get("info"), dict)
    ]
    told.sort(key=lambda one: (_created(one[0]), _id(one[0])))
    talk = Talk(id, where, _created(told[0][0]) if told else None)
    for info, parts in told:
        kept = [one for one in parts if isinstance(one, dict)] if isinstance(parts, list) else []
        kept.sort(key=_id)
        if info.get("role") == "assistant":
            _answer(talk, kept)
        else:
            texts = [one["text"] for one in kept if isinstance(one.get("text"), str)]
            talk.hear(info.get("role"), "\n".join(texts))
    return talk


def _answer(talk: Talk, parts: Sequence[Mapping[str, Any]]) -> None:
    """Each step is a message of its own: text and calls, then what the tools gave."""
    results: list[object] = []

    def end() -> None:
        talk.turn()
        for result in results:
            talk.hear("tool", result)
        results.clear()

    for part in parts:
        kind, state = part.get("type"), part.get("state")
        if kind in ("step-start", "step-finish"):
            end()
        elif kind == "text":
            talk.say(part.get("text"))
        elif kind == "tool" and isinstance(state, dict):
            talk.call(part.get("tool"), state.get("input"))
            given = state.get("error") if state.get("status") == "error" else state.get("output")
            results.append(given if isinstance(given, str) else "")
    end()


def _id(value: Mapping[str, Any]) -> str:
    id = value.get("id")
    return id if isinstance(id, str) else ""


def _created(info: Mapping[str, Any]) -> int:
    time = info.get("time")
    created = time.get("created") if isinstance(time, dict) else None
    return created if isinstance(created, int) else 0


FORM = Form("opencode", (".json",), _claims, _read)
