"""SuffixDecoding's draft policy, re-implemented for comparison only."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.types import EMPTY_DRAFT, Draft, Evidence, TurnContext, Verdict


class SuffixCounts:
    """How often every substring of a growing text occurs, and what followed it most often.

    A suffix automaton: a state is a set of substrings that end at the same places, so all of them
    have one count and one most frequent successor. Blumer et al. 1985.
    """

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.count = [0]
        self.best = [-1]
        """The most frequent next token of each state; of equals the latest."""
        self.best_count = [0]
        self.last = 0

    def append(self, token: int) -> None:
        """Add one token, in time of the number of states that hold a suffix of the text."""
        following, link, length, count = self.next, self.link, self.length, self.count
        old = self.last
        new = self.last = self._state({}, length[old] + 1)
        at = old
        while at >= 0 and token not in following[at]:
            following[at][token] = new
            at = link[at]
        if at < 0:
            link[new] = 0
        else:
            target = following[at][token]
            if length[at] + 1 != length[target]:
                target = self._split(at, token, target)
            link[new] = target
        at = new
        while at > 0:
            count[at] += 1
            at = link[at]
        # Only substrings that end the old text can have a successor whose count has changed.
        at = old
        while at > 0:
            now = count[following[at][token]]
            if now >= self.best_count[at]:
                self.best[at], self.best_count[at] = token, now
            at = link[at]

    def _split(self, at: int, token: int, target: int) -> int:
        """The part of `target` that is reached from `at`, as a state of its own."""
        following, link = self.next, self.link
        part = self._state(following[target].copy(), self.length[at] + 1)
        self.count[part] = self.count[target]
        self.best[part], self.best_count[part] = self.best[target], self.best_count[target]
        link[part], link[target] = link[target], part
        while at >= 0 and following[at].get(token) == target:
            following[at][token] = part
            at = link[at]
        return part

    def _state(self, following: dict[int, int], length: int) -> int:
        self.next.append(following)
        self.link.append(0)
        self.length.append(length)
        self.count.append(0)
        self.best.append(-1)
        self.best_count.append(0)
        return len(self.next) - 1


class SuffixDecoding:
    """Of the most frequent continuations of all matching suffixes, the one of the highest score.

    A match of L tokens may draft `factor` * L of them, match and draft together at most `depth`.
    Each next token is the most frequent one, the latest of equals, as long as the share of the
    matches that agree so far is at least `min_prob`. The sum of these shares is the score; the
    longer match wins among equals. The current end of the text counts as a match without a
    continuation, as it does in the published tree. One path, not a tree; no responses of other
    requests.
    Oliaro et al. 2024 (arXiv 2411.04975); the rules are those of Arctic Inference's suffix tree.
    """

    name = "suffix_decoding"

    def __init__(self, *, factor: float = 1.0, depth: int = 24, min_prob: float = 0.1) -> None:
        self._factor = factor
        self._depth = depth
        self._min_prob = min_prob
        self._tokens: list[int] = []
        self._counts = SuffixCounts()

    def begin(self, turn: TurnContext) -> None:
        prompt = list(turn.tokens)
        if prompt[: len(self._tokens)] != self._tokens:
            self._tokens, self._counts = [], SuffixCounts()
        self._extend(prompt[len(self._tokens) :])

    def propose(self, max_tokens: int) -> Draft:
        counts = self._counts
        best: list[int] = []
        best_score, best_match = 0.0, 0
        state = counts.link[counts.last]
        while state > 0:
            shortest = counts.length[counts.link[state]] + 1
            longest = min(counts.length[state], self._depth - 1)
            allowed = [self._allowed(n, max_tokens) for n in range(longest, shortest - 1, -1)]
            run, score = self._path(state, max(allowed, default=0))
            if score > best_score:
                best, best_score = run, score
                best_match = longest - next(i for i, n in enumerate(allowed) if n >= len(run))
            state = counts.link[state]
        if not best:
            return EMPTY_DRAFT
        return Draft.chain(best, self.name, Evidence(match_length=best_match))

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        self._extend(accepted)

    def end(self) -> None:
        return None

    def _allowed(self, match: int, room: int) -> int:
        """How many tokens a match of this length may draft."""
        return min(int(match * self._factor + 1e-6), self._depth - match, room)

    def _path(self, state: int, most: int) -> tuple[list[int], float]:
        """The most frequent continuation of a state, at most `most` tokens, and its score."""
        counts = self._counts
        matches = counts.count[state]
        run: list[int] = []
        score = 0.0
        while len(run) < most and counts.best_count[state]:
            share = counts.best_count[state] / matches
            if share < self._min_prob:
                break
            token = counts.best[state]
            run.append(token)
            score += share
            state = counts.next[state][token]
        return run, score

    def _extend(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens
        for token in tokens:
            self._counts.append(token)
