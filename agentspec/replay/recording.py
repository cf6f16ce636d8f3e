"""Recorded conversations: read from files of traces or of OpenAI-shaped messages."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from agentspec.errors import InvalidRequestError, line_of
from agentspec.wire import MAX_DEPTH

MAX_FILE = 1 << 30
"""Bytes of a file, unpacked."""
_ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


def clean(text: str) -> str:
    """Valid Unicode: halves of pairs, and bytes of a file's name that are no text, are replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def is_shallow(value: object) -> bool:
    """Whether JSON is nested so little that whoever copies or writes it can."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, (list, dict))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call; `arguments` as parsed JSON, or the text itself when it is not JSON."""

    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a recorded conversation."""

    role: str
    content: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """One conversation; `source` groups those of one origin: the name of their file.

    `where` is file and line, for what has to be said about it.
    """

    id: str
    source: str
    where: str
    messages: tuple[Said, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and those of folders in the order of their names.

    Raises InvalidRequestError for a folder without any, and for two of one name.
    """
    found: list[Path] = []
    for path in paths:
        if os.path.isdir(path):
            inside = _inside(path, (".jsonl.gz",)) or _inside(path, _ENDINGS)
            if not inside:
                raise InvalidRequestError(f"{path} holds no .jsonl or .json file")
            found += inside
        else:
            found.append(path)
    seen: dict[str, Path] = {}
    for path in found:
        if seen.setdefault(path.name, path) is not path:
            raise InvalidRequestError(f"{path} and {seen[path.name]} have the same name")
    return found


def _inside(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Its files of these names; folders and pipes of such a name are none."""
    try:
        return sorted(p for p in folder.iterdir() if p.name.endswith(endings) and p.is_file())
    except OSError as error:
        raise InvalidRequestError(f"{folder} cannot be read: {line_of(error)}") from None


def read_sample(path: Path) -> list[tuple[str, str]]:
    """A sample file: a JSON list of [file name, session id]. Raises InvalidRequestError."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{path} is not a JSON file: {error}") from None
    if not isinstance(data, list) or not all(
        isinstance(row, list) and len(row) == 2 and all(isinstance(part, str) for part in row)
        for row in data
    ):
        raise InvalidRequestError(f"{path} is not a list of [file name, session id]")
    return [(row[0], row[1]) for row in data]


def read_recordings(
    paths: Sequence[Path], sample: Iterable[tuple[str, str]] | None = None
) -> list[Recording]:
    """The conversations of files, or those that a sample names, in the order of the files.

    Raises InvalidRequestError naming file and line.
    """
    wanted = None if sample is None else list(sample)
    recordings: list[Recording] = []
    for path in paths:
        ids = None if wanted is None else {id for name, id in wanted if name == path.name}
        if ids is not None and not ids:
            continue
        found = [r for r in _read(path) if ids is None or r.id in ids]
        if ids is not None and (missing := ids - {r.id for r in found}):
            raise InvalidRequestError(f"{path} has no session {sorted(missing)[0]!r}")
        recordings += found
    if wanted is not None:
        names = {path.name for path in paths}
        if absent := [name for name, _ in wanted if name not in names]:
            raise InvalidRequestError(f"the sample names {absent[0]}, which was not given")
    if not recordings:
        raise InvalidRequestError("there is no session to replay")
    return recordings


def _read(path: Path) -> Iterator[Recording]:
    name = path.name
    source = clean(
        next((name.removesuffix(e) for e in reversed(_ENDINGS) if name.endswith(e)), name)
    )
    for number, data in _documents(path):
        where = f"{name}:{number}"
        if isinstance(data, list):
            data = {"messages": data}
        if not isinstance(data, dict) or not isinstance(data.get("messages"), list):
            raise InvalidRequestError(f"{where} holds no list of messages")
        id = data.get("id")
        messages = tuple(_message(m, where, i) for i, m in enumerate(data["messages"]))
        tools = data.get("tools") or []
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise InvalidRequestError(f"{where}: tools is not a list of objects")
        if not is_shallow(tools):
            raise InvalidRequestError(f"{where}: tools are nested too deeply")
        label = clean(str(id)) if isinstance(id, (str, int)) else f"{source}-{number}"
        yield Recording(label, source, where, messages, tuple(tools))


def _documents(path: Path) -> Iterator[tuple[int, Any]]:
    """Line number and value of every conversation of a file."""
    text = _text(path)
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise InvalidRequestError(f"{path.name} is empty")
    try:
        opening = json.loads(lines[first])
    except (ValueError, RecursionError):
        # one document over several lines, or nothing that can be read
        yield from _one(_parsed(text, path.name, None), first + 1)
        return
    if all(not line.strip() for line in lines[first + 1 :]):
        yield from _one(opening, first + 1)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, _parsed(line, path.name, number)


def _one(data: Any, number: int) -> Iterator[tuple[int, Any]]:
    """A document is a conversation, or a list of them."""
    if isinstance(data, list) and data and not (isinstance(data[0], dict) and "role" in data[0]):
        for part in data:
            yield number, part
    else:
        yield number, data


def _parsed(text: str, name: str, number: int | None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = error.lineno if number is None else number
        raise InvalidRequestError(f"{name}:{line} is not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name}:{number or 1} is not JSON: {error}") from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
        if raw[:2] == b"\x1f\x8b":
            with gzip.open(BytesIO(raw)) as packed:
                raw = packed.read(MAX_FILE + 1)
        if len(raw) > MAX_FILE:
            raise InvalidRequestError(f"{path.name} has more than {MAX_FILE >> 20} MiB; split it")
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InvalidRequestError(f"{path.name}:{line} is not UTF-8: {error.reason}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from None


def _message(data: Any, where: str, index: int) -> Said:
    def wrong(what: str) -> InvalidRequestError:
        return InvalidRequestError(f"{where}: message {index} {what}")

    if not isinstance(data, dict):
        raise wrong("is not an object")
    role = data.get("role")
    if not isinstance(role, str) or not role:
        raise wrong("has no role")
    content = data.get("content")
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else {"text": part} for part in content]
        texts = [part["text"] for part in parts if "text" in part]
        if not all(isinstance(text, str) for text in texts):
            raise wrong("has a part whose text is not a string")
        content = "".join(texts)
    if content is not None and not isinstance(content, str):
        raise wrong("has content that is neither text, null nor a list of parts")
    calls = data.get("tool_calls") or []
    if not isinstance(calls, list):
        raise wrong("has tool_calls that are not a list")
    made = []
    for call in calls:
        if not isinstance(call, dict):
            raise wrong("has a tool call that is not an object")
        made.append(_call(call, wrong("has a tool call without a name")))
        if not is_shallow(made[-1].arguments):
            raise wrong("has a tool call whose arguments are nested too deeply")
    return Said(role, content or "", tuple(made))


def _call(data: Mapping[str, Any], nameless: InvalidRequestError) -> Call:
    """A call in OpenAI's shape (its arguments are JSON in a string), or flat as in traces."""
    function = data.get("function")
    inner = function if isinstance(function, dict) else data
    if not isinstance(inner.get("name"), str):
        raise nameless
    arguments = inner.get("arguments", {})
    if inner is function and isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return Call(inner["name"], arguments)
    return Call(inner["name"], arguments)
