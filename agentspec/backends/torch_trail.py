"""The hidden states behind the tokens of each sequence, kept for those who draft from them.

A hidden state follows from the tokens up to its own, so rows are found by their tokens: who reads
them need not know which sequence of the backend a text is in, nor which branch of a tree stood.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from agentspec.backends.base import SeqId

if TYPE_CHECKING:
    from agentspec.backends.torch_inside import Heard, Inside
    from agentspec.backends.torch_pass import Features

_log = logging.getLogger(__name__)
_STEP = 256


class Trail:
    """What passes of `target` leave behind, one row per token, from when this is made.

    `fuse` makes of the hidden states of a pass the rows that are kept, [rows, width].
    """

    def __init__(self, target: Inside, fuse: Callable[[Features], Any]) -> None:
        self._fuse = fuse
        self._texts: dict[SeqId, Rows] = {}
        self._quiet = False
        self._stop = target.listen(self._hear)

    def since(self, text: Sequence[int], row: int) -> list[Stretch]:
        """Where the rows of a text are from `row` on, up to that of its last token but one.

        In their order and without holes, but the first may begin behind `row`. Empty where the
        last one is not kept. A sequence that was copied has its beginning in another one.
        """
        found: list[Stretch] = []
        end = len(text) - 1
        for one in self._texts.values():
            one.settle(text)
        while end > row:
            known = [(one.agrees(text, row, end), one) for one in self._texts.values()]
            begin, best = min(
                ((at, one) for at, one in known if at is not None),
                key=lambda pair: pair[0],
                default=(end, None),
            )
            if best is None:
                break
            found.append(Stretch(begin, end, best))
            end = begin
        return found[::-1]

    def settle(self, text: Sequence[int]) -> None:
        """A step has ended with this text: the branch of a tree that it went along is kept."""
        for one in self._texts.values():
            one.settle(text)

    def close(self) -> None:
        """Keep nothing any more."""
        self._stop()
        self._texts.clear()

    def _hear(self, heard: Heard) -> None:
        seq, start, tokens = heard.rows.seq, heard.start, heard.rows.tokens
        text = self._texts.setdefault(seq, Rows())
        try:
            fused = self._fuse(heard.features)
            if heard.rows.parents is None:
                text.put(start, tokens, fused)
            else:
                # a copy: whoever makes the next pass may write over what this one gave
                kept = fused.clone()
                text.tree = start, tuple(tokens), tuple(heard.rows.parents), kept
        except Exception as error:
            # the pass has succeeded, and drafts can only cost speed
            self._texts.pop(seq, None)
            if not self._quiet:
                self._quiet = True
                _log.warning("hidden states of a pass are lost: %s", " ".join(str(error).split()))


class Stretch(NamedTuple):
    """Rows `start` to `end` of a text, and where they are."""

    start: int
    end: int
    rows: Rows


class Rows:
    """The rows of one sequence from `first` on, and those of a tree that is not yet judged."""

    def __init__(self) -> None:
        self.first = 0
        self.tokens: list[int] = []
        self.tree: tuple[int, tuple[int, ...], tuple[int, ...], Any] | None = None
        self._buffer: Any = None

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)

    def put(self, start: int, tokens: Sequence[int], rows: Any) -> None:
        """These follow `start` tokens; what was behind those is dropped."""
        self.tree = None
        if not self.first <= start <= self.end:
            self.first, self.tokens = start, []
        at = start - self.first
        end = at + len(tokens)
        old = self._buffer
        if old is None or len(old) < end:
            size = max(end, at * 3 // 2) + _STEP
            with torch.inference_mode():
                self._buffer = rows.new_empty((size, rows.shape[-1]))
                if old is not None:
                    self._buffer[:at] = old[:at]
        with torch.inference_mode():
            self._buffer[at:end] = rows
        self.tokens[at:] = tokens

    def settle(self, text: Sequence[int]) -> None:
        """Keep the branch of the tree that leads to the end of the text, if there is one."""
        if self.tree is None:
            return
        start, tokens, parents, rows = self.tree
        path: list[int] = []
        node = -1
        for token in text[start:-1]:
            here = (j for j, parent in enumerate(parents) if parent == node and tokens[j] == token)
            node = next(here, -1)
            if node < 0:
                return
            path.append(node)
        if path:
            self.put(start, [tokens[j] for j in path], rows[path])

    def agrees(self, text: Sequence[int], row: int, last: int) -> int | None:
        """The first row from `row` on, before `last`, behind which tokens are those of the text."""
        begin = max(row, self.first)
        if self.end < last or begin >= last:
            return None
        mine, its = self.tokens[begin - self.first : last - self.first], list(text[begin:last])
        if mine != its:
            same = 0
            while mine[-1 - same] == its[-1 - same]:
                same += 1
            begin = last - same
        return begin if begin < last else None

    def between(self, start: int, end: int) -> Any:
        """[end - start, width]"""
        return self._buffer[start - self.first : end - self.first]
