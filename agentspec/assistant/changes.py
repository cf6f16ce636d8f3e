"""Changes to files: shown, written whole or not at all, taken back byte for byte.

What a change replaces is on disk before the file is touched, so a crash at any moment leaves the
file old or new and the journal able to say which. A file that somebody else changed since is
never overwritten: undo names it and does nothing.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from agentspec.assistant.errors import ConflictError, RefusedError
from agentspec.assistant.records import Records
from agentspec.assistant.repository import Repository, shown
from agentspec.files import replacing


@dataclass(frozen=True, slots=True)
class Change:
    """New contents for a file; `before` None makes it, `after` None removes it."""

    path: str
    before: bytes | None
    after: bytes | None
    note: str = ""
    """How the place was found, when it was not found as written."""

    @property
    def diff(self) -> str:
        """The unified diff, with a note where a last line has no newline."""
        return "".join(diff_lines(self.path, self.before, self.after))

    def with_text(self, after: bytes) -> Change:
        """The same change with other new contents."""
        return Change(self.path, self.before, after, "edited by the user")


def diff_lines(path: str, before: bytes | None, after: bytes | None) -> Iterator[str]:
    """The lines of a unified diff of two contents, each with its newline."""
    old, new = _lines(before), _lines(after)
    name = shown(path)
    left = f"a/{name}" if before is not None else "/dev/null"
    right = f"b/{name}" if after is not None else "/dev/null"
    for line in difflib.unified_diff(old, new, left, right):
        yield line
        if not line.endswith("\n"):
            yield "\n\\ No newline at end of file\n"


def _lines(data: bytes | None) -> list[str]:
    # split at newlines alone: str.splitlines would also split at form feeds and others
    pieces = (data or b"").decode("utf-8", "backslashreplace").split("\n")
    return [piece + "\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])


@dataclass(slots=True)
class _Step:
    """One write of one file: from one content to another, each by its hash, None for absence."""

    id: int
    turn: int
    path: str
    before: str | None
    after: str | None
    made: list[str]
    applied: bool = True

    @property
    def part(self) -> str:
        return f".agentspec-{self.id}.part"


class Journal:
    """The changes of a session in a folder of its own, by turn.

    Opening it finishes what a crash interrupted; `notes` say what that was. Raises RefusedError
    when another process has it.
    """

    def __init__(self, folder: Path, repository: Repository) -> None:
        self._folder = folder
        self._repository = repository
        self._records = Records(folder / "journal.jsonl")
        self._steps: dict[int, _Step] = {}
        self._undone: list[int] = []
        """Turns that are taken back, the latest last."""
        self._next = 1
        self.turn = 0
        self.notes: list[str] = [self._records.note] if self._records.note else []
        try:
            self._recover()
        except BaseException:
            self._records.close()
            raise

    def begin_turn(self) -> int:
        """The number of a new turn, to which the next changes belong."""
        self.turn += 1
        return self.turn

    def apply(self, change: Change) -> None:
        """Write a change; the file is as it was when this raises.

        Raises ConflictError when the file does not hold `change.before`, RefusedError where it
        cannot be written.
        """
        if change.before == change.after:
            return
        path = self._repository.check_writable(change.path)
        if self._repository.current(path) != change.before:
            raise ConflictError(f"{shown(path)} changed since it was read; read it again")
        if not self.turn or self.turn in self._undone:
            self.begin_turn()
        step = _Step(
            self._next,
            self.turn,
            path,
            self._keep(change.before),
            self._keep(change.after),
            self._repository.missing_folders(path) if change.after is not None else [],
        )
        # counted even if the record fails: an interrupt may come when it is already written
        self._next += 1
        self._records.append(
            {
                "op": "change",
                "id": step.id,
                "turn": step.turn,
                "path": path,
                "before": step.before,
                "after": step.after,
                "made": step.made,
            }
        )
        self._steps[step.id] = step
        try:
            self._repository.replace(path, change.after, expected=change.before, part=step.part)
        except BaseException:
            # an interrupt may come just after the file was replaced: ask the file itself
            self._settle(step, crashed=False)
            raise
        self._records.append({"op": "done", "id": step.id})

    def turns(self) -> list[int]:
        """Turns with changes that stand, the latest last."""
        undone = set(self._undone)
        found = {step.turn for step in self._steps.values() if step.applied}
        return sorted(found - undone)

    def undone(self) -> list[int]:
        """Turns that are taken back, the latest to be taken back last."""
        return list(self._undone)

    def changes(self, turn: int) -> list[Change]:
        """What a turn did, as one change per file."""
        chains = self._chains(turn)
        return [
            Change(path, self._load(steps[0].before), self._load(steps[-1].after))
            for path, steps in chains.items()
        ]

    def undo(self, turn: int | None = None) -> list[str]:
        """Take back a turn, by default the latest that stands; the paths it changed.

        All of its files or none. Raises ConflictError naming each file that holds something else
        than the turn left there, RefusedError when there is nothing to undo.
        """
        if turn is None:
            turn = max(self.turns(), default=0)
        if turn not in self.turns():
            raise RefusedError(
                "there is nothing to undo" if not turn else f"turn {turn} has no changes"
            )
        moves = self._moves(turn, back=True)
        self._check(moves)
        self._records.append({"op": "undo", "turn": turn})
        self._undone.append(turn)
        return self._finish(turn, moves, back=True)

    def redo(self, turn: int | None = None) -> list[str]:
        """Make the changes of a turn again, by default the last that was undone; its paths.

        Raises as `undo` does.
        """
        if turn is None:
            turn = self._undone[-1] if self._undone else 0
        if turn not in self._undone:
            raise RefusedError(
                "there is nothing to redo" if not turn else f"turn {turn} is not undone"
            )
        moves = self._moves(turn, back=False)
        self._check(moves)
        self._records.append({"op": "redo", "turn": turn})
        self._undone.remove(turn)
        return self._finish(turn, moves, back=False)

    def close(self) -> None:
        """Let other processes have the journal; safe to call twice."""
        self._records.close()

    def _chains(self, turn: int) -> dict[str, list[_Step]]:
        chains: dict[str, list[_Step]] = {}
        for step in self._steps.values():
            if step.turn == turn and step.applied:
                chains.setdefault(step.path, []).append(step)
        return chains

    def _moves(self, turn: int, *, back: bool) -> list[_Step]:
        """One step per file from what must lie there to what shall."""
        moves = []
        for path, steps in self._chains(turn).items():
            for one, two in pairwise(steps):
                if one.after != two.before:
                    raise ConflictError(
                        f"{shown(path)} was changed by somebody else within turn {turn}; "
                        "nothing was undone"
                    )
            first, last = steps[0], steps[-1]
            made = [folder for step in steps for folder in step.made]
            before, after = first.before, last.after
            if back:
                before, after = after, before
            moves.append(_Step(last.id, turn, path, before, after, made))
        return moves

    def _check(self, moves: list[_Step]) -> None:
        changed = []
        for move in moves:
            self._load(move.after)  # a lost content must show before anything is written
            try:
                same = _hash(self._repository.current(move.path)) == move.before
            except RefusedError:
                same = False
            if not same:
                changed.append(shown(move.path))
        if changed:
            raise ConflictError(
                f"changed since that turn: {', '.join(changed)}; nothing was written. "
                "Undo later turns first, or keep your own changes elsewhere"
            )

    def _finish(self, turn: int, moves: list[_Step], *, back: bool) -> list[str]:
        """Write the files of an undo or redo; those that already hold the new content stay."""
        failed: list[str] = []
        for move in moves:
            try:
                now = _hash(self._repository.current(move.path))
                if now != move.after:
                    if now != move.before:
                        raise ConflictError(f"{shown(move.path)} was changed meanwhile")
                    self._repository.replace(
                        move.path,
                        self._load(move.after),
                        expected=self._load(move.before),
                        part=move.part,
                    )
                if move.after is None:
                    self._repository.remove_empty(move.made)
            except RefusedError as error:
                failed.append(str(error))
        self._records.append({"op": "undone" if back else "redone", "turn": turn})
        if failed:
            raise ConflictError(f"turn {turn} is changed back only in part: {'; '.join(failed)}")
        return [move.path for move in moves]

    def _settle(self, step: _Step, *, crashed: bool) -> None:
        """Find out whether an interrupted step was made.

        After a crash a third content counts as made: undo then names the file.
        """
        self._repository.remove_part(step.path, step.part)
        try:
            now = _hash(self._repository.current(step.path))
        except RefusedError:
            now = "unknown"
        step.applied = now != step.before if crashed else now == step.after
        if not step.applied:
            self._repository.remove_empty(step.made)
        self._records.append({"op": "done" if step.applied else "dropped", "id": step.id})

    def _recover(self) -> None:
        open_steps: dict[int, _Step] = {}
        open_turn: tuple[int, bool] | None = None
        for line in list(self._records.lines):
            op = line.get("op")
            if op == "change":
                step = _Step(*(line[key] for key in _FIELDS))
                self._steps[step.id] = open_steps[step.id] = step
                self.turn = max(self.turn, step.turn)
                self._next = step.id + 1
            elif op in ("done", "dropped"):
                self._steps[line["id"]].applied = op == "done"
                open_steps.pop(line["id"], None)
            elif op == "undo":
                self._undone.append(line["turn"])
                open_turn = line["turn"], True
            elif op == "redo":
                self._undone.remove(line["turn"])
                open_turn = line["turn"], False
            elif op in ("undone", "redone"):
                open_turn = None
        for step in open_steps.values():
            self._settle(step, crashed=True)
            state = "is complete" if step.applied else "was not made"
            self.notes.append(f"an interrupted change of {shown(step.path)} {state}")
        if open_turn is not None:
            turn, back = open_turn
            moves = self._moves(turn, back=back)
            for move in moves:
                self._repository.remove_part(move.path, move.part)
            word = "undo" if back else "redo"
            try:
                self._finish(turn, moves, back=back)
                self.notes.append(f"the interrupted {word} of turn {turn} was completed")
            except ConflictError as error:
                self.notes.append(f"the interrupted {word} of turn {turn}: {error}")

    def _keep(self, data: bytes | None) -> str | None:
        """Put a content on disk; its hash."""
        if data is None:
            return None
        name = _hash(data)
        assert name is not None
        path = self._folder / "contents" / name
        if not path.exists():
            try:
                with replacing(path, folder_mode=0o700) as file:
                    file.write(data)
                _sync(path.parent)
            except OSError as error:
                raise RefusedError(
                    f"the journal {self._folder} cannot be written ({error.strerror or error}); "
                    "nothing was changed"
                ) from error
        return name

    def _load(self, name: str | None) -> bytes | None:
        if name is None:
            return None
        try:
            data = (self._folder / "contents" / name).read_bytes()
        except OSError as error:
            raise RefusedError(
                f"the journal {self._folder} lacks {name}: {error.strerror}"
            ) from error
        if _hash(data) != name:
            raise RefusedError(
                f"the journal {self._folder} is damaged at {name}; nothing was written"
            )
        return data


_FIELDS = ("id", "turn", "path", "before", "after", "made")


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _hash(data: bytes | None) -> str | None:
    return hashlib.sha256(data).hexdigest() if data is not None else None
