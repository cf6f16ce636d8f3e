"""The live sequences of an engine: each request has one to itself, chosen by what it holds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentspec.backends.base import Backend, Rollback
from agentspec.engine.kept import SessionStore
from agentspec.engine.session import LiveSequence, common_prefix
from agentspec.engine.stats import TurnStats
from agentspec.errors import BackendError, RollbackError
from agentspec.types import Verdict

_log = logging.getLogger(__name__)

_WORTH = 16
"""Tokens of a shared prefix from which on it decides where a request goes."""
_WORTH_WAITING = 64
"""Tokens of a shared prefix that are not read twice at the same time."""
_SPARE = 256
"""Tokens at the end of a conversation that may be replaced without keeping the old ones."""
_AHEAD = 256
"""Cells that are set aside for a running request at a time."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """What one live sequence holds and does; `prompt_read` of `prompt_tokens` are in its cache.

    `request` is the id of the answer that is being made, None when the slot is idle.
    """

    id: int
    tokens: int = 0
    busy: bool = False
    request: str | None = None
    prompt_tokens: int = 0
    prompt_read: int = 0
    generated: int = 0


class Task(Protocol):
    """Who holds a slot: the older of two (smaller `age`) is served first."""

    @property
    def id(self) -> str: ...

    @property
    def age(self) -> int: ...

    @property
    def stats(self) -> TurnStats: ...


class Slot:
    """One live sequence and who holds it. `follower` is a draft model's, kept where this one is."""

    def __init__(self, number: int, sequence: LiveSequence) -> None:
        self.id = number
        self.sequence = sequence
        self.follower: LiveSequence | None = None
        self.task: Task | None = None
        self.used = 0
        """When it was last taken: a count of requests."""
        self.need = 0
        """Cells set aside for the task."""
        self.base: Slot | None = None
        self.shared = 0
        """Cells at the beginning that are those of `base`."""

    def state(self) -> SlotState:
        """As of now; may be asked at any time."""
        task, held = self.task, self.sequence.cached
        if task is None:
            return SlotState(self.id, held)
        stats = task.stats
        read = min(held, stats.prompt_tokens)
        return SlotState(self.id, held, True, task.id, stats.prompt_tokens, read, stats.tokens)


class SessionPool:
    """Up to `count` live sequences over one backend, whose cache of `n_ctx` cells they share.

    A request goes where most of its prompt is; a sequence that it would cut short is copied
    instead, where the backend shares the cells of copies and another sequence is idle. Idle ones
    are forgotten, the longest unused first, when cells run out. `marks` is that of LiveSequence.

    `choose` is called by one thread at a time, all that changes a sequence by the thread whose
    turn it is. Cells are counted, set aside and taken away in one go, whoever asks for them.
    """

    def __init__(self, backend: Backend, count: int, *, chunk: int = 512, marks: int = 0) -> None:
        self.backend = backend
        self._chunk, self._marks = chunk, marks
        can = backend.capabilities
        self._shares = can.rollback is Rollback.TRIM and not getattr(backend, "n_swa", 0)
        # llama.cpp gives cells behind the window of one sequence to another, without a word and
        # whatever swa_full says: a cut would begin with holes
        count = 1 if getattr(backend, "window", 0) else max(1, min(count, can.max_seqs))
        self.slots = [Slot(i, self._new()) for i in range(count)]
        self._clock = 0
        # what holds it may run the garbage collector, and that what ends an answer
        self._room = threading.RLock()

    @property
    def latest(self) -> Slot:
        """The slot that was taken last."""
        return max(self.slots, key=lambda slot: slot.used)

    @property
    def running(self) -> list[Slot]:
        """Slots that requests hold."""
        return [slot for slot in self.slots if slot.task is not None]

    # taking a slot

    def choose(self, task: Task, prompt: Sequence[int]) -> Slot | None:
        """The slot for a prompt, now held by the task; None while there is none or no room."""
        with self._room:
            idle = [slot for slot in self.slots if slot.task is None]
            need = self._ahead(len(prompt))
            if not idle or not self._fits(need - self._prefix_of_others(prompt)):
                return None
            slot = self._best(prompt, idle)
            self._clock += 1
            slot.used, slot.need = self._clock, need
            slot.task = task  # last: from here on it is held
            return slot

    def give_back(self, task: Task) -> None:
        """Let go of whatever the task holds."""
        for slot in self.slots:
            if slot.task is task:
                slot.need = 0
                slot.task = None

    def settle(self, slot: Slot, steps: Generator[Verdict, None, None]) -> None:
        """End the steps of a task and settle its sequence, whose cells nobody takes meanwhile.

        May be called by any thread, at any time before `give_back`.
        """
        with self._room:
            try:
                steps.close()
            finally:
                slot.sequence.settle()

    def open(self, slot: Slot, prompt: Sequence[int], marks: Sequence[int] = ()) -> int:
        """Make a prompt the tokens of a chosen slot; the number of tokens that are cached."""
        with self._room:
            own = slot.sequence.reusable(prompt)
            source = max(self.slots, key=lambda other: other.sequence.reusable(prompt))
            common = source.sequence.reusable(prompt)
            if source is not slot and self._shares and common >= own + _WORTH:
                self._share(slot, source, common)
            reused = slot.sequence.begin(prompt, marks)
            self._follow_cuts()
            return reused

    def catch_up(self, slot: Slot) -> bool:
        """Take over what an older task has read of the same text since this one began.

        False while that one is still reading it: better wait than read it twice.
        """
        with self._room:
            task, sequence = slot.task, slot.sequence
            if not self._shares or task is None:
                return True
            for source in self.running:
                other = source.sequence
                if source.task is None or source.task.age >= task.age or not source.need:
                    continue
                common = common_prefix(other.tokens, sequence.tokens[:-1])
                if common < sequence.cached + _WORTH_WAITING:
                    continue
                if other.cached >= min(common, len(other.tokens) - 1):
                    tokens = list(sequence.tokens)
                    self._share(slot, source, min(common, other.cached))
                    sequence.begin(tokens)
                    return True
                return False
            return True

    def _share(self, slot: Slot, source: Slot, length: int) -> None:
        self._follow_cuts()
        try:
            slot.sequence.share(source.sequence, length)
        except RollbackError as error:
            _log.info("a shared beginning is read again: %s", error)
            return
        finally:
            self._follow_cuts()
        slot.base, slot.shared, slot.sequence.low = source, length, length

    def _best(self, prompt: Sequence[int], idle: list[Slot]) -> Slot:
        """Among idle slots: the one that holds the prefix, or one to copy it to or read it into."""
        prefix = {slot: slot.sequence.reusable(prompt) for slot in self.slots}
        oldest = min(idle, key=lambda slot: (slot.sequence.cached > 0, slot.used))
        best = max(idle, key=lambda slot: (prefix[slot], slot.used))
        if prefix[best] < _WORTH:
            return oldest
        if not self._shares:
            return best
        if prefix[best] + _WORTH <= max(prefix.values()):
            return oldest  # a running one holds more of it
        lost = best.sequence.cached - prefix[best]
        if lost <= _SPARE or len(idle) == 1:
            return best
        others = [slot for slot in idle if slot is not best]
        oldest = min(others, key=lambda slot: (slot.sequence.cached > 0, slot.used))
        if oldest.sequence.cached == 0 or 2 * prefix[best] < best.sequence.cached:
            return oldest
        return best

    # room

    def make_room(self, slot: Slot, rows: int) -> bool:
        """Have cells for `rows` more tokens of a running slot, forgetting idle sequences.

        When there are none left, younger tasks give theirs back, to be read again later; False
        when this one is the youngest, and has given its own back.
        """
        with self._room:
            wanted = min(slot.sequence.cached + rows, self.backend.n_ctx)
            if slot.need < wanted:
                more = self._ahead(len(slot.sequence.tokens)) - slot.need
                while not self._fits(more):
                    youngest = max((s for s in self.running if s.need), key=_age)
                    self._unload(youngest)
                    youngest.need = 0
                    if youngest is slot:
                        return False
                slot.need += more
            while self._used() + rows > self.backend.n_ctx:
                idle = [s for s in self.slots if s.task is None and s.sequence.cached]
                if not idle:
                    break
                self._unload(min(idle, key=lambda s: s.used))
            return True

    def readmit(self, slot: Slot) -> bool:
        """Set cells aside again for a task that gave them back; False while there are none."""
        with self._room:
            need = self._ahead(len(slot.sequence.tokens))
            if not self._fits(need):
                return False
            slot.need = need
            return True

    def _ahead(self, length: int) -> int:
        return min(length + _AHEAD, self.backend.n_ctx)

    def _fits(self, more: int) -> bool:
        """Whether running tasks and `more` cells fit; idle sequences make room."""
        running = self.running
        held = sum(max(slot.need, slot.sequence.cached) for slot in running)
        shared = sum(slot.shared for slot in running if slot.base in running)
        return held - shared + more <= self.backend.n_ctx or not any(s.need for s in running)

    def _prefix_of_others(self, prompt: Sequence[int]) -> int:
        if not self._shares:
            return 0
        return max((slot.sequence.reusable(prompt) for slot in self.running), default=0)

    def _used(self) -> int:
        self._follow_cuts()
        return sum(slot.sequence.cached - slot.shared for slot in self.slots)

    def _follow_cuts(self) -> None:
        """What was cut, or read anew, is not shared any more."""
        for slot in self.slots:
            low, slot.sequence.low = slot.sequence.low, slot.sequence.cached
            slot.shared = min(slot.shared, low)
            for other in self.slots:
                if other.base is slot:
                    other.shared = min(other.shared, low)

    def _unload(self, slot: Slot) -> None:
        slot.sequence.unload()
        if slot.follower is not None:
            slot.follower.unload()
        self._follow_cuts()

    # on disk

    def save(self, store: SessionStore) -> None:
        """Keep every sequence, the longest unused first. Raises BackendError if one was not."""
        problem: BackendError | None = None
        for slot in sorted(self.slots, key=lambda slot: slot.used):
            sequence = slot.sequence
            tokens = sequence.tokens[: sequence.cached + 1]
            try:
                if len(tokens) > 1:
                    store.save(tokens, lambda path, seq=sequence.seq: self.backend.save(seq, path))  # type: ignore[misc]
            except BackendError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def restore(self, store: SessionStore) -> int:
        """Fill empty sequences with kept ones, the latest first; how many.

        Damaged ones are removed.
        """
        store.tidy()
        empty = [slot for slot in self.slots if slot.task is None and not slot.sequence.cached]
        room = self.backend.n_ctx - self._used()
        restored: list[Slot] = []
        for kept in store.found():
            if not empty:
                break
            if len(kept.tokens) > room or max(kept.tokens) >= self.backend.vocab_size:
                continue
            try:
                empty[0].sequence.load(kept.state, kept.tokens)
            except BackendError as error:
                store.damaged(kept, error)
                continue
            room -= len(kept.tokens)
            restored.append(empty.pop(0))
        for slot in reversed(restored):
            self._clock += 1
            slot.used = self._clock
        return len(restored)

    # all of them

    def clear(self) -> None:
        """Free every sequence of the backend. `renew` has to follow."""
        for slot in self.slots:
            slot.sequence.close()

    def renew(self) -> None:
        """Empty sequences in the place of freed ones."""
        for slot in self.slots:
            slot.base, slot.shared = None, 0
            slot.sequence = self._new()

    def close(self) -> None:
        """Let go of the backend, which is about to be closed."""
        for slot in self.slots:
            slot.sequence.close()
            if slot.follower is not None:
                slot.follower.close()

    def _new(self) -> LiveSequence:
        return LiveSequence(self.backend, chunk=self._chunk, marks=self._marks)


def _age(slot: Slot) -> int:
    return slot.task.age if slot.task is not None else -1
