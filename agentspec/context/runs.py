"""The token runs given as context of an answer, in one index, from turn to turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from agentspec.context.index import SEPARATOR, TokenIndex


class Runs:
    """Runs with a SEPARATOR after each; `source(place)` is the name a run was given under."""

    def __init__(self) -> None:
        self.index = TokenIndex()
        self._known: list[tuple[int, str, int]] = []  # hash, source, where it begins

    def source(self, place: int) -> str:
        """The source name of the run that holds a place."""
        return self._known[bisect_right(self._known, place, key=lambda run: run[2]) - 1][1]

    def follow(self, context: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Hold these runs: the same usually come with every turn, only what is new is loaded."""
        try:
            self._follow(context)
        except BaseException:
            # a run that is only named would never be loaded
            self._known.clear()
            self.index.truncate(0)
            raise

    def _follow(self, context: Sequence[tuple[str, Sequence[int]]]) -> None:
        keys = [(hash(tuple(run)), source) for source, run in context]
        same = 0
        while same < min(len(keys), len(self._known)) and keys[same] == self._known[same][:2]:
            same += 1
        if same < len(self._known):
            self.index.truncate(self._known[same][2])
            del self._known[same:]
        at = len(self.index)
        joined: list[int] = []
        for (digest, source), (_, run) in zip(keys[same:], context[same:], strict=True):
            self._known.append((digest, source, at + len(joined)))
            joined += run
            joined.append(SEPARATOR)
        if joined:
            self.index.load(joined)
