"""Keeps special tokens that user, file or tool text spells out plain text.

Content is marked before a template sees it: a private-use character that no input holds goes
inside every special piece, and to an end of the content where text of the template could complete
a piece. The rendered text is cut at the marks and each part is tokenised on its own, so that only
the template's own text can become special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from agentspec.errors import InvalidRequestError

_PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd]")
_EDGE = re.compile(r"^[\W_]+|[\W_]+$")


class Segment(NamedTuple):
    """A run of rendered text; `plain` text must not be searched for special pieces at all."""

    text: str
    plain: bool = False


class Guard:
    """Finds and cuts the special pieces of one vocabulary.

    Pieces of white space only are left alone: some vocabularies list them as user-defined, but
    they control nothing and splitting them would change how every text is read.
    """

    def __init__(self, special_pieces: Sequence[str]) -> None:
        pieces = sorted({p for p in special_pieces if p.strip()})
        self._pieces = frozenset(pieces)
        self._longest = max(map(len, pieces), default=0)
        self._prefixes = frozenset(p[:i] for p in pieces for i in range(1, len(p)))
        # Templates may change case, so content is searched without regard to it; a mark that
        # turns out not to be needed is taken out again by `segments`.
        folded = {_fold(p) for p in pieces}
        self._search = _any_of(folded)
        self._heads = frozenset(p[:i] for p in folded for i in range(1, len(p)))
        self._tails = frozenset(p[i:] for p in folded for i in range(1, len(p)))
        self._cores = frozenset(_EDGE.sub("", p) for p in folded) - {""}

    def marks(self, inputs: Iterable[str]) -> Marks:
        """Two private-use characters that occur in no input. Raises InvalidRequestError."""
        used: set[str] = set()
        for text in inputs:
            if not text.isascii():
                used.update(_PRIVATE.findall(text))
        free = (
            chr(point)
            for point in chain(
                range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE)
            )
            if chr(point) not in used
        )
        cut, plain = next(free, None), next(free, None)
        if cut is None or plain is None:
            raise InvalidRequestError("messages use every private-use character of Unicode")
        return Marks(self, cut, plain)

    def mark(self, text: str, cut: str, plain: str) -> str:
        """The text with marks inside its special pieces and at ends that could complete one."""
        if self._search is None or not text:
            return text
        folded = _fold(text)
        marks = [(position, cut) for position in self._edges(folded)]
        last = -1
        found = self._search.search(folded)
        while found:
            start, end = found.span()
            if end - start == 1:
                # One character cannot be cut, so it is set apart and tokenised as plain text.
                marks.append((start, plain))
                marks.append((end, cut))
            elif not start < last < end:
                last = end - 1
                marks.append((last, cut))
            found = self._search.search(folded, start + 1)
        if not marks:
            return text
        marks.sort(key=lambda item: item[0])
        out: list[str] = []
        at = 0
        for position, mark in marks:
            out += (text[at:position], mark)
            at = position
        out.append(text[at:])
        return "".join(out)

    def _edges(self, folded: str) -> list[int]:
        # Marks sit inside surrounding white space, so that a template's trim still works and
        # cannot move the content past its mark.
        body = folded.strip()
        if not body:
            return []
        start = len(folded) - len(folded.lstrip())
        end = start + len(body)
        reach = range(1, min(self._longest, len(body) + 1))
        head = any(body[:k] in self._tails for k in reach)
        tail = any(body[-k:] in self._heads for k in reach)
        if len(body) < self._longest and _EDGE.sub("", body) in self._cores:
            head = tail = True
        return [start] * head + [end] * tail

    def segments(self, rendered: str, cut: str, plain: str) -> list[Segment]:
        """The rendered text cut at its marks, marks that no special piece would span removed."""
        out: list[Segment] = []
        run: list[str] = []
        tail = ""

        def close() -> None:
            if run:
                out.append(Segment("".join(run)))
                run.clear()

        reach = max(self._longest - 1, 0)
        for part in rendered.split(cut):
            text, *singles = part.split(plain)
            if text:
                if run and self._spans(tail, text[:reach]):
                    close()
                    tail = ""
                run.append(text)
                tail = (tail + text[-reach:])[-reach:] if reach else ""
            for single in singles:
                close()
                tail = ""
                out.append(Segment(single, plain=True))
        close()
        return [segment for segment in out if segment.text]

    def _spans(self, left: str, right: str) -> bool:
        window, border = left + right, len(left)
        for start in range(border):
            end = start + 1
            while end <= len(window):
                piece = window[start:end]
                if end > border and piece in self._pieces:
                    return True
                if piece not in self._prefixes:
                    break
                end += 1
        return False


class Marks(NamedTuple):
    """The two mark characters chosen for one rendering."""

    guard: Guard
    cut: str
    plain: str

    def text(self, text: str) -> str:
        """Marked content."""
        return self.guard.mark(text, self.cut, self.plain)

    def value(self, value: Any) -> Any:
        """JSON-like content with every string and key marked."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(k): self.value(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value

    def clean(self, text: str) -> str:
        """The text without marks."""
        return text.replace(self.cut, "").replace(self.plain, "")

    def segments(self, rendered: str) -> list[Segment]:
        return self.guard.segments(rendered, self.cut, self.plain)


def _fold(text: str) -> str:
    folded = text.lower()
    # Lower-casing a few characters changes the length, which would shift every position.
    return folded if len(folded) == len(text) else text


def _any_of(pieces: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern for the shortest piece at a position; a trie, so that it never tries them all."""
    trie: dict[str, Any] = {}
    for piece in sorted(pieces, key=len):
        node = trie
        for char in piece:
            if "" in node:
                break
            node = node.setdefault(char, {})
        else:
            node.clear()
            node[""] = {}
    return re.compile(_branch(trie)) if trie else None


def _branch(node: dict[str, Any]) -> str:
    text = ""
    while len(node) == 1 and "" not in node:
        char, node = next(iter(node.items()))
        text += re.escape(char)
    if "" in node:
        return text
    return text + "(?:" + "|".join(re.escape(c) + _branch(n) for c, n in node.items()) + ")"
