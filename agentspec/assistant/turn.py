"""One turn: the model answers, its calls are decided and made, until it is done."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agentspec.aio import Stop
from agentspec.assistant import events, history
from agentspec.assistant.change import Change
from agentspec.assistant.changes import Journal
from agentspec.assistant.compaction import Compactor
from agentspec.assistant.decide import Command, Gate
from agentspec.assistant.errors import RefusedError
from agentspec.assistant.events import Event
from agentspec.assistant.model import (
    CallPiece,
    Finished,
    HeldPiece,
    MalformedPiece,
    Model,
    TextPiece,
    ThinkingPiece,
    TokenPiece,
    WireMessage,
)
from agentspec.assistant.repository import Repository, shown
from agentspec.assistant.results import MAX_TEXT, Result, capped, ends
from agentspec.assistant.text_file import TextFile
from agentspec.assistant.tool_command import execute
from agentspec.assistant.tools import Toolbox
from agentspec.errors import CancelledError, ContextOverflowError

_CANCELLED = "error: cancelled by the user before it had a result"
_UNSURE = "error: interrupted by the user; look at what is there now"
_SAME, _MOST_SAME = 3, 5
_REPEATED = (
    "This same call was made just before, to the same effect. Do something else now: read a file, "
    "change it, or say in words what is done and what not."
)
_MOST_MALFORMED = 3


Why = Literal["done", "length", "max_answers", "cancelled", "repeating"]


class Log(Protocol):
    """Where messages are kept as they come."""

    def message(self, message: WireMessage, turn: int, said: str = "") -> None: ...

    def replaced(self, messages: Sequence[WireMessage]) -> None: ...


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """The arguments as they were written; "{}" where nothing was."""
        if len(self.pieces) != 1:
            self.pieces = ["".join(self.pieces) or "{}"]
        return self.pieces[0]


@dataclass(slots=True)
class _Tally:
    """What a turn has come to so far."""

    begun: float
    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    changed: dict[str, None] = field(default_factory=dict)
    last: tuple[str, str] = ("", "")
    same: int = 0
    malformed: int = 0
    """Answers in a row that tried to make a call and did not."""


class Conversation:
    """The messages with a model about a repository, and what may be done in its name.

    `messages` is valid at any moment between turns: what was interrupted is closed. `folder`,
    `max_answers` and `seconds` (of one command) are the turn's limits.
    """

    def __init__(
        self,
        model: Model,
        *,
        repository: Repository,
        toolbox: Toolbox,
        journal: Journal,
        gate: Gate,
        system: str = "",
        messages: Sequence[WireMessage] = (),
        log: Log | None = None,
        compactor: Compactor | None = None,
        max_answers: int = 40,
        max_tokens: int | None = None,
        seconds: float = 120,
    ) -> None:
        self.model = model
        self.repository = repository
        self.toolbox = toolbox
        self.journal = journal
        self.gate = gate
        self.messages = history.repaired(messages)
        self.max_answers = max_answers
        self.max_tokens = max_tokens
        self.seconds = seconds
        # characters of a result: about a fifth of the context in tokens
        self._most = min(MAX_TEXT + 1000, max(1000, int(0.7 * model.n_ctx)))
        self.compactor = compactor or Compactor()
        self._log = log
        self._told: list[str] = []
        if not self.messages and system:
            self._add({"role": "system", "content": history.clean(system)})

    def turn(
        self, text: str, *, stop: Stop | None = None, said: str = ""
    ) -> Generator[Event, None, None]:
        """Everything that happens until the model is done with a request.

        `said` is what the user typed of it, to find the turn again; by default all of it.
        Setting `stop`, in any thread, ends it within a pass, a command or a question; closing the
        generator or an interrupt does too. What was written so far stays in `messages`. Raises
        what the model raises; a request that does not fit in the context is not kept.
        """
        stop = stop or Stop()
        tally = _Tally(time.perf_counter())
        self.journal.begin_turn()
        self.gate.begin_turn()
        self._settle()  # a full disk may have kept the last turn from it
        told, self._told = self._told, []
        self._add(history.user("\n\n".join([*told, text])), history.clean(said or text))
        try:
            why = yield from self._answers(tally, stop)
        except ContextOverflowError:
            if tally.answers == 0 and self.messages[-1]["role"] == "user":
                # a request that can never fit would make every later one fail too
                self.replace(self.messages[:-1])
            raise
        finally:
            self._settle()
        yield events.TurnEnded(
            why,
            self.journal.turn,
            tally.answers,
            tuple(tally.changed),
            tally.prompt_tokens,
            tally.completion_tokens,
            time.perf_counter() - tally.begun,
        )

    def _answers(self, tally: _Tally, stop: Stop) -> Generator[Event, None, Why]:
        while tally.answers < self.max_answers:
            try:
                yield from self._make_room(stop)
                calls, reason, malformed = yield from self._answer(tally, stop)
            except CancelledError:
                return "cancelled"  # while old messages were summed up
            if stop.is_set() or reason == "cancelled":
                return "cancelled"
            if not calls:
                if malformed and tally.malformed < _MOST_MALFORMED:
                    continue
                return "length" if reason == "length" else "done"
            for call in calls:
                yield from self._call(call, tally, stop)
                if stop.is_set():
                    return "cancelled"
                if tally.same >= _MOST_SAME:
                    return "repeating"
        return "max_answers"

    def _settle(self) -> None:
        """Close what is open: a request without an answer, calls without a result."""
        for message in history.repaired(self.messages, _CANCELLED)[len(self.messages) :]:
            self._add(message)
        if self.messages and self.messages[-1]["role"] in ("user", "tool"):
            # many templates want an answer before the next request
            self._add(history.assistant(""))

    def note(self, text: str) -> None:
        """Tell the model something with the next request, such as a file that the user added."""
        self._told.append(text)

    def replace(self, messages: Sequence[WireMessage]) -> None:
        """Go on from other messages: a shorter history, or none."""
        self.messages = history.repaired(messages)
        if self._log is not None:
            self._log.replaced(self.messages)

    def compact(self, stop: Stop | None = None) -> str:
        """Shorten the history now; what was done, in a line."""
        done = self.compactor.compact(
            self.messages, self.model, self.toolbox.schemas(), stop=stop or Stop(), force=True
        )
        if done is None:
            return "there is nothing to shorten"
        self.replace(done.messages)
        return done.note

    def _add(self, message: WireMessage, said: str = "") -> None:
        self.messages.append(message)
        if self._log is not None:
            self._log.message(message, self.journal.turn, said)

    def _make_room(self, stop: Stop, *, force: bool = False) -> Generator[Event, None, bool]:
        done = self.compactor.compact(
            self.messages, self.model, self.toolbox.schemas(), stop=stop, force=force
        )
        if done is None:
            return False
        self.replace(done.messages)
        yield events.Note(done.note)
        return True

    def _answer(
        self, tally: _Tally, stop: Stop
    ) -> Generator[Event, None, tuple[list[_Call], str, bool]]:
        """One answer; it is in `messages` however this ends."""
        try:
            return (yield from self._try_answer(tally, stop))
        except ContextOverflowError:
            if not (yield from self._make_room(stop, force=True)):
                raise
        return (yield from self._try_answer(tally, stop))

    def _try_answer(
        self, tally: _Tally, stop: Stop
    ) -> Generator[Event, None, tuple[list[_Call], str, bool]]:
        text: list[str] = []
        thinking: list[str] = []
        calls: dict[int, _Call] = {}
        malformed = ""
        finished: Finished | None = None
        reason = "cancelled"
        overflow = False
        schemas = self.toolbox.schemas()
        try:
            pieces = self.model.answer(
                self.messages, schemas, stop=stop, max_tokens=self.max_tokens
            )
            with closing(pieces):
                for piece in pieces:
                    if isinstance(piece, TextPiece):
                        text.append(piece.text)
                        yield events.Text(piece.text, piece.source)
                    elif isinstance(piece, ThinkingPiece):
                        thinking.append(piece.text)
                        yield events.Thinking(piece.text, piece.source)
                    elif isinstance(piece, CallPiece):
                        known = calls.get(piece.index)
                        if known is None:
                            known = calls[piece.index] = _Call(piece.id or _new_id(), piece.name)
                            yield events.CallWriting(known.id, known.name)
                        elif piece.name and not known.name:
                            known.name = piece.name
                        known.pieces.append(piece.arguments)
                    elif isinstance(piece, HeldPiece):
                        yield events.CallWriting("", piece.name)
                    elif isinstance(piece, TokenPiece):
                        yield events.Token(piece.text, piece.source)
                    elif isinstance(piece, MalformedPiece):
                        malformed = piece.why
                    else:
                        finished, reason = piece, piece.reason
        except CancelledError:
            pass
        except ContextOverflowError:
            overflow = not text and not thinking
            raise
        finally:
            # a call of an answer that did not end is not made, nor remembered
            whole = finished is not None
            made = [calls[i] for i in sorted(calls)] if whole else []
            if len({call.id for call in made}) < len(made):
                for call in made:
                    call.id = _new_id()
            for call in made:
                call.name = call.name or "unnamed"
            if not overflow:
                self._add(
                    history.assistant(
                        "".join(text),
                        "".join(thinking),
                        [(call.id, call.name, call.arguments) for call in made],
                        whole=whole,
                    )
                )
        tally.answers += 1
        if finished is not None:
            tally.prompt_tokens += finished.usage.prompt_tokens
            tally.completion_tokens += finished.usage.completion_tokens
            self.compactor.learn(self.messages[:-1], self.model, schemas, finished.usage)
            yield events.Answered(
                finished.reason, finished.usage, finished.speculation, finished.seconds
            )
        tally.malformed = tally.malformed + 1 if malformed and not made else 0
        if tally.malformed and tally.malformed < _MOST_MALFORMED:
            self._add(history.unreadable(malformed))
            yield events.Note(f"a tool call could not be read ({malformed}); it is asked for again")
        return made, reason, bool(malformed)

    def _call(self, call: _Call, tally: _Tally, stop: Stop) -> Generator[Event, None, None]:
        """Make one call; its result is in `messages` however this ends."""
        found = Result(_UNSURE, error=True)
        try:
            yield events.CallBegun(call.id, call.name, call.arguments)
            this = call.name, call.arguments
            tally.same = tally.same + 1 if this == tally.last else 1
            tally.last = this
            outcome = self.toolbox.propose(call.name, call.arguments)
            if isinstance(outcome, Result):
                if tally.same > 1:
                    # small models repeat what they see repeated, unless something stands out
                    outcome = dataclasses.replace(outcome, text=f"{outcome.text}\n{_REPEATED}")
            elif tally.same >= _SAME:
                outcome = Result(f"error: {_REPEATED}", True)
            if isinstance(outcome, Change):
                found = yield from self._change(call, outcome)
            elif isinstance(outcome, Command):
                found = yield from self._command(call, outcome, stop)
            else:
                shorter = capped(outcome.text, "ask for less", self._most)
                found = dataclasses.replace(outcome, text=shorter)
        except CancelledError:
            found = Result(_CANCELLED, error=True)
            stop.set()
        finally:
            tally.changed.update(dict.fromkeys(found.changed))
            self._add(history.result(call.id, call.name, found.text))
        yield events.CallEnded(call.id, call.name, found)

    def _change(self, call: _Call, change: Change) -> Generator[Event, None, Result]:
        asks = self.gate.asks_change(change)
        yield events.ChangeProposed(call.id, change, asks)
        decision = self.gate.change(change)
        if decision.kind == "no":
            why = f": {decision.text}" if decision.text else "; ask what is wanted instead"
            return Result(f"error: the change was refused{why}", error=True)
        made = change
        try:
            if decision.kind == "edited":
                made = change.with_text(_edited(change, decision.text))
            self.journal.apply(made)
        except RefusedError as error:
            return Result(f"error: {error}", error=True)
        yield events.ChangeMade(call.id, made)
        word = "wrote" if change.before is None else "changed"
        text = f"{word} {shown(made.path)}"
        if made is not change:
            text += "; the user edited your change, which now is:\n" + made.diff[:4000]
        elif made.note:
            text += f" ({made.note})"
        if made is change and made.before is not None and (lines := made.now()):
            text += f"; there it is now:\n{lines}"
        return Result(text, changed=(made.path,))

    def _command(self, call: _Call, command: Command, stop: Stop) -> Generator[Event, None, Result]:
        asks = self.gate.asks_command(command)
        yield events.CommandAsked(call.id, command, asks)
        decision = self.gate.command(command)
        if decision.kind == "no":
            why = f": {decision.text}" if decision.text else "; ask what is wanted instead"
            return Result(f"error: the command was refused{why}", error=True)
        if decision.kind == "edited":
            command = Command(decision.text.strip(), command.why)
        if stop.is_set():
            raise CancelledError("cancelled before the command was run")
        yield events.CommandBegun(call.id, command)
        try:
            found, ended = execute(
                command, self.repository.root, shell=asks, seconds=self.seconds, stop=stop
            )
        except RefusedError as error:
            return Result(f"error: {error}", error=True)
        found = dataclasses.replace(found, text=ends(found.text, self._most))
        if decision.kind == "edited":
            found = Result(f"the user ran instead: {command.text}\n{found.text}", found.error)
        if ended.why == "cancelled":
            stop.set()
        return found


def _edited(change: Change, text: str) -> bytes:
    """What the user made of a change, with the line endings of the file."""
    if change.before is None:
        return history.clean(text).encode()
    return TextFile.decode(change.before, change.path).rewritten(history.clean(text))


def _new_id() -> str:
    return f"call_{secrets.token_hex(8)}"
