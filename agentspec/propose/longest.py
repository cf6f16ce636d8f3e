"""The continuation of the longest earlier match: prompt lookup as other engines do it."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.context.index import Match, TokenIndex
from agentspec.context.runs import Runs
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, TurnContext, Verdict

_REACH = 64


class LongestMatch:
    """Proposes what followed the longest suffix match, deterministically (q is one-hot).

    Searches the live sequence and the token runs given as context; the longer match wins, the
    live one of equals. A draft from the context is reported under the name of its run.
    `min_match` is in tokens. Prompt lookup / LLMA, Yang et al. 2023 (arXiv 2304.04487).
    """

    name = "lookup"

    def __init__(self, *, min_match: int = 1) -> None:
        self._min_match = min_match
        self._live = TokenIndex()
        self._context = Runs()
        self._tail: list[int] = []

    def begin(self, turn: TurnContext) -> None:
        prompt = list(turn.tokens)
        self._live.follow(prompt)
        self._tail = prompt[-_REACH:]
        self._context.follow(turn.context)

    def propose(self, max_tokens: int) -> Draft:
        best: Match | None = None
        index = self._live
        for candidate in (self._live, self._context.index):
            match = candidate.find(self._tail)
            if match is not None and (best is None or match.length > best.length):
                best, index = match, candidate
        if best is None or best.length < self._min_match:
            return EMPTY_DRAFT
        run = index.continuation(best.start, max_tokens)
        source = self.name if index is self._live else self._context.source(best.start)
        return Draft.chain(run, source, Evidence(best.length, best.occurrences))

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        for token in accepted:
            self._live.add(token)
        self._tail = [*self._tail, *accepted][-_REACH:]

    def end(self) -> None:
        return None
