"""A shell script, and the texts that it hands to other programs: heredocs and -c scripts."""

from __future__ import annotations

import re

from agentspec.syntax.classes import NodeClass as N
from agentspec.syntax.lexer import Lexer
from agentspec.syntax.lines import heredoc
from agentspec.syntax.regions import Layer, Memory, Place, heredoc_language, layer_of

_SCRIPT = re.compile(rb"\b(python[\d.]*|node|bash|sh|zsh) -\w*[ce] *[\"']$")
_LANGUAGE = {b"p": "python", b"n": "javascript"}


class Shell:
    """Follows a script with its lexer; `inside` while another program's text is followed."""

    def __init__(self, lexer: Lexer, memory: Memory) -> None:
        self.done = False
        self.inside = False
        self._lexer = lexer
        self._memory = memory
        self._inner: Layer | None = None
        self._until = b""
        """The heredoc's delimiter; b"" inside a -c script."""
        self._tabs = False
        self._quoted = False
        """The heredoc lies in a double-quoted string, as in "$(cat <<EOF"."""
        self._held = bytearray()
        self._fresh = True

    def feed(self, byte: int) -> None:
        if self._until:
            self._heredoc(byte)
        elif self._inner is not None:
            self._script(byte)
        else:
            self._command(byte)

    def describe(self, open_: list[str]) -> Place:
        lexer = self._lexer
        open_ += lexer.open()
        if self._inner is None:
            return Place("code", "bash", lexer.kind, lexer.depth, lexer.quote, open_)
        open_.append("heredoc")
        if self._until and self._held.strip(b"\t"):
            return Place("heredoc", "bash", N.MARKUP, 0, "", open_)
        return self._inner.describe(open_)

    def _enter(self, language: str) -> None:
        self._inner = layer_of(language, "heredoc", self._memory)
        self.inside, self._fresh = True, True

    def _leave(self) -> None:
        self._inner, self._until, self.inside = None, b"", False
        self._held.clear()

    def _command(self, byte: int) -> None:
        lexer = self._lexer
        line = bytes(lexer.line) if byte in b"\"'\n" else b""
        quote = lexer.quote
        lexer.feed(byte)
        found = None
        if byte == 0x0A:
            found = lexer.heredoc()
            self._quoted = quote == '"'
            if self._quoted and b"$(" in line:
                found = heredoc(line)
        elif line and not quote and lexer.quote:
            script = _SCRIPT.search(line + bytes((byte,)))
            if script:
                self._enter(_LANGUAGE.get(script[1][:1], "bash"))
        if found:
            lexer.heredoc_taken()
            self._until, self._tabs, command = found
            # what a command substitution prints is read by people: a commit's message
            self._enter("markdown" if self._quoted else heredoc_language(command))

    def _heredoc(self, byte: int) -> None:
        inner, held = self._inner, self._held
        assert inner is not None
        if self._fresh:
            line = bytes(held) + bytes((byte,))
            bare = line.lstrip(b"\t") if self._tabs else line
            if self._until.startswith(bare) and byte != 0x0A:
                held.append(byte)
                return
            if byte == 0x0A and bare == self._until + b"\n":
                # the lexer saw the command; it sees the delimiter, so that its text is whole
                for one in line:
                    self._lexer.feed(one)
                self._leave()
                return
            for one in bytes(held):
                inner.feed(one)
            held.clear()
            self._fresh = False
        inner.feed(byte)
        if byte == 0x0A:
            self._fresh = True

    def _script(self, byte: int) -> None:
        """The text of a quoted script; in double quotes a backslash hides some signs."""
        inner, held = self._inner, self._held
        assert inner is not None
        double = self._lexer.quote == '"'
        self._lexer.feed(byte)
        if not self._lexer.quote:
            self._leave()
        elif held:
            held.clear()
            if byte not in b'"\\$`\n':
                inner.feed(0x5C)
            if byte != 0x0A:
                inner.feed(byte)
        elif double and byte == 0x5C:
            held.append(byte)
        else:
            inner.feed(byte)
