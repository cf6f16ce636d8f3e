"""Claude Code: `~/.claude/projects/PROJECT/SESSION.jsonl`, also those of subagents.

A line is a record; `user` and `assistant` records have a `message` of Anthropic's shape, with
`uuid` and `parentUuid` they form a tree. An answer is one record per block, all with its
`message.id`. A compaction and each subagent begin a tree of their own. The format is not
documented; as of version 2 it is what several readers of it describe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentspec.replay.logs.files import Files, Form
from agentspec.replay.logs.talk import Talk, text_of

_SYNTHETIC = "<synthetic>"


@dataclass(slots=True)
class _Record:
    """What is kept of a line: what it follows and what was said."""

    parent: int | None
    role: str = ""
    answer: str = ""
    blocks: list[Mapping[str, Any]] = field(default_factory=list)


def _claims(record: Mapping[str, Any]) -> bool:
    if record.get("type") == "summary":
        return isinstance(record.get("leafUuid"), str)
    return isinstance(record.get("sessionId"), str) and "type" in record and "payload" not in record


def _read(files: Files) -> Iterator[Talk]:
    for file in files.named(".jsonl"):
        yield from _talks(files, file)


def _talks(files: Files, file: Path) -> Iterator[Talk]:
    """One conversation per root of the tree: the branch that was written to last."""
    records: list[_Record] = []
    begun: list[object] = []
    places: dict[str, int] = {}
    last: dict[bool, int] = {}
    for line in files.lines(file):
        side, uuid = line.get("isSidechain") is True, line.get("uuid")
        if not isinstance(uuid, str) and not isinstance(line.get("message"), dict):
            continue
        parent, behind = line.get("parentUuid"), last.get(side)
        if isinstance(parent, str):
            # behind a line that was lost the conversation goes on
            behind = places.get(parent, behind)
        elif isinstance(uuid, str):
            behind = None
        number = last[side] = len(records)
        if isinstance(uuid, str):
            places[uuid] = number
        records.append(_record(line, number, behind))
        begun.append(line.get("timestamp"))
    trees: dict[int, list[int]] = {}
    roots: list[int] = []
    for number, record in enumerate(records):
        roots.append(number if record.parent is None else roots[record.parent])
        trees.setdefault(roots[number], []).append(number)
    for root, tree in trees.items():
        name = file.stem if not root else f"{file.stem}-{root + 1}"
        talk = Talk(name, files.where(file), begun[root])
        _tell(talk, records, tree)
        yield talk


def _record(line: Mapping[str, Any], number: int, parent: int | None) -> _Record:
    record = _Record(parent)
    message = line.get("message")
    if line.get("type") not in ("user", "assistant") or not isinstance(message, dict):
        return record
    if message.get("model") == _SYNTHETIC:
        return record  # an error that the program wrote in the model's place
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    record.role = line["type"]
    record.answer = _id(message.get("id")) or str(number) if record.role == "assistant" else ""
    record.blocks = [_kept(block) for block in blocks if isinstance(block, dict)]
    return record


def _id(value: object) -> str:
    return value if isinstance(value, str) else ""


def _kept(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """A block without images and signatures, which may be large."""
    kept = {k: block[k] for k in ("type", "text", "name", "input", "id") if k in block}
    if block.get("type") == "tool_result":
        kept |= {"id": _id(block.get("tool_use_id")), "text": text_of(block.get("content"))}
    return kept


def _tell(talk: Talk, records: Sequence[_Record], tree: Sequence[int]) -> None:
    """The branch that was written to last.

    Blocks of one answer and results of calls made in parallel may hang beside it.
    """
    branch: set[int] = set()
    at = next((n for n in reversed(tree) if records[n].role), None)
    while at is not None:
        branch.add(at)
        at = records[at].parent
    answers: dict[str, list[Mapping[str, Any]]] = {
        records[n].answer: [] for n in tree if n in branch and records[n].answer
    }
    for n in tree:
        if records[n].answer in answers:
            answers[records[n].answer] += records[n].blocks
    open_calls: set[str] = set()
    for n in tree:
        if records[n].role == "assistant":
            talk.turn()
            for block in answers.pop(records[n].answer, ()):
                if block.get("type") == "text":
                    talk.say(block.get("text"))
                elif block.get("type") == "tool_use":
                    talk.call(block.get("name"), block.get("input"))
                    open_calls.add(_id(block.get("id")))
            continue
        for block in records[n].blocks:
            if block.get("type") == "tool_result":
                if n in branch or block["id"] in open_calls:
                    talk.hear("tool", block.get("text"))
                    open_calls.discard(block["id"])
            elif block.get("type") == "text" and n in branch:
                talk.hear("user", block.get("text"))


FORM = Form("claude-code", (".jsonl",), _claims, _read)
