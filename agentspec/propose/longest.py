"""The continuation of the longest earlier match: prompt lookup as other engines do it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from agentspec.context.index import SEPARATOR, Match, TokenIndex
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
        self._context = TokenIndex()
        self._runs: list[tuple[int, str, int]] = []  # hash, source, where it begins
        self._tail: list[int] = []

    def begin(self, turn: TurnContext) -> None:
        known, tokens = self._live.tokens, turn.tokens
        n = min(len(known), len(tokens))
        prompt = list(tokens)
        same = known[:n].tolist()
        if same != prompt[:n]:
            n = next(i for i in range(n) if same[i] != prompt[i])
        self._live.truncate(n)
        self._live.load(prompt[n:])
        self._tail = prompt[-_REACH:]
        self._load_context(turn.context)

    def propose(self, max_tokens: int) -> Draft:
        best: Match | None = None
        index = self._live
        for candidate in (self._live, self._context):
            match = candidate.find(self._tail)
            if match is not None and (best is None or match.length > best.length):
                best, index = match, candidate
        if best is None or best.length < self._min_match:
            return EMPTY_DRAFT
        run = index.continuation(best.start, max_tokens)
        source = self.name if index is self._live else self._source(best.start)
        return Draft.chain(run, source, Evidence(best.length, best.occurrences))

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        for token in accepted:
            self._live.add(token)
        self._tail = [*self._tail, *accepted][-_REACH:]

    def end(self) -> None:
        return None

    def _source(self, start: int) -> str:
        return self._runs[bisect_right(self._runs, start, key=lambda run: run[2]) - 1][1]

    def _load_context(self, context: Sequence[tuple[str, Sequence[int]]]) -> None:
        # the same files usually come with every turn: only what is new behind them is loaded
        keys = [(hash(tuple(run)), source) for source, run in context]
        same = 0
        while same < min(len(keys), len(self._runs)) and keys[same] == self._runs[same][:2]:
            same += 1
        if same < len(self._runs):
            self._context.truncate(self._runs[same][2])
            del self._runs[same:]
        at = len(self._context)
        joined: list[int] = []
        for (digest, source), (_, run) in zip(keys[same:], context[same:], strict=True):
            self._runs.append((digest, source, at + len(joined)))
            joined += run
            joined.append(SEPARATOR)
        if joined:
            self._context.load(joined)
