"""Changes to files: shown, written whole or not at all, taken back byte for byte.

What a change replaces is on disk before the file is touched, so a crash at any moment leaves the
file old or new and the journal able to say which. A file that somebody else changed since is
never overwritten: undo names it and does nothing.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from agentspec.assistant.change import Change
from agentspec.assistant.errors import ConflictError, RefusedError
from agentspec.assistant.records import Records
from agentspec.assistant.repository import Repository, shown
from agentspec.files import replacing


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


class Journal:
    """The changes of a session in a folder of its own, by turn.

    Opening it finishes what a crash interrupted; `notes` say what that was. Raises RefusedError
    when another process has it.
    """

    def __init__(self, folder: Path, repository: Repository) -> None:
        self._folder = folder
        self._guarded = repository
        # what was changed with leave may be changed back, whatever its name
        self._repository = repository.unguarded()
        self._records = Records(folder / "journal.jsonl")
        self._token = ""
        self._steps: dict[int, _Step] = {}
        self._undone: list[int] = []
        """Turns that are taken back, the latest last."""
        self._next = 1
        self.turn = 0
        self.notes: list[str] = [self._records.note] if self._records.note else []
        try:
            try:
                if self._records.damaged:
                    raise ValueError
                open_steps, open_turn = self._replay()
            except (ValueError, KeyError, TypeError):
                raise RefusedError(
                    f"the journal {folder} is damaged; start a new session, and keep the folder: "
                    "what files held before lies in it"
                ) from None
            self._recover(open_steps, open_turn)
            if not self._token:
                # nobody who wrote the repository can know it: the name of an unfinished file
                self._token = secrets.token_hex(8)
                self._records.append({"op": "journal", "token": self._token})
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
        path = self._guarded.check_writable(change.path)
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
        record = {"op": "change", **{key: getattr(step, key) for key in _FIELDS}}
        try:
            self._records.append(record)
        except BaseException:
            self._mark("dropped", step)
            raise
        self._steps[step.id] = step
        try:
            self._repository.replace(
                path, change.after, expected=change.before, part=self._part(step)
            )
        except BaseException:
            # an interrupt may come just after the file was replaced: ask the file itself
            self._settle(step, crashed=False)
            raise
        self._mark("done", step)

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
        self._records.append({"op": "undo", "turn": turn, "steps": self._applied(turn)})
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
        self._records.append({"op": "redo", "turn": turn, "steps": self._applied(turn)})
        self._undone.remove(turn)
        return self._finish(turn, moves, back=False)

    def close(self) -> None:
        """Let other processes have the journal; safe to call twice."""
        self._records.close()

    def _applied(self, turn: int) -> list[int]:
        return [step.id for step in self._steps.values() if step.turn == turn and step.applied]

    def _part(self, step: _Step) -> str:
        return f".agentspec-{self._token}-{step.id}.part"

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
        interrupt: KeyboardInterrupt | None = None
        for move in moves:
            try:
                try:
                    self._move(move)
                except KeyboardInterrupt as error:
                    # all of the files or none: the first Ctrl-C waits for the others
                    interrupt = error
                    self._move(move)
            except RefusedError as error:
                failed.append(str(error))
        with suppress(RefusedError):  # the files tell it the next time
            self._records.append({"op": "undone" if back else "redone", "turn": turn})
        if interrupt is not None:
            raise interrupt
        if failed:
            raise ConflictError(f"turn {turn} is changed back only in part: {'; '.join(failed)}")
        return [move.path for move in moves]

    def _move(self, move: _Step) -> None:
        now = _hash(self._repository.current(move.path))
        if now != move.after:
            if now != move.before:
                raise ConflictError(f"{shown(move.path)} was changed meanwhile")
            self._repository.replace(
                move.path,
                self._load(move.after),
                expected=self._load(move.before),
                part=self._part(move),
            )
        if move.after is None:
            self._repository.remove_empty(move.made)

    def _settle(self, step: _Step, *, crashed: bool) -> None:
        """Find out whether an interrupted step was made.

        After a crash a third content counts as made: undo then names the file.
        """
        self._repository.remove_part(step.path, self._part(step))
        try:
            now = _hash(self._repository.current(step.path))
        except RefusedError:
            now = "unknown"
        step.applied = now != step.before if crashed else now == step.after
        if not step.applied:
            self._repository.remove_empty(step.made)
        self._mark("done" if step.applied else "dropped", step)

    def _mark(self, op: str, step: _Step) -> None:
        """Note what became of a step; where that fails, the file itself tells it the next time."""
        with suppress(RefusedError):
            self._records.append({"op": op, "id": step.id})

    def _replay(self) -> tuple[list[_Step], tuple[int, bool] | None]:
        """Take the records in; the steps, and the undo (True) or redo of a turn, still open.

        Raises ValueError, KeyError or TypeError for records that nobody here wrote.
        """
        open_steps: dict[int, _Step] = {}
        open_turn: tuple[int, bool] | None = None
        for line in list(self._records.lines):
            op = line.get("op")
            if op == "journal":
                self._token = line["token"]
            elif op == "change":
                step = _Step(*(line[key] for key in _FIELDS))
                for other in [s for s in open_steps.values() if s.path == step.path]:
                    # what became of it could not be noted; what the next one found tells it
                    other.applied = step.before != other.before
                    del open_steps[other.id]
                self._steps[step.id] = open_steps[step.id] = step
                self.turn = max(self.turn, step.turn)
                open_turn = None  # the process went on behind it
                self._next = step.id + 1
            elif op in ("done", "dropped"):
                settled = open_steps.pop(line["id"], None)
                if settled is not None:
                    settled.applied = op == "done"
            elif op in ("undo", "redo"):
                for other in [s for s in open_steps.values() if s.turn == line["turn"]]:
                    other.applied = other.id in line["steps"]
                    del open_steps[other.id]
                if op == "undo":
                    self._undone.append(line["turn"])
                else:
                    self._undone.remove(line["turn"])
                open_turn = line["turn"], op == "undo"
            elif op in ("undone", "redone"):
                open_turn = None
        return list(open_steps.values()), open_turn

    def _recover(self, open_steps: list[_Step], open_turn: tuple[int, bool] | None) -> None:
        """Finish what a crash interrupted."""
        for step in open_steps:
            self._settle(step, crashed=True)
            state = "is complete" if step.applied else "was not made"
            self.notes.append(f"an interrupted change of {shown(step.path)} {state}")
        if open_turn is not None:
            turn, back = open_turn
            moves = self._moves(turn, back=back)
            for move in moves:
                self._repository.remove_part(move.path, self._part(move))
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
