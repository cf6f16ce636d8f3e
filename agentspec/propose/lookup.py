"""Lookup: the continuation of the longest earlier match, in the sequence or in given context."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.context.index import SEPARATOR, Match, TokenIndex
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, TurnContext, Verdict

_REACH = 64


class Lookup:
    """Proposes what followed the longest suffix match, deterministically (q is one-hot).

    Searches the live sequence and the token runs given as context; the longer match wins, the
    live one of equals. `min_match` is in tokens. Prompt lookup / LLMA, Yang et al. 2023
    (arXiv 2304.04487).
    """

    name = "lookup"

    def __init__(self, *, min_match: int = 3) -> None:
        self._min_match = min_match
        self._live = TokenIndex(orders=_orders(min_match))
        self._context = TokenIndex(orders=_orders(min_match))
        self._context_key: tuple[int, ...] = ()
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
        self._load_context([run for _, run in turn.context])

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
        return Draft.chain(run, self.name, Evidence(best.length, best.occurrences))

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        for token in accepted:
            self._live.add(token)
        self._tail = [*self._tail, *accepted][-_REACH:]

    def end(self) -> None:
        return None

    def _load_context(self, runs: Sequence[Sequence[int]]) -> None:
        # the same files usually come with every turn
        key = tuple(hash(tuple(run)) for run in runs)
        if key == self._context_key:
            return
        self._context = TokenIndex(orders=_orders(self._min_match))
        joined: list[int] = []
        for run in runs:
            joined += run
            joined.append(SEPARATOR)
        self._context.load(joined)
        self._context_key = key


def _orders(min_match: int) -> tuple[int, ...]:
    return (8, min_match) if min_match < 8 else (min_match,)
