"""EAGLE: a draft layer that goes on from the target's own hidden states, as a dynamic tree.

EAGLE-2 (Li et al. 2024, arXiv 2406.16858): the tree is grown where tokens are likely to stand by
the draft's own probabilities, and its best tokens are kept. Those are the draft of EAGLE-1 and
EAGLE-3 layers here.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from agentspec.context import evidence
from agentspec.engine.sampling import shape
from agentspec.errors import BackendError
from agentspec.types import (
    EMPTY_DRAFT,
    Chance,
    Draft,
    Evidence,
    FloatArray,
    SamplingParams,
    TurnContext,
    Verdict,
)


class Law(Protocol):
    """q at one position."""

    def top(self, k: int) -> Sequence[tuple[int, float]]:
        """At most k of the likeliest tokens and their probabilities, the likeliest first."""
        ...

    def logits(self) -> FloatArray:
        """Logits over the target's vocabulary; minus infinity for what is never drafted."""
        ...


class Reading(Protocol):
    """Draft layers that follow one text and what is drafted behind it."""

    spent: Callable[[float, int], None] | None
    """Is told the seconds and rows of every pass."""

    @property
    def vocab_size(self) -> int:
        """That of the target."""
        ...

    @property
    def rows(self) -> int:
        """Rows of the last pass."""
        ...

    @property
    def pending(self) -> int:
        """Rows of the text that `read` has to read."""
        ...

    def begin(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None: ...

    def read(self) -> Law | None:
        """q behind the committed tokens, or None when nothing can be drafted there.

        Drops what was grown. Raises CancelledError when the turn is cancelled.
        """
        ...

    def grow(self, parents: Sequence[int], tokens: Sequence[int]) -> Sequence[Law]:
        """q behind each of these drafted tokens, in one pass.

        `parents[i]` counts the tokens grown since `read`, -1 is the end of the committed text.
        """
        ...

    def commit(self, tokens: Sequence[int]) -> None: ...

    def end(self) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Node:
    """A candidate: `score` is the probability of its branch, `chance` that all of it stands."""

    token: int
    parent: int
    sure: float
    depth: int
    score: float
    slots: tuple[int, ...]
    chance: float
    run: int = -1
    """Its number among the tokens that were grown."""


class Eagle:
    """Proposes the likeliest tree of draft layers, or their likeliest chain.

    With `leaves` above 1, what the target verifies, a draft is a tree: in each of up to `depth`
    passes the `width` likeliest branches grow, each by its `width` likeliest tokens, and of all
    these the `total` of the likeliest branches are kept, the likeliest first. A pass is made only
    for tokens that are among them so far, since what grows behind the others cannot be. The tree
    is deterministic, so it is verified exactly under any sampling.

    With one leaf a draft is a chain: of arg-max tokens when decoding greedily or with a seed, else
    sampled from q under the target's settings. It stops before a token whose distribution has
    max(q) < `p_min`, which is known before the token is sampled.

    Nothing is drafted behind one of `ends`, nor behind a branch that is less probable than
    `floor`. `plan` says before each draft how deep to go at most, and below which chance that a
    branch stands to stop; `chance` is the learned acceptance of evidence (`Survival`).
    """

    name = "eagle"

    def __init__(
        self,
        reading: Reading,
        *,
        leaves: int = 1,
        width: int = 6,
        depth: int = 6,
        total: int = 32,
        p_min: float = 0.3,
        floor: float = 0.01,
        plan: Callable[[], tuple[int, float]] | None = None,
    ) -> None:
        self.reading = reading
        self._leaves = leaves
        self._width = width if leaves > 1 else 1
        self._depth = depth
        self._total = total
        self._p_min = p_min
        self._floor = floor
        self.plan = plan
        self.chance: Callable[[Sequence[int]], float] | None = None
        self.ends: Set[int] = frozenset()
        self._sampling = SamplingParams()
        self._chance: Chance | None = None

    @property
    def pending(self) -> int:
        """Rows of the pass that comes first when it is asked: what it has not read yet."""
        return self.reading.pending

    def on_pass(self, spent: Callable[[float, int], None]) -> None:
        """Tell the seconds and rows of every pass."""
        self.reading.spent = spent

    def begin(self, turn: TurnContext) -> None:
        # nothing is computed yet: layers that are never asked cost nothing
        self.reading.begin(turn.tokens, turn.cancelled)
        self._sampling, self._chance = turn.sampling, turn.chance

    def propose(self, max_tokens: int) -> Draft:
        most, least = self.plan() if self.plan is not None else (self._depth, 0.0)
        deepest = min(self._depth, most, max_tokens)
        if deepest <= 0:
            return EMPTY_DRAFT
        law = self.reading.read()
        if law is None:
            return EMPTY_DRAFT
        passes = [self.reading.rows]
        if self._leaves > 1:
            return self._tree(law, deepest, least, min(self._total, max_tokens), passes)
        if self._sampling.greedy or self._sampling.seed is not None:
            return self._chain(law, deepest, least, passes)
        return self._sampled(law, deepest, least, passes)

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        self.reading.commit(accepted)

    def end(self) -> None:
        self.reading.end()

    def close(self) -> None:
        self.reading.close()

    def _tree(self, law: Law, deepest: int, least: float, total: int, passes: list[int]) -> Draft:
        nodes: list[_Node] = []
        best: list[float] = []  # the scores of the likeliest, at most `total`
        laws: Sequence[Law] = (law,)
        behind: list[int] = [-1]
        runs = 0
        for _ in range(deepest):
            begin = len(nodes)
            for parent, one in zip(behind, laws, strict=True):
                for rank, (token, sure) in enumerate(one.top(self._width)):
                    node = self._node(nodes, token, sure, parent, rank)
                    if not node.score >= self._floor:
                        break
                    nodes.append(node)
                    insort(best, node.score)
            del best[: max(0, len(best) - total)]
            if nodes[begin:] and nodes[begin].depth + 1 == deepest:
                break
            bar = best[0] if len(best) == total else 0.0
            fit = [
                j
                for j in range(begin, len(nodes))
                if nodes[j].score >= bar
                and nodes[j].chance >= least
                and nodes[j].token not in self.ends
            ]
            behind = sorted(fit, key=lambda j: -nodes[j].score)[: self._width]
            if not behind:
                break
            try:
                laws = self.reading.grow(
                    [nodes[nodes[j].parent].run if nodes[j].parent >= 0 else -1 for j in behind],
                    [nodes[j].token for j in behind],
                )
            except BackendError:
                break
            passes.append(self.reading.rows)
            for j in behind:
                nodes[j].run, runs = runs, runs + 1
        return self._ranked(nodes, total, passes)

    def _ranked(self, nodes: Sequence[_Node], total: int, passes: Sequence[int]) -> Draft:
        """The likeliest of these, the likeliest first: no token comes before the one it follows."""
        order = sorted(range(len(nodes)), key=lambda j: -nodes[j].score)
        place = {-1: -1, **{j: at for at, j in enumerate(order)}}
        parents = tuple(place[nodes[j].parent] for j in order)
        whole = self._made([nodes[j] for j in order], [None] * len(order), passes, parents)
        return whole.with_leaves(self._leaves).truncate(total)

    def _chain(self, law: Law, deepest: int, least: float, passes: list[int]) -> Draft:
        nodes: list[_Node] = []
        while True:
            best = law.top(1)
            if not best:
                break
            node = self._node(nodes, *best[0], len(nodes) - 1)
            stands = not nodes or node.chance >= least
            if not (node.sure >= self._p_min and node.score >= self._floor and stands):
                break
            nodes.append(node)
            if len(nodes) == deepest or nodes[-1].token in self.ends:
                break
            try:
                (law,) = self.reading.grow([len(nodes) - 2], [nodes[-1].token])
            except BackendError:
                break
            passes.append(self.reading.rows)
        return self._made(nodes, [None] * len(nodes), passes)

    def _sampled(self, law: Law, deepest: int, least: float, passes: list[int]) -> Draft:
        assert self._chance is not None
        nodes: list[_Node] = []
        laws: list[FloatArray | None] = []
        while True:
            q = shape(law.logits(), self._sampling)
            # decided by max(q), before a token is sampled
            node = self._node(nodes, -1, q.largest, len(nodes) - 1)
            if node.sure < self._p_min or (nodes and node.chance < least):
                break
            node.token = q.sample_draft(self._chance)
            nodes.append(node)
            laws.append(q.dense(self.reading.vocab_size))
            if len(nodes) == deepest or node.token in self.ends:
                break
            try:
                (law,) = self.reading.grow([len(nodes) - 2], [node.token])
            except BackendError:
                # what was sampled stands: to drop it because of where it led is a choice by value
                break
            passes.append(self.reading.rows)
        return self._made(nodes, laws, passes)

    def _node(
        self, nodes: Sequence[_Node], token: int, sure: float, parent: int, rank: int = 0
    ) -> _Node:
        before = nodes[parent] if parent >= 0 else None
        depth = 0 if before is None else before.depth + 1
        slots = evidence.head_slots(self.name, sure, depth, rank)
        chance = self.chance(slots) if self.chance is not None else sure
        if before is None:
            return _Node(token, parent, sure, depth, sure, slots, chance)
        score = before.score * sure
        return _Node(token, parent, sure, depth, score, slots, before.chance * chance)

    def _made(
        self,
        nodes: Sequence[_Node],
        laws: Sequence[FloatArray | None],
        passes: Sequence[int],
        parents: tuple[int, ...] | None = None,
    ) -> Draft:
        return Draft(
            tuple(node.token for node in nodes),
            (self.name,) * len(nodes),
            tuple(laws),
            parents,
            Evidence(
                confidence=tuple(node.sure for node in nodes),
                features=tuple(node.slots for node in nodes),
                passes=tuple(passes),
            ),
        )
