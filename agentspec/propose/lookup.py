"""Lookup: what followed earlier, from all the places that the text may be following."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence, Set

from agentspec.context.growth import Chance, Growth
from agentspec.context.index import TokenIndex
from agentspec.context.pool import REACH, Corpus, Pointer, Pool
from agentspec.context.runs import Runs
from agentspec.context.shapes import Shapes
from agentspec.context.skeleton import Skeleton
from agentspec.syntax.cursor import Cursor
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, TurnContext, Verdict

_ANSWER, _PROMPT, _DERIVED, _GIVEN, _HABIT = range(5)


class Lookup:
    """Proposes the most likely chain among what followed at several earlier places.

    Candidates come from the live sequence, from the token runs given as context, from given texts
    in the shape a call's arguments have (`shapes`), from the fixed parts of calls (`skeleton`),
    from phrases that agents write (`habits`) and from the corpora of `more`. All pointers that
    agree on a token support it together; `chance` turns that evidence into a probability, and the
    likelier candidate is drafted at every depth, until the run stands with less than `least`.
    With `leaves` above 1 the draft is a tree of the likeliest runs. Deterministic (q is one-hot).

    Nothing is drafted behind one of `ends`, the ids that end an answer.

    A token is reported under the name of the corpus its longest supporter points into.
    """

    name = "lookup"

    def __init__(
        self,
        chance: Chance,
        *,
        least: Callable[[], float] = lambda: 0.02,
        leaves: int = 1,
        ends: Set[int] = frozenset(),
        cursor: Cursor | None = None,
        shapes: Shapes | None = None,
        skeleton: Skeleton | None = None,
        habits: TokenIndex | None = None,
        more: Sequence[Corpus] = (),
    ) -> None:
        self._least = least
        self._leaves = leaves
        self._cursor = cursor
        self._shapes = shapes
        self._skeleton = skeleton
        self._live = TokenIndex()
        self._context = Runs()
        self._answers: list[int] = []  # where answers begin and end, in turn
        corpora = [
            Corpus(self._live, _PROMPT, lambda place: self.name, live=True),
            Corpus(self._context.index, _GIVEN, self._context.source),
        ]
        if shapes is not None:
            corpora.append(Corpus(shapes.index, _DERIVED, lambda place: "edit"))
        if skeleton is not None:
            corpora.append(Corpus(skeleton.index, _HABIT, lambda place: "skeleton"))
        if habits is not None:
            corpora.append(Corpus(habits, _HABIT, lambda place: "habit"))
        self._pool = Pool((*corpora, *more))
        self._growth = Growth(self._pool.corpora, chance, cursor, ends)
        self._tail: list[int] = []
        self._offered: tuple[int, ...] = ()
        self._hits = 0

    def begin(self, turn: TurnContext) -> None:
        prompt = list(turn.tokens)
        n = self._live.follow(prompt)
        if self._shapes is not None:
            start = self._shapes.truncate(n)
            self._shapes.add(prompt[start:], start)
        if self._skeleton is not None:
            self._skeleton.follow(turn.tools)
        while self._answers and self._answers[-1] > n:
            self._answers.pop()
        if len(self._answers) % 2:
            if self._answers[-1] == n:
                self._answers.pop()  # nothing is left of it
            else:
                self._answers.append(n)
        self._answers.append(len(prompt))
        self._context.follow(turn.context)
        if self._cursor is not None:
            self._cursor.begin(prompt)
        self._tail = prompt[-REACH:]
        self._pool.clear()
        self._offered, self._hits = (), 0

    def propose(self, max_tokens: int) -> Draft:
        self._offered = ()
        self._pool.refill(self._tail)
        if not len(self._pool):
            return EMPTY_DRAFT
        growth = self._growth
        readers = [growth.reader(pointer, self._origin(pointer)) for pointer in self._pool]
        tree = growth.grow(
            readers, max_tokens, hits=self._hits, least=self._least(), leaves=self._leaves
        )
        if not tree.tokens:
            return EMPTY_DRAFT
        self._offered = tree.first_chain()
        longest = max(pointer.length for pointer in self._pool)
        features, classes = tuple(tree.features), tuple(tree.classes)
        return Draft(
            tuple(tree.tokens),
            tuple(tree.names),
            (None,) * len(tree.tokens),
            tuple(tree.parents),
            Evidence(longest, len(self._pool), (), features, classes),
        )

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        for token in accepted:
            self._pool.follow(token)
            self._live.add(token)
        if self._cursor is not None:
            self._cursor.advance(accepted)
        self._tail = [*self._tail, *accepted][-REACH:]
        guessed = min(len(self._offered), len(accepted))
        right = guessed and self._offered[:guessed] == tuple(accepted[:guessed])
        self._hits = self._hits + guessed if right else 0
        self._offered = ()

    def end(self) -> None:
        if len(self._answers) % 2:
            self._answers.append(len(self._live))

    def _origin(self, pointer: Pointer) -> int:
        corpus = self._pool.corpora[pointer.corpus]
        if not corpus.live:
            return corpus.origin
        return _ANSWER if bisect_right(self._answers, pointer.place) % 2 else _PROMPT
