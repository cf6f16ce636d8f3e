"""What every parser of calls is made of: a reader that is sent one character at a time.

A family's grammar is written as generators that take the next character from `yield`. What was
read since the mark that opened a call is kept until the call is complete; when it is not one, all
of it comes back as text. For that a call is given out when it is complete: what a client was sent
cannot be taken back. Nothing is looked at twice but the few characters of a mark that did not
come, so reading is linear in the length of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from agentspec.chat.tools.base import (
    CallArguments,
    CallEnd,
    CallParser,
    CallStart,
    Delta,
    IdSource,
    Malformed,
    MalformedKind,
    TextDelta,
    ThinkingDelta,
    new_call_id,
)
from agentspec.chat.tools.json_scan import dump, is_unicode
from agentspec.types import CallShape
from agentspec.wire import Tool

MAX_CALL = 1 << 20
"""Characters of one call beyond which it is given back as text."""
MAX_NAME = 256
MAX_NOTES = 16
"""Malformed calls of one answer that a note is made of; the others are text alone."""
SPACE = frozenset(" \t\r\n")

_MAX_SPACE = 4096
_T = TypeVar("_T")

Reading = Generator[None, str, _T]
"""A piece of a grammar: takes characters, returns what it read."""


class Broken(Exception):
    """What was read is no call; a `kind` of None needs no note."""

    def __init__(self, kind: MalformedKind | None) -> None:
        super().__init__(kind)
        self.kind = kind


class Cut(Broken):
    """The answer ended here."""

    def __init__(self) -> None:
        super().__init__("cut_off")


class Machine:
    """Follows one answer, see `CallParser`; a family says what opens its calls and reads them.

    `marks` open a call wherever they stand, `line_marks` only where the line is blank before
    them. One that begins another one goes before it.
    """

    def __init__(self, tools: Sequence[Tool], ids: IdSource, max_call: int) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self._ids = ids
        self._max_call = max_call
        self._index = 0
        self._notes = 0
        self._said: list[str] = []  # text to give out, joined once per feed
        self._said_thinking = False  # which kind of text that is
        self._out: list[Delta] = []
        self._space: list[str] = []  # white space: dropped before a call, kept before text
        self._raw: list[str] | None = None  # what was read of a call that is not complete
        self._size = 0
        self._ahead: list[str] = []  # to be read again, the next one last
        self._fresh = True  # only white space so far on this line
        self._after_call = False  # nothing but white space since the last call
        self.certain = False  # what is being read can only be a call
        marks: Mapping[str, Callable[[], Reading[None]]] = self.marks() if tools else {}
        lines = self.line_marks() if tools else {}
        self._lines = frozenset(lines)
        self._openers = (dict(marks), {**marks, **lines})
        self._heads = tuple(
            frozenset(mark[:n] for mark in table for n in range(1, len(mark) + 1))
            for table in self._openers
        )
        self._reader = self._answer()
        next(self._reader)

    def marks(self) -> Mapping[str, Callable[[], Reading[None]]]:
        """What opens a call anywhere, and what reads on from there."""
        return {}

    def line_marks(self) -> Mapping[str, Callable[[], Reading[None]]]:
        """What opens a call at the beginning of a line."""
        return {}

    # -- in and out ---------------------------------------------------------------------------

    def feed(self, text: str) -> list[Delta]:
        ahead, send = self._ahead, self._send
        for char in text:
            send(char)
            while ahead:
                send(ahead.pop())
        return self._take()

    def finish(self) -> list[Delta]:
        try:
            while True:
                # Each piece of the grammar that waits is told in turn, the outermost last.
                self._reader.throw(Cut())
                while self._ahead:
                    self._send(self._ahead.pop())
        except StopIteration:
            self._reader = self._ended()
            next(self._reader)
        return self._take()

    def _send(self, char: str) -> None:
        if self._raw is None:
            self._reader.send(char)
            return
        self._raw.append(char)
        self._size += 1
        if self._size > self._max_call:
            self._reader.throw(Broken("too_long"))
        else:
            self._reader.send(char)

    def _take(self) -> list[Delta]:
        self._join()
        out, self._out = self._out, []
        return out

    def _join(self) -> None:
        if self._said:
            text = "".join(self._said)
            self._out.append(ThinkingDelta(text) if self._said_thinking else TextDelta(text))
            self._said.clear()

    def say(self, text: str, *, thinking: bool = False) -> None:
        """Text that is certain."""
        if self._said and thinking is not self._said_thinking:
            self._join()
        self._said_thinking = thinking
        self._said.append(text)

    def plain(self, char: str) -> None:
        """One character of text outside calls; white space waits for what follows."""
        if char in SPACE:
            self._space.append(char)
            self._fresh = self._fresh or char == "\n"
            if len(self._space) > _MAX_SPACE:
                self._flush_space()
            return
        self._flush_space()
        self._fresh = False
        self.say(char)

    def _flush_space(self) -> None:
        if self._space:
            self.say("".join(self._space))
            self._space.clear()
        self._after_call = False

    # -- text, and what opens a call ----------------------------------------------------------

    def _answer(self) -> Reading[None]:
        held = ""
        try:
            while True:
                held += yield
                while held and held not in self._heads[self._fresh]:
                    # Not the beginning of a mark; one may still begin behind its first character.
                    self.plain(held[0])
                    held = held[1:]
                read = self._openers[self._fresh].get(held)
                if read is not None:
                    mark, held = held, ""
                    yield from self.attempt(mark, read)
        except Cut:
            for char in held:
                self.plain(char)
            if not self._after_call:
                self._flush_space()

    def attempt(self, mark: str, read: Callable[[], Reading[None]]) -> Reading[None]:
        """Reads calls behind a mark; what belongs to none of them comes back as text."""
        self._raw, self._size = [mark], len(mark)
        self.certain = mark not in self._lines
        try:
            yield from read()
        except Broken as broken:
            self._give_back(broken.kind)
            if isinstance(broken, Cut):
                raise
        else:
            self._give_back(None)
        finally:
            self._raw = None

    def _ended(self) -> Reading[None]:
        """Behind the end there are no calls, only text."""
        try:
            while True:
                self.say((yield))
        except Cut:
            pass

    def _give_back(self, kind: MalformedKind | None) -> None:
        # Not searched for marks: what a broken call held is text, and every step stays linear.
        source, self._raw = "".join(self._raw or ()), None
        for char in source:
            self.plain(char)
        if kind is not None and source and self.certain and self._notes < MAX_NOTES:
            self._notes += 1
            self._join()
            self._out.append(Malformed(kind, source))

    # -- pieces of grammars -------------------------------------------------------------------

    def read_again(self, text: str) -> None:
        """Takes back what was read last."""
        if text:
            self._ahead.extend(reversed(text))
            if self._raw is not None:
                del self._raw[-len(text) :]
                self._size -= len(text)

    def one_of(self, *marks: str, held: str = "") -> Reading[str]:
        """The mark that comes next, of which `held` was read already; "" and nothing read else."""
        start = len(held)
        while held not in marks:
            if not any(mark.startswith(held) for mark in marks):
                self.read_again(held[start:])
                return ""
            held += yield
        return held

    def past_space(self) -> Reading[str]:
        """The next character that is no white space."""
        while (char := (yield)) in SPACE:
            pass
        return char

    def then(self, *marks: str) -> Reading[str]:
        """The mark that comes next behind white space; "" and only that read else."""
        self.read_again((yield from self.past_space()))
        return (yield from self.one_of(*marks))

    def behind(self, *marks: str) -> Reading[str]:
        """As `then`, behind a complete call: when the answer ends here nothing is missing."""
        try:
            return (yield from self.then(*marks))
        except Cut:
            self.drop()
            raise

    def closing(self, *marks: str) -> Reading[str]:
        """As `behind`, for marks that belong to the call before them."""
        mark = yield from self.behind(*marks)
        if mark:
            self.drop()
        return mark

    def until(self, stops: str, *, most: int = MAX_NAME) -> Reading[tuple[str, str]]:
        """Text up to one of the characters, and that character, on one line."""
        text: list[str] = []
        while (char := (yield)) not in stops:
            if len(text) >= most or char == "\n":
                raise Broken("bad_form")
            text.append(char)
        return "".join(text), char

    # -- calls --------------------------------------------------------------------------------

    def drop(self) -> None:
        """What was read so far stands in the deltas, or says nothing."""
        if self._raw is not None:
            self._raw.clear()
        self._size = 0

    def parameters(self, name: str) -> Mapping[str, Any]:
        """The schema of a tool's arguments, empty for a tool that is not declared."""
        return self.tools[name].function.parameters if name in self.tools else {}

    def call_with(self, name: str, values: Mapping[str, str]) -> None:
        """A complete call, of arguments whose values are JSON text."""
        pairs = ", ".join(f"{dump(key)}: {value}" for key, value in values.items())
        self.call(name, f"{{{pairs}}}")

    def call(self, name: str, arguments: str) -> None:
        """A complete call. Raises Broken when nothing can be called by the name."""
        if not name or len(name) > MAX_NAME or not is_unicode(name):
            raise Broken("no_name")
        self.drop()
        self._space.clear()
        self._join()
        self._out += [
            CallStart(self._index, self._ids(), name),
            CallArguments(self._index, arguments),
            CallEnd(self._index),
        ]
        self._index += 1
        self._after_call = True


class Family:
    """A `CallFormat` whose parser is a machine."""

    name: str
    shape: CallShape
    machine: type[Machine]

    def __init__(self, ids: IdSource = new_call_id, *, max_call: int = MAX_CALL) -> None:
        self._ids = ids
        self._max_call = max_call

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return self.machine(tools, self._ids, self._max_call)
