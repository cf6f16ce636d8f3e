"""How other engines draft, as proposers and controllers that the production loop can replay.

Re-implemented from their public sources, or called, for comparison only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Protocol

import numpy as np

from agentspec.backends.peers import Policy, llama_cpp_prompt_lookup, transformers_prompt_lookup
from agentspec.bench.suffix_decoding import SuffixDecoding
from agentspec.control.controller import Controller, FixedController
from agentspec.errors import ConfigError, MissingExtraError
from agentspec.propose.longest import LongestMatch
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, Proposer, TurnContext, Verdict


class Peer(Protocol):
    """Makes the proposers and the controller of one peer, fresh for each session.

    `eos_ids` are what ends an answer, for peers that never draft it. Raises MissingExtraError
    when the peer is a library that is not installed.
    """

    def __call__(self, eos_ids: Set[int] = frozenset()) -> tuple[list[Proposer], Controller]: ...


class _Follower:
    """Keeps the text of the live sequence; one that does not continue it starts anew."""

    def __init__(self) -> None:
        self._tokens: list[int] = []

    def begin(self, turn: TurnContext) -> None:
        prompt = list(turn.tokens)
        if prompt[: len(self._tokens)] != self._tokens:
            self._tokens = []
            self._forget()
        self._extend(prompt[len(self._tokens) :])

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        self._extend(accepted)

    def end(self) -> None:
        return None

    def _extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._tokens.append(token)
            self._note()

    def _forget(self) -> None:
        """Drop what was noted."""

    def _note(self) -> None:
        """One token came to the end of the text."""


class PromptLookup(_Follower):
    """What followed the first occurrence of the last n tokens, the longest n that has one.

    The draft ends with the text, and before a token of `eos_ids`. Rule of transformers'
    `PromptLookupCandidateGenerator` (its logits processors need logits, so they stay out).
    """

    name = "prompt_lookup"

    def __init__(
        self, *, max_ngram: int = 3, draft_tokens: int = 10, eos_ids: Set[int] = frozenset()
    ) -> None:
        super().__init__()
        self._sizes = range(max_ngram, 0, -1)
        self._k = draft_tokens
        self._eos_ids = eos_ids
        self._first: dict[tuple[int, ...], int] = {}

    def propose(self, max_tokens: int) -> Draft:
        tokens = self._tokens
        for size in self._sizes:
            if size >= len(tokens):
                continue
            start = self._first[tuple(tokens[-size:])]
            if start == len(tokens):  # the end of the text itself
                continue
            run = tokens[start : start + min(self._k, max_tokens)]
            ends = next((j for j, token in enumerate(run) if token in self._eos_ids), len(run))
            return Draft.chain(run[:ends], self.name, Evidence(match_length=size))
        return EMPTY_DRAFT

    def _forget(self) -> None:
        self._first = {}

    def _note(self) -> None:
        tokens = self._tokens
        for size in self._sizes:
            if size <= len(tokens):
                self._first.setdefault(tuple(tokens[-size:]), len(tokens))


class NgramSimple(_Follower):
    """What followed the latest occurrence of the last n tokens, up to m of it, at least n or none.

    The last token, which is sampled but not yet in the cache, is neither searched nor drafted; a
    match at the very beginning does not count. Rule of llama.cpp's `common_ngram_simple_draft`.
    """

    name = "ngram_simple"

    def __init__(self, *, n: int = 12, m: int = 48) -> None:
        super().__init__()
        self._n = n
        self._m = m
        self._places: dict[tuple[int, ...], list[int]] = {}

    def propose(self, max_tokens: int) -> Draft:
        n, history = self._n, len(self._tokens) - 1
        if history <= n + self._m + 1:
            return EMPTY_DRAFT
        for place in reversed(self._places[tuple(self._tokens[-n:])]):
            if place >= history:
                continue
            run = self._tokens[place : min(place + self._m, history)]
            if place == n or len(run) < n:
                break
            return Draft.chain(run[:max_tokens], self.name, Evidence(match_length=n))
        return EMPTY_DRAFT

    def _forget(self) -> None:
        self._places = {}

    def _note(self) -> None:
        if len(self._tokens) >= self._n:
            gram = tuple(self._tokens[-self._n :])
            self._places.setdefault(gram, []).append(len(self._tokens))


class Called:
    """Asks another library's policy with all tokens so far."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self._policy = policy
        self._tokens = np.empty(0, dtype=np.int32)
        self._n = 0

    def begin(self, turn: TurnContext) -> None:
        self._n = 0
        self._extend(turn.tokens)

    def propose(self, max_tokens: int) -> Draft:
        run = self._policy(self._tokens[: self._n])
        return Draft.chain(list(run)[:max_tokens], self.name)

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        self._extend(accepted)

    def end(self) -> None:
        return None

    def _extend(self, tokens: Sequence[int]) -> None:
        n = self._n + len(tokens)
        if n > len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty(n, dtype=np.int32)))
        self._tokens[self._n : n] = tokens
        self._n = n


def _whole(proposer: Proposer, k: int) -> tuple[list[Proposer], Controller]:
    """A peer decides the length itself: all of its draft is verified, at most k tokens."""
    return [proposer], FixedController(k, match_factor=0.0)


# Functions and partials of them, not closures: a replay sends peers to other processes.


def _prompt_lookup(eos_ids: Set[int] = frozenset()) -> tuple[list[Proposer], Controller]:
    return _whole(PromptLookup(eos_ids=eos_ids), 10)


def _ngram_simple(eos_ids: Set[int] = frozenset()) -> tuple[list[Proposer], Controller]:
    return _whole(NgramSimple(), 48)


def _longest(eos_ids: Set[int] = frozenset(), *, k: int) -> tuple[list[Proposer], Controller]:
    return _whole(LongestMatch(), k)


def _suffix(
    eos_ids: Set[int] = frozenset(), *, factor: float, depth: int = 24
) -> tuple[list[Proposer], Controller]:
    return _whole(SuffixDecoding(factor=factor, depth=depth), depth)


def _transformers(eos_ids: Set[int] = frozenset()) -> tuple[list[Proposer], Controller]:
    return _whole(Called("transformers", transformers_prompt_lookup(eos_ids=eos_ids)), 10)


def _llama_cpp_python(eos_ids: Set[int] = frozenset()) -> tuple[list[Proposer], Controller]:
    return _whole(Called("llama-cpp-python", llama_cpp_prompt_lookup()), 10)


PEERS: Mapping[str, Peer] = {
    "prompt-lookup": _prompt_lookup,
    "ngram-simple": _ngram_simple,
    "longest-4": partial(_longest, k=4),
    "longest-8": partial(_longest, k=8),
    "longest-16": partial(_longest, k=16),
    "suffix-0.5": partial(_suffix, factor=0.5),
    "suffix-1": partial(_suffix, factor=1.0),
    "suffix-2-deep": partial(_suffix, factor=2.0, depth=64),
    "suffix-4-deep": partial(_suffix, factor=4.0, depth=64),
    "transformers": _transformers,
    "llama-cpp-python": _llama_cpp_python,
}
"""Name of the policy to what makes it.

The last two call the installed library. suffix-1 has vLLM's defaults without the global tree of
other requests' responses. suffix-2-deep stands for the tree variant: the loop verifies one path,
so it drafts the best path where the tree drafts several.
"""


def peer(name: str) -> Peer:
    """What makes the named peer. Raises ConfigError naming those there are."""
    if name not in PEERS:
        raise ConfigError(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
    return PEERS[name]


def installed_peers() -> tuple[dict[str, Peer], list[str]]:
    """The peers that can run here, and for each that cannot a line that says why."""
    found: dict[str, Peer] = {}
    skipped: list[str] = []
    for name, make in PEERS.items():
        try:
            make()
        except MissingExtraError as missing:
            skipped.append(f"peer {name} skipped: {missing}")
        else:
            found[name] = make
    return found, skipped
