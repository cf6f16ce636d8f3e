"""Stretches of texts and recorded sessions that a target goes on from."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.backends.base import Tokenizer
from agentspec.context.workspace import Workspace
from agentspec.errors import InvalidRequestError, line_of
from agentspec.replay.chatml import ChatEncoder
from agentspec.replay.recording import read_recordings, trace_files
from agentspec.replay.store import ArrayStore
from agentspec.replay.tokenised import tokenise

GRAIN = 16
"""Lengths of windows are multiples of this many tokens: those of a batch are equally long."""
_MOST_BYTES = 1 << 26
_HELD_OF = 8
_FEW = 5


@dataclass(frozen=True, slots=True)
class Window:
    """Token ids that a continuation follows; `group` is the file or session they are from."""

    ids: tuple[int, ...]
    group: str


def text_windows(tokenizer: Tokenizer, files: Sequence[Path], length: int) -> list[Window]:
    """Stretches of `length` tokens of UTF-8 text files, one behind the other.

    Of a folder, the files that `Workspace` would index. The last stretch of a short file is cut to
    a multiple of `GRAIN`. Raises InvalidRequestError naming the file that cannot be read.
    """
    found = []
    for path, text in _texts(files):
        ids = tokenizer.encode(text)
        for start in range(0, len(ids), length):
            part = _cut(ids[start : start + length])
            if part and (len(part) == length or not start):
                found.append(Window(part, str(path)))
    return found


def _texts(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    for path in paths:
        if path.is_dir():
            workspace = Workspace(path)
            # by name: a file that is touched does not change what is learnt
            read = [
                workspace.read(name) for name in sorted(each.path for each in workspace.files())
            ]
            texts = [(path / one[0].path, one[1]) for one in read if one is not None]
            if not texts:
                raise InvalidRequestError(f"{path} holds no text file; name another folder")
            yield from texts
            continue
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise InvalidRequestError(f"{path} is larger than 64 MiB; split it")
            yield path, path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError(
                f"{path} cannot be read as text: {line_of(error, 200)}"
            ) from error


def session_windows(
    tokenizer: Tokenizer,
    files: Sequence[Path],
    length: int,
    stride: int,
    *,
    identity: str,
    store: ArrayStore,
) -> list[Window]:
    """What stands before each answer of recorded sessions, and before every `stride` tokens of it.

    Files as of `agentspec replay`. At most the last `length` tokens. Raises InvalidRequestError
    naming file and line.
    """
    recordings = read_recordings(trace_files(files))
    found = []
    for session in tokenise(recordings, lambda: ChatEncoder(tokenizer), identity, store):
        for begin, end in session.turns:
            for at in range(begin, end, stride):
                part = _cut(session.ids[max(0, at - length) : at])
                if part:
                    found.append(Window(part, f"{session.source}/{session.id}"))
    return found


def held_out(windows: Sequence[Window]) -> tuple[list[Window], list[Window]]:
    """To learn from, and to measure on: whole files and sessions, an eighth of them.

    Of fewer than five, the last eighth of the windows of each. Raises InvalidRequestError where
    either would be empty.
    """
    groups = sorted({w.group for w in windows}, key=lambda g: hashlib.sha256(g.encode()).digest())
    if len(groups) >= _FEW:
        held = set(groups[: -(-len(groups) // _HELD_OF)])
        learnt = [w for w in windows if w.group not in held]
        kept = [w for w in windows if w.group in held]
    else:
        learnt, kept = [], []
        for group in groups:
            mine = [w for w in windows if w.group == group]
            count = -(-len(mine) // _HELD_OF) if len(mine) > 1 else 0
            learnt += mine[: len(mine) - count]
            kept += mine[len(mine) - count :]
    if not learnt or not kept:
        raise InvalidRequestError(
            f"the texts give {len(windows)} windows of {GRAIN} tokens or more, too few to learn "
            "from some and measure on others; give more text"
        )
    return learnt, kept


def batches(windows: Sequence[Window], size: int, seed: int) -> list[list[Window]]:
    """Windows in batches of one length each, mixed: the first ones are like the others."""
    rng = random.Random(seed)
    mixed = list(windows)
    rng.shuffle(mixed)
    found = list(_equal(mixed, size))
    rng.shuffle(found)
    # small rests last: they teach least for what they cost
    return sorted(found, key=lambda batch: len(batch) < size)


def _equal(windows: Sequence[Window], size: int) -> Iterator[list[Window]]:
    for length in sorted({len(w.ids) for w in windows}):
        mine = [w for w in windows if len(w.ids) == length]
        for start in range(0, len(mine), size):
            yield mine[start : start + size]


def _cut(ids: Sequence[int]) -> tuple[int, ...]:
    """The last tokens, a multiple of `GRAIN`."""
    count = len(ids) // GRAIN * GRAIN
    return tuple(ids[len(ids) - count :])
