"""Sessions of coding agents as they log them, one file per format."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import InvalidRequestError
from agentspec.replay.logs import bench, claude_code, codex, opencode, swe_agent
from agentspec.replay.logs.files import Files, Form, called
from agentspec.replay.recording import Recording

FORMS: dict[str, Form] = {
    module.FORM.name: module.FORM for module in (claude_code, codex, opencode, swe_agent, bench)
}
"""The formats by the name that `--from` takes."""

_MOST_LOOKED_AT = 50
_MOST_LINES = 20
_ENDINGS = tuple({ending for form in FORMS.values() for ending in form.endings})


@dataclass(frozen=True, slots=True)
class Logs:
    """The conversations of logs, the oldest first; `notes` say what was left out of them."""

    recordings: list[Recording]
    notes: list[str]


def detect(path: Path) -> Form | None:
    """The format of a log file, or of the logs in a folder and below; None for anything else."""
    if opencode.storage(path) is not None:
        return opencode.FORM
    files = Files(path)
    for number, file in enumerate(files.named(*_ENDINGS)):
        if number == _MOST_LOOKED_AT:
            return None
        whole = file.suffix in (".json", ".traj")
        records = [files.document(file)] if whole else files.lines(file, _MOST_LINES)
        for record in records:
            for form in FORMS.values():
                if isinstance(record, dict) and form.claims(record):
                    return form
    return None


def read_logs(paths: Sequence[Path], form: Form) -> Logs:
    """The conversations of these files and folders, those without an answer left out.

    One that another begins with is left out too: a session that was resumed may be logged twice,
    and would be drafted from its own copy. Lines and files that cannot be read are skipped and
    counted; links below a folder are not followed. Raises InvalidRequestError where nothing is
    left.
    """
    found: list[tuple[str, Recording]] = []
    notes: list[str] = []
    for path in paths:
        files = Files(path)
        for talk in form.read(files):
            recording = talk.recording(form.name)
            if recording is not None:
                found.append((talk.begun, recording))
        notes += files.notes()
    if not found:
        names = ", ".join(map(called, paths))
        left = f"; {'; '.join(notes)}" if notes else ""
        raise InvalidRequestError(f"{names} holds no conversation of {form.name}{left}")
    found.sort(key=lambda one: one[0])
    recordings = _that_no_other_begins_with([recording for _, recording in found])
    if copies := len(found) - len(recordings):
        notes.append(f"left out: conversations that others begin with ({copies})")
    return Logs(recordings, notes)


def _that_no_other_begins_with(recordings: Sequence[Recording]) -> list[Recording]:
    beginnings: set[bytes] = set()
    kept: set[int] = set()
    for n in sorted(range(len(recordings)), key=lambda n: -len(recordings[n].messages)):
        digest, own = hashlib.sha256(), []
        for message in recordings[n].messages:
            digest.update(repr(message).encode())
            own.append(digest.digest())
        if own[-1] not in beginnings:
            kept.add(n)
            beginnings.update(own)
    return [recording for n, recording in enumerate(recordings) if n in kept]
