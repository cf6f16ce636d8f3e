"""Classes of drafted tokens: cheap, by the bytes of the token and the place it is drafted for.

A small automaton goes on from the committed position over the drafted tokens. One step of it is a
function of (state, token) and is remembered, so a class costs a dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from agentspec.syntax.classes import NodeClass, SyntaxPosition
from agentspec.syntax.languages import LANGUAGES, UNKNOWN, by_name

NAMES = (
    "identifier", "part", "literal", "string", "comment", "keyword", "operator", "open", "close",
    "newline", "indent", "word", "json-key", "json-punctuation", "marker", "special",
)  # fmt: skip
"""Every class. `part` goes on with a word that an earlier token began; `open` and `close` are
brackets and quotes; `marker` is a diff's sign, a fence, a section's or a tag's mark; `special` has
no text."""

_LINES = frozenset(
    (NodeClass.LINE_START, NodeClass.STATEMENT, NodeClass.BLOCK, NodeClass.PROSE_LINE)
)
_WORDS = frozenset(
    (NodeClass.IDENTIFIER, NodeClass.DEFINITION, NodeClass.ATTRIBUTE, NodeClass.TYPE,
     NodeClass.PARAMETER, NodeClass.KEYWORD, NodeClass.LITERAL, NodeClass.PROSE_WORD)
)  # fmt: skip
_ESCAPES = {0x6E: 0x0A, 0x74: 0x09, 0x72: 0x0D}
_REMEMBERED = 1 << 18


class _State(NamedTuple):
    mode: str
    """prose, code, diff, json, or tag: up to its >."""
    language: str
    quote: bytes
    """What ends the string or comment we are in; b"" outside."""
    comment: bool
    line: bool
    """Only white space since the newline."""
    marker: bool
    """A diff's sign comes next."""
    word: bool
    escaped: bool
    """The text is the value of a JSON string: an unescaped quote ends it."""
    slash: bool
    """Behind a backslash of that JSON string."""
    skip: bool
    """Behind a backslash of a string in the code."""
    key: bool
    """In JSON: the next or present string is a key."""
    fenced: bool
    """Three backticks at a line's start end this text."""
    info: str | None
    """What stands behind the backticks of the fence that this line opens."""
    last: int


_JSON = _State(
    "json", "json", b"", False, False, False, False, False, False, False, False, False, None, 0
)  # fmt: skip


class TokenClasses:
    """The class of each drafted token, from the committed position on.

    `piece(token)` gives a token's bytes. A class depends on the committed position, the drafted
    tokens before and the token itself, never on what is drafted behind it.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._starts: dict[SyntaxPosition, int] = {}
        self._numbers: dict[_State, int] = {}
        self._states: list[_State] = []
        self._steps: list[dict[int, tuple[str, int]]] = []
        self._remembered = 0

    def of(self, position: SyntaxPosition, tokens: Sequence[int]) -> tuple[str, ...]:
        """One name of `NAMES` per token."""
        state = self.start(position)
        classes: list[str] = []
        for token in tokens:
            name, state = self.step(state, token)
            classes.append(name)
        return tuple(classes)

    def start(self, position: SyntaxPosition) -> int:
        """The state at a committed position, for `step`."""
        state = self._starts.get(position)
        if state is None:
            if len(self._starts) >= 4096:
                self._starts.clear()
            state = self._starts[position] = self._number(_state_of(position))
        return state

    def step(self, state: int, token: int) -> tuple[str, int]:
        """The class of a token drafted in a state, and the state behind it."""
        return self._steps[state].get(token) or self._step(state, token)

    def _number(self, state: _State) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._states)
            self._states.append(state)
            self._steps.append({})
        return number

    def _step(self, number: int, token: int) -> tuple[str, int]:
        if self._remembered >= _REMEMBERED:
            for steps in self._steps:
                steps.clear()
            self._remembered = 0
        name, state = classify(self._states[number], self._piece(token))
        step = self._steps[number][token] = (name, self._number(state))
        self._remembered += 1
        return step


def _state_of(position: SyntaxPosition) -> _State:
    kind, open_, region = position.kind, position.open, position.region
    inner = "call_string" in open_
    json = position.language == "json" and region in ("json", "code", "heredoc", "call_string")
    markup = kind is NodeClass.MARKUP
    mode = "code"
    if json:
        mode = "json"
    elif markup and region == "call":
        mode = "tag"
    elif region == "diff":
        mode = "diff"
    elif markup or kind.startswith("prose"):
        mode = "prose"
    quote = position.quote.encode("latin-1", "replace")
    line = kind in _LINES or kind in (NodeClass.INDENTATION, NodeClass.DIFF_MARKER) or markup
    key = kind is NodeClass.JSON_KEY if quote else open_[-1:] == ("key",)
    return _State(
        mode, position.language, quote, "comment" in open_[-2:], line and not quote,
        mode == "diff" and kind in _LINES, kind in _WORDS and not quote, inner,
        open_[-1:] == ("escape",), False, json and key, "fence" in open_,
        position.language if open_[-1:] == ("info",) else None, 0,
    )  # fmt: skip


def _is_word(byte: int, extra: bytes) -> bool:
    return byte >= 0x80 or byte == 0x5F or chr(byte).isalnum() or byte in extra


def classify(state: _State, piece: bytes) -> tuple[str, _State]:
    """The class of a token with these bytes in this state, and the state behind it."""
    if not piece:
        return "special", state
    name = ""
    blank = ""
    word = bytearray()
    begun = False
    for byte in piece:
        was = state
        state, byte = _unescape(state, byte)
        if byte < 0:
            continue
        found, state = _byte(state, byte)
        if found in ("newline", "indent"):
            blank = blank if blank == "newline" else found
            begun = True
        elif not name:
            name = found
            begun = begun and found != "part"
            if found in ("identifier", "word"):
                word.append(byte)
        elif found == "comment" and name == "operator":
            name = found  # its opener has two signs
        elif found == "close" and name == "string" and piece.lstrip()[:3] == bytes((byte,)) * 3:
            name = found  # the last of three quotes
        elif word and state.word and was.word:
            word.append(byte)
    if not name:
        # a lone backslash of an escape opens whatever comes
        return blank or ("string" if state.escaped else "operator"), state
    if name == "identifier":
        rules = LANGUAGES.get(state.language, UNKNOWN)
        run = bytes(word)
        if run in rules.keywords:
            name = "keyword"
        elif run in rules.literals or run[:1].isdigit():
            name = "literal"
    return name, state


def _unescape(state: _State, byte: int) -> tuple[_State, int]:
    """The byte that the text inside a JSON string gets; -1 for none."""
    if not state.escaped:
        return state, byte
    if state.slash:
        return state._replace(slash=False), _ESCAPES.get(byte, byte)
    if byte == 0x5C:
        return state._replace(slash=True), -1
    if byte == 0x22:
        # the string of the call ends here
        return _JSON._replace(quote=b'"', fenced=state.fenced), 0x22
    return state, byte


def _byte(state: _State, byte: int) -> tuple[str, _State]:
    if state.mode == "json":
        return _json(state, byte)
    if state.mode == "tag":
        if byte != 0x3E:
            return "marker", state
        return "marker", state._replace(mode="prose", line=True, language="")
    if byte == 0x0A and state.info is not None:
        language = by_name(state.info)
        mode = "json" if language == "json" else "diff" if language == "diff" else "code"
        mode = "prose" if language == "markdown" else mode
        return "newline", state._replace(
            mode=mode, language=language, line=True, marker=mode == "diff", word=False,
            fenced=True, info=None, last=0,
        )  # fmt: skip
    if byte == 0x0A:
        keeps = state.quote and (len(state.quote) > 1 or state.quote == b"`")
        quote = state.quote if keeps else b""
        return "newline", state._replace(
            quote=quote, comment=state.comment and bool(quote), line=not quote,
            marker=state.mode == "diff", word=False, skip=False, last=0,
        )  # fmt: skip
    if state.marker:
        sign = byte in b"+- @*\\"
        return "marker", state._replace(marker=False, line=sign, word=False, last=0)
    if state.quote and state.mode != "prose":
        return _quoted(state, byte)
    if byte in b" \t\r":
        return "indent", state._replace(word=False, last=0x20)
    rules = LANGUAGES.get(state.language, UNKNOWN)
    prose = state.mode == "prose"
    if _is_word(byte, b"'" if prose and state.word else rules.word):
        name = "part" if state.word else ("word" if prose else "identifier")
        if state.info is not None and len(state.info) < 16:
            state = state._replace(info=state.info + chr(byte))
        return name, state._replace(word=True, line=False, last=byte)
    after = state._replace(word=False, line=False, last=byte)
    if byte == 0x60 and (prose or state.fenced) and state.line:
        # the third one opens a fence, or ends this one
        if state.last == 0x60 and state.skip:
            if prose and not state.fenced:
                return "marker", after._replace(skip=False, info="")
            return "marker", after._replace(skip=False, mode="prose", language="", fenced=False)
        return "marker", after._replace(line=True, skip=state.last == 0x60)
    if state.line and prose and byte in b"#>-*~":
        return "marker", after
    if prose and byte == 0x3C:
        return "marker", after
    if prose:
        name = "open" if byte in b"([{" else "close" if byte in b")]}" else "operator"
        return name, after
    return _sign(state, after, byte)


def _sign(state: _State, after: _State, byte: int) -> tuple[str, _State]:
    rules = LANGUAGES.get(state.language, UNKNOWN)
    pair = bytes((state.last, byte)) if state.last else bytes((byte,))
    for opener in rules.line_comments:
        if opener in (pair, bytes((byte,))):
            return "comment", after._replace(quote=b"\n", comment=True, last=0)
    for opener, closer in rules.block_comments:
        if opener[:2] == pair:
            return "comment", after._replace(quote=closer, comment=True, last=0)
    if byte in rules.quotes:
        if rules.triple and state.last == byte:
            return "string", after._replace(quote=bytes((byte,)) * 3, last=0)
        # a Rust lifetime begins as a character does
        quote = b"" if rules.tick and byte == 0x27 else bytes((byte,))
        return "open", after._replace(quote=quote, last=0)
    if byte in b"([{":
        return "open", after
    if byte in b")]}":
        return "close", after
    return "operator", after


def _quoted(state: _State, byte: int) -> tuple[str, _State]:
    name = "comment" if state.comment else "string"
    if state.skip:
        return name, state._replace(skip=False, last=byte)
    rules = LANGUAGES.get(state.language, UNKNOWN)
    if byte == 0x5C and not state.comment and state.quote[-1] not in rules.raw:
        return name, state._replace(skip=True)
    quote = state.quote
    if byte == quote[-1] and quote == quote[:1] * 3:
        run = state.last + 1 if state.last in (1, 2) else 1
        closes = run == 3
    else:
        run = byte
        closes = byte == quote[-1] and (len(quote) == 1 or state.last == quote[-2])
    if not closes:
        return name, state._replace(last=run)
    if state.comment:
        return name, state._replace(quote=b"", comment=False, last=0)
    empty = byte if len(quote) == 1 and not state.last else 0
    return "close", state._replace(quote=b"", word=False, last=empty)


def _json(state: _State, byte: int) -> tuple[str, _State]:
    if state.quote:
        inside = "json-key" if state.key else "string"
        if state.skip:
            return inside, state._replace(skip=False)
        if byte == 0x5C:
            return inside, state._replace(skip=True)
        if byte == 0x22:
            return "json-punctuation", state._replace(quote=b"", key=False, word=False)
        return inside, state
    if byte == 0x0A:
        return "newline", state._replace(word=False)
    if byte in b" \t\r":
        return "indent", state._replace(word=False)
    if byte == 0x22:
        return "json-punctuation", state._replace(quote=b'"', skip=False, word=False)
    if byte in b"{},:[]":
        return "json-punctuation", state._replace(
            key=byte == 0x7B or (byte == 0x2C and state.last != 0x5B), word=False,
            last=0x5B if byte == 0x5B else 0 if byte in b"]{" else state.last,
        )  # fmt: skip
    if byte == 0x3C:
        return "marker", state._replace(mode="tag", last=0)
    if byte == 0x60 and state.fenced:
        return "marker", state._replace(mode="prose", language="", fenced=False, last=0)
    return "part" if state.word else "literal", state._replace(word=True)
