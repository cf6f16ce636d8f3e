"""gpt-oss: messages with a header each, `<|channel|>final<|message|>text<|end|>`.

The channel analysis is thinking; final, and commentary without a recipient, are the answer's
text; a message to `functions.NAME` is a call, on whatever channel it stands. The template has
written `<|start|>assistant` when the answer begins.
"""

from __future__ import annotations

from typing import NamedTuple

from agentspec.chat.tools.json_calls import JsonMachine
from agentspec.chat.tools.machine import Broken, Cut, Family, Reading
from agentspec.types import CallShape

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN = "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")

_TO = "to="
_FUNCTIONS = "functions."
_MAX_HEADER = 1024


class _Header(NamedTuple):
    """What a message is: its channel, and whom it is for."""

    channel: str
    recipient: str

    @classmethod
    def parse(cls, text: str) -> _Header:
        # Models write odd headers, so each part ends where a mark or white space does.
        channel, recipient = "", ""
        for mark in (START, CONSTRAIN, MESSAGE):
            text = text.replace(mark, " ")
        for word in text.replace(CHANNEL, f" {CHANNEL}").split():
            if word.startswith(_TO) and not recipient:
                recipient = word.removeprefix(_TO)
            elif word.startswith(CHANNEL):
                channel = word.removeprefix(CHANNEL)
        return cls(channel, recipient)


class HarmonyMachine(JsonMachine):
    """Message after message; what has no header is text."""

    _thinking = False

    def plain(self, char: str) -> None:
        self.say(char, thinking=self._thinking)

    def _answer(self) -> Reading[None]:
        try:
            yield from self.attempt("", self._begin)
            while True:
                char = yield
                if char == "<":
                    yield from self.attempt(char, self._mark)
                else:
                    self.plain(char)
        except Cut:
            pass

    def _begin(self) -> Reading[None]:
        """The rest of the header that the template began, unless a constraint forces text."""
        self.certain = False
        yield from self._messages((yield from self.then(CHANNEL, _TO, START, MESSAGE)))

    def _mark(self) -> Reading[None]:
        self.certain = False
        mark = yield from self.one_of(START, CHANNEL, *ENDS, held="<")
        if mark in ENDS:
            mark = yield from self._next()
        yield from self._messages(mark)

    def _messages(self, mark: str) -> Reading[None]:
        """From the mark of a header on, as long as one call follows another."""
        while mark:
            ended = yield from self._header(mark)
            mark = (yield from self._next()) if ended else ""

    def _next(self) -> Reading[str]:
        """Behind the end of a message: the mark of the next header, "" where none follows."""
        self.drop()
        self._thinking = False
        return (yield from self.behind(START, CHANNEL))

    def _header(self, text: str) -> Reading[bool]:
        """From a mark to behind the one of the message, and the message when it is a call.

        True behind a call that was ended.
        """
        self._thinking = False
        mark = text
        try:
            while mark != MESSAGE:
                mark = char = yield
                if char == "<":
                    mark = yield from self.one_of(MESSAGE, CHANNEL, START, *ENDS, held=char)
                text += mark or char
                if mark in ENDS or len(text) > _MAX_HEADER:
                    self.certain = True
                    raise Broken("bad_form")
        except Cut:
            self.certain = bool(_Header.parse(text).recipient)
            if not self.certain:
                self.drop()  # the beginning of a header alone says nothing
            raise
        header = _Header.parse(text)
        name = self._tool(header.recipient)
        if name:
            self.certain = True
            return (yield from self._call(name))
        self.drop()
        self._thinking = header.channel.startswith("analysis")
        return False

    def _tool(self, recipient: str) -> str:
        """The tool that a message goes to, "" when it goes to nobody's."""
        name = recipient.removeprefix(_FUNCTIONS)
        called = self.tools and (name != recipient or name in self.tools)
        return name if called else ""

    def _call(self, name: str) -> Reading[bool]:
        if (yield from self.then(*ENDS)):
            # A tool without arguments.
            self.call(name, "{}")
            return True
        self.call(name, (yield from self.arguments()))
        return bool((yield from self.behind(*ENDS)))


class Harmony(Family):
    """The format of gpt-oss; its parser also parts thinking from text, with tools or without."""

    name = "harmony"
    shape = CallShape(
        f"{CHANNEL}commentary to={_FUNCTIONS}",
        f" {CONSTRAIN}json{MESSAGE}",
        "<|call|>",
        between=f"{START}assistant",
    )
    machine = HarmonyMachine
