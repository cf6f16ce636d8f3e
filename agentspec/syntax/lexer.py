"""Follows code one byte at a time: strings, comments, brackets, words, lines.

Every rule looks at the bytes before it only, so broken code and half UTF-8 sequences are followed
like any other text, and the state is the same however the bytes were grouped.
"""

from __future__ import annotations

from functools import cache

from agentspec.syntax.classes import NodeClass as N
from agentspec.syntax.languages import LANGUAGES, Language
from agentspec.syntax.lines import Line, end_of_line, heredoc
from agentspec.syntax.tree import Window

_NORMAL, _STRING, _LINE_COMMENT, _BLOCK_COMMENT, _TICK, _REGEX, _RAW_OPEN = range(7)
_SPACE, _NEWLINE, _WORD, _DIGIT, _QUOTE, _OPEN, _CLOSE, _SEPARATOR, _OPERATOR = range(9)
_OPENER = {ord(")"): "(", ord("]"): "[", ord("}"): "{"}
_LINE_KEPT = 400
_WORD_KEPT = 64
_SHOWN = 16
_MEMBER = (b".", b"->", b"::")
_DEFINERS = frozenset(
    b"def class func function fn struct enum interface type trait mod union namespace".split()
)
_FUNCTIONS = frozenset((b"def", b"func", b"function", b"fn"))


@cache
def _table(name: str) -> bytes:
    language = LANGUAGES[name]
    table = bytearray([_OPERATOR]) * 256
    for byte in range(256):
        char = chr(byte)
        if byte >= 0x80 or char.isalpha() or char == "_" or byte in language.word:
            table[byte] = _WORD
        elif char.isdigit():
            table[byte] = _DIGIT
    for bytes_, kind in (
        (b" \t\r\f\v", _SPACE), (b"\n", _NEWLINE), (language.quotes, _QUOTE), (b"([{", _OPEN),
        (b")]}", _CLOSE), (b",;:", _SEPARATOR),
    ):  # fmt: skip
        for byte in bytes_:
            table[byte] = kind
    return bytes(table)


class Lexer:
    """The lexical state behind the last byte of a code text."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._table = _table(language.name)
        self._window = Window(language)
        self._mode = _NORMAL
        self._kind = N.STATEMENT
        self._word = bytearray()
        self._named: N | None = None
        self._defines = False
        """The name of a function was defined: the next parenthesis holds its parameters."""
        self._params = 0
        """How many brackets are open inside its parameters; 0 outside."""
        self._last_word = b""
        self._ops = b""
        self._stack: list[str] = []
        self._indents: list[int] = [0]
        self._indent = 0
        self._fresh = True
        """Nothing but white space since the newline."""
        self._ended = N.STATEMENT
        """What the last newline outside strings was."""
        self._last = 0
        self._last_kind = N.STATEMENT
        self._close = b""
        self._closer = b""
        self._escapes = False
        self._multiline = False
        self._escaped = False
        self._recent = b""
        self._nested = 0
        self._empty = 0
        self._hashes = -1
        self._directive = False
        self.line = bytearray()
        self._heredocs = 0
        self._heredoc: tuple[bytes, bool, bytes] | None = None
        self._before_sign: tuple[int, N] = (0, N.STATEMENT)
        self._asked: N | None = None

    # what others read

    @property
    def kind(self) -> N:
        """The class of the place behind the last byte."""
        if self._asked is None:
            self._asked = self._classify()
        return self._asked

    @property
    def depth(self) -> int:
        return len(self._stack) + (len(self._indents) - 1 if self.language.layout else 0)

    @property
    def quote(self) -> str:
        return (
            self._close.decode("latin-1")
            if self._mode in (_STRING, _BLOCK_COMMENT)
            else ("\n" if self._mode == _LINE_COMMENT else "/" if self._mode == _REGEX else "")
        )

    def open(self) -> list[str]:
        """The innermost brackets, then the string or comment."""
        shown = self._stack[-_SHOWN:]
        if self._mode in (_STRING, _REGEX, _RAW_OPEN):
            shown.append("string")
        elif self._mode in (_LINE_COMMENT, _BLOCK_COMMENT):
            shown.append("comment")
        return shown

    def heredoc(self) -> tuple[bytes, bool, bytes] | None:
        """(delimiter, tabs are stripped, the command) when the line that just ended opens one."""
        if not self._heredocs or self._mode != _NORMAL:
            return None
        return self._heredoc

    def _classify(self) -> N:
        mode = self._mode
        if mode == _NORMAL:
            word = self._word
            if word:
                if 0x30 <= word[0] <= 0x39:
                    return N.LITERAL
                key = bytes(word)
                if key in self.language.keywords:
                    return N.KEYWORD
                if key in self.language.literals:
                    return N.LITERAL
                # what stands before it often says enough, and costs nothing
                return self._named or self._window.name() or N.IDENTIFIER
            rules = self.language
            if self._kind is N.STATEMENT and rules.newlines:
                # only a grammar knows whether the next line goes on with this one
                return N.LINE_START if self._window.ends_statement() is False else N.STATEMENT
            return self._kind
        if mode in (_STRING, _REGEX, _RAW_OPEN):
            return N.STRING
        return N.LITERAL if mode == _TICK else N.COMMENT

    # one byte

    def feed(self, byte: int) -> None:
        self._asked = None
        self._window.feed(byte)
        if len(self.line) < _LINE_KEPT:
            self.line.append(byte)
        mode = self._mode
        if mode == _NORMAL:
            self._normal(byte)
        elif mode == _STRING:
            self._string(byte)
        elif mode == _LINE_COMMENT:
            if byte == 0x0A:
                self._mode = _NORMAL
                self._newline()
        elif mode == _BLOCK_COMMENT:
            self._comment(byte)
        elif mode == _TICK:
            self._tick(byte)
        elif mode == _REGEX:
            self._regular(byte)
        else:
            self._raw_open(byte)
        if byte == 0x0A and self._mode != _NORMAL:
            self._window.line(None)
            self.line.clear()

    def _normal(self, byte: int) -> None:
        kind = self._table[byte]
        if kind == _WORD or (kind == _DIGIT and self._word):
            if not self._word:
                self._token()
                if self._params == len(self._stack) > 0 and self._last in b"(,":
                    self._named = N.PARAMETER
                elif self._last_kind is N.KEYWORD:
                    self._defines = self._last_word in _FUNCTIONS
                    self._named = N.DEFINITION if self._last_word in _DEFINERS else None
                else:
                    member = self._ops.endswith(_MEMBER) and self.language.name != "bash"
                    self._named = N.ATTRIBUTE if member else None
            if len(self._word) < _WORD_KEPT:
                self._word.append(byte)
            self._ops, self._empty, self._last = b"", 0, byte
            self._last_kind = N.IDENTIFIER
            return
        if kind == _DIGIT:
            self._token()
            self._word.append(byte)
            self._ops, self._empty, self._last = b"", 0, byte
            self._last_kind = N.LITERAL
            return
        word = self._word
        if byte == 0x2E and word and 0x30 <= word[0] <= 0x39:
            return  # the point of a number
        self._hash(byte, word)
        if word:
            if bytes(word) in self.language.keywords:
                self._last_kind, self._last_word = N.KEYWORD, bytes(word)
            if kind != _QUOTE:
                word.clear()
        if kind == _SPACE:
            if self._fresh:
                if self._kind is not N.INDENTATION:
                    self._indent = 0
                self._kind = N.INDENTATION
                self._indent += 4 if byte == 0x09 else 1
            else:
                self._kind = N.SPACE
            self._ops, self._empty = b"", 0
        elif kind == _NEWLINE:
            self._newline()
        elif kind == _QUOTE:
            self._quote(byte)
            word.clear()
        else:
            self._sign(byte, kind)

    def _token(self) -> None:
        """The first byte of a line that is not white space settles the indentation."""
        if not self._fresh:
            return
        self._fresh = False
        if self.language.layout and not self._stack:
            width = self._indent if self._kind is N.INDENTATION else 0
            while len(self._indents) > 1 and self._indents[-1] > width:
                self._indents.pop()
            if width > self._indents[-1]:
                self._indents.append(width)

    def _hash(self, byte: int, word: bytearray) -> None:
        """Counts the number signs of r#"…"#."""
        if byte == 0x23 and word == b"r" and self.language.tick:
            self._hashes = 1
        elif byte == 0x23 and self._hashes > 0 and self._ops:
            self._hashes += 1
        elif byte != 0x22:
            self._hashes = -1

    def _sign(self, byte: int, kind: int) -> None:
        language = self.language
        first = self._fresh
        after_space = first or self._kind in (N.SPACE, N.INDENTATION) or self._kind is N.SEPARATOR
        before = self._last_kind
        last = self._last
        self._token()
        self._ops = (self._ops + bytes((byte,)))[-4:]
        self._empty = 0
        if first and byte == 0x23 and language.semicolons and not language.tick:
            self._directive = True  # of the C preprocessor
        for opener in language.line_comments:
            if self._ops.endswith(opener) and (opener != b"#" or after_space or language.layout):
                self._mode, self._kind = _LINE_COMMENT, N.COMMENT
                self._comment_begins()
                return
        for opener, closer in language.block_comments:
            if self._ops.endswith(opener):
                self._mode, self._kind = _BLOCK_COMMENT, N.COMMENT
                self._close, self._recent, self._nested = closer, b"", 1
                self._comment_begins()
                return
        self._before_sign = (last, before)
        self._last = byte
        if kind == _OPEN:
            self._stack.append(chr(byte))
            if self._defines and byte == 0x28 and language.names_first:
                self._params = len(self._stack)
            self._defines = False
            self._kind = N.OPEN_BRACKET
        elif kind == _CLOSE:
            self._kind = N.CLOSE_BRACKET
            self._pop(byte)
        elif kind == _SEPARATOR:
            self._kind = N.SEPARATOR
        else:
            self._kind = N.OPERATOR
            if language.name == "bash" and self._ops[-2:] == b"<<":
                self._heredocs += 1
            if byte == 0x2F and language.regex and before not in (
                N.IDENTIFIER, N.LITERAL, N.STRING, N.CLOSE_BRACKET
            ):  # fmt: skip
                self._mode, self._escaped, self._recent = _REGEX, False, b""
        self._last_kind = self._kind

    def _comment_begins(self) -> None:
        # a comment says nothing about whether the statement before it goes on
        opener = len(self._ops)
        self._ops = b""
        if opener > 1:
            self._last, self._last_kind = self._before_sign

    def _pop(self, byte: int) -> None:
        stack = self._stack
        want = _OPENER[byte]
        if len(stack) <= self._params:
            self._params = 0
        if stack and stack[-1] == want:
            stack.pop()
        elif byte == 0x7D and stack and stack[-1] == "${":
            stack.pop()
            self._begin_string(b"`", escapes=True, multiline=True)
        elif want in stack[-3:]:
            # broken code: what stands between was never closed
            while stack.pop() != want:
                pass

    def _quote(self, byte: int) -> None:
        language = self.language
        word = bytes(self._word)
        quote = bytes((byte,))
        self._token()
        if language.triple and self._empty == byte:
            self._empty = 0
            self._begin_string(quote * 3, escapes=True, multiline=True)
            return
        self._empty = 0
        if byte == 0x27 and language.tick:
            self._mode, self._recent = _TICK, b""
            return
        if byte == 0x22 and language.raw_prefix == b"R" and word.endswith(b"R"):
            self._mode, self._recent = _RAW_OPEN, b""
            return
        bare = word in (b"r", b"br") or self._hashes > 0
        if bare and byte == 0x22 and language.raw_prefix == b"r":
            closer = quote + b"#" * max(0, self._hashes)
            self._begin_string(closer, escapes=False, multiline=True)
            self._hashes = -1
            return
        self._begin_string(
            quote, escapes=byte not in language.raw, multiline=byte in language.multiline
        )

    def _begin_string(self, closer: bytes, *, escapes: bool, multiline: bool) -> None:
        self._mode, self._kind = _STRING, N.STRING
        self._close, self._escapes, self._multiline = closer, escapes, multiline
        self._escaped, self._recent, self._ops = False, b"", b""

    def _end_string(self) -> None:
        self._mode, self._kind = _NORMAL, N.STRING
        self._last, self._last_kind = 0x22, N.STRING
        self._word.clear()

    def _string(self, byte: int) -> None:
        if self._escaped:
            self._escaped = False
            self._recent = b""
            return
        if byte == 0x5C and self._escapes:
            self._escaped = True
            return
        if byte == 0x0A and not self._multiline:
            self._end_string()
            self._newline()
            return
        close = self._close
        if byte == close[-1]:
            if len(close) == 1:
                empty = not self._recent
                self._end_string()
                self._empty = byte if empty else 0
                return
            if (self._recent + bytes((byte,))).endswith(close):
                self._end_string()
                return
        elif byte == 0x7B and close == b"`" and self._recent[-1:] == b"$" and self.language.regex:
            self._stack.append("${")
            self._mode, self._kind = _NORMAL, N.OPEN_BRACKET
            self._last, self._last_kind = byte, N.OPEN_BRACKET
            return
        self._recent = (self._recent + bytes((byte,)))[-24:]

    def _comment(self, byte: int) -> None:
        self._recent = (self._recent + bytes((byte,)))[-4:]
        if self._recent.endswith(self._close):
            self._nested -= 1
            self._recent = b""
            if not self._nested:
                self._mode, self._kind = _NORMAL, N.COMMENT
        elif self.language.nested_comments and self._recent.endswith(b"/*"):
            self._nested += 1
            self._recent = b""

    def _tick(self, byte: int) -> None:
        """Behind a quote that begins a character or a lifetime."""
        if byte == 0x27 and self._recent:
            self._end_string()
        elif self._table[byte] in (_WORD, _DIGIT):
            self._recent = (self._recent + bytes((byte,)))[-24:]
        elif self._recent:
            self._mode, self._kind, self._last_kind = _NORMAL, N.IDENTIFIER, N.IDENTIFIER
            self._normal(byte)
        else:
            self._begin_string(b"'", escapes=True, multiline=False)
            self._string(byte)
            if self._mode == _STRING:
                self._recent = b"x"

    def _regular(self, byte: int) -> None:
        """Inside a regular expression, or behind the first sign of a comment."""
        if not self._recent and byte in (0x2F, 0x2A):
            line = byte == 0x2F
            self._mode = _LINE_COMMENT if line else _BLOCK_COMMENT
            self._kind, self._close, self._nested = N.COMMENT, b"*/", 1
            self._ops = b"//"
            self._comment_begins()
            return
        if byte == 0x0A:
            self._mode, self._last_kind = _NORMAL, N.OPERATOR
            self._newline()
        elif self._escaped:
            self._escaped = False
        elif byte == 0x5C:
            self._escaped = True
            self._recent = self._recent or b"\\"
        elif byte == 0x2F and self._recent[:1] != b"[":
            self._end_string()
        else:
            # the first byte says whether a character class is open
            opened = byte == 0x5B or (self._recent[:1] == b"[" and byte != 0x5D)
            self._recent = b"[" if opened else b"x"

    def _raw_open(self, byte: int) -> None:
        if byte == 0x28:
            self._begin_string(b")" + self._recent + b'"', escapes=False, multiline=True)
        elif len(self._recent) >= 16 or byte in b' \\)"\n':
            self._begin_string(b'"', escapes=True, multiline=False)
            self._string(byte)
        else:
            self._recent += bytes((byte,))

    def _newline(self) -> None:
        blank = self._fresh
        if not blank:
            self._ended = end_of_line(
                self.language,
                Line(self.line, self._last, self._last_kind, self._stack[-1:], self._directive),
            )
        self._kind = self._ended
        self._find_heredoc()
        self._fresh, self._defines = True, False
        self._directive = self._directive and self._ended is N.LINE_START
        self._indent, self._ops, self._empty, self._hashes = 0, b"", 0, -1
        self._word.clear()
        inside = bool(self._stack) and self._stack[-1] != "{"
        if self.language.layout:
            inside = bool(self._stack)
        self._window.line(None if inside else self.depth)
        self.line.clear()

    def _find_heredoc(self) -> None:
        self._heredoc = heredoc(bytes(self.line)) if self._heredocs else None
        self._heredocs = int(self._heredoc is not None)

    def heredoc_taken(self) -> None:
        self._heredocs, self._heredoc = 0, None
