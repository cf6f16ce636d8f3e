"""Which draft to verify and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, cast

from agentspec.control.asking import Asking
from agentspec.control.cost import CostCurve
from agentspec.control.pace import Pace
from agentspec.control.rows import ANY_ROWS, RowClass
from agentspec.control.source import Source
from agentspec.control.stake import Advance, Stake
from agentspec.control.survival import Survival
from agentspec.types import EMPTY_DRAFT, SKIP, Draft, Verdict


class Controller(Protocol):
    """Decides per step; must not truncate or drop a draft by the value of a sampled token."""

    def choose(self, drafts: Iterable[Draft], room: int, *, context: int | None = None) -> Draft:
        """One of the drafts, perhaps truncated, perhaps empty; at most `room` tokens.

        `drafts` is lazy: a proposer is asked only when its draft is taken from it. A generator is
        sent the free draft that the next proposer may go on behind. `context` is the number of
        cached tokens.
        """
        ...

    def observe(
        self, verdict: Verdict, *, rows: int, seconds: float, context: int | None = None
    ) -> None:
        """What the pass decided; it carried `rows` rows, padding included, and took `seconds`."""
        ...

    def explain(self) -> str:
        """Why the last choice was made, in a line."""
        ...


def _next(drafts: Iterator[Draft], behind: Draft | None) -> Draft | None:
    """The next draft, behind another where that can be said; None when there is none left."""
    if behind and isinstance(drafts, Generator):
        try:
            return cast(Draft, drafts.send(behind))
        except StopIteration:
            return None
    return next(drafts, None)


def _skip(drafts: Iterator[Draft]) -> bool:
    """Leave the next proposer unasked; False when there is none, or nobody to leave out."""
    if not isinstance(drafts, Generator):
        return False
    try:
        drafts.send(SKIP)
    except StopIteration:
        return False
    return True


def _followed(draft: Draft, committed: Sequence[int]) -> Iterator[tuple[int, Sequence[int], bool]]:
    """Committed tokens with the draft's tokens in that place, and whether it is one of them."""
    children, node = draft.children, -1
    for token in committed:
        following = children[node + 1]
        node = next((j for j in following if draft.tokens[j] == token), -1)
        yield token, following, node >= 0
        if node < 0:
            return


class FixedController:
    """The first non-empty draft, at most k tokens of it.

    `match_factor` limits a draft that comes from a match to that multiple of the match length:
    short matches say little. 0 turns the limit off. Rule of SuffixDecoding (arXiv 2411.04975).
    """

    def __init__(self, k: int = 8, *, match_factor: float = 0.5) -> None:
        self.k = k
        self.match_factor = match_factor

    def choose(self, drafts: Iterable[Draft], room: int, *, context: int | None = None) -> Draft:
        for draft in drafts:
            if not draft.tokens:
                continue
            k = min(self.k, room)
            if self.match_factor and draft.evidence.match_length:
                k = min(k, max(1, int(draft.evidence.match_length * self.match_factor)))
            return draft.truncate(k)
        return EMPTY_DRAFT

    def observe(
        self, verdict: Verdict, *, rows: int, seconds: float, context: int | None = None
    ) -> None:
        return None

    def explain(self) -> str:
        return f"the first draft there is, at most {self.k} tokens of it"


class _Choice(NamedTuple):
    """What was chosen, what it earns above a plain pass in tokens, and at which pace."""

    draft: Draft
    gain: float
    price: float


class CostAwareController:
    """The draft and the length of it that earn most, often none.

    With s(j) the learned probability that draft token j stands when all before it did, K
    maximises 1 + the running products of s, summed to K, less the price of K + 1 rows: their cost
    at the pace that passes earn (`Pace`). It must beat the plain pass by `margin` tokens. The
    first `free` drafts are there for nothing; those behind them are of `sources`, in their order:
    each costs passes of its own and is asked for where that has paid above what the drafts before
    it promise (`Asking`).

    No pass risks more than half of the `stake` and what drafts have won, and nobody is asked whose
    pass is not within it, so that hopeless drafts cost two in a hundred in the long run (`Stake`).
    What asking loses against the free drafts is bounded too (`Advance`). `pending` tells the rows
    that a source of that number reads first when it is asked, at most the whole prompt: what was
    there before the last step was not for this draft alone, so it speaks against asking now, but
    not against the source.

    All of it depends only on what was known before a token was sampled: a sampled draft that was
    asked for is taken, and never cut by where its tokens led.
    """

    def __init__(
        self,
        cost: CostCurve,
        survival: Survival | None = None,
        pace: Pace | None = None,
        asking: Asking | None = None,
        *,
        k: int = 32,
        margin: float = 0.02,
        rows: RowClass = ANY_ROWS,
        free: int = 1,
        sources: Sequence[Source] = (),
        pending: Callable[[int], int] = lambda number: 1,
        stake: Stake | None = None,
        advance: Advance | None = None,
    ) -> None:
        self._curve = cost
        self._cost: Callable[[int], float] = cost
        self._survival = survival or Survival()
        self._sources = sources or [Source(cost, asking=asking)]
        self._k = k
        self._margin = margin
        self._rows = rows
        self._free = free
        self._pace = pace or Pace(self._pass_cost, most=rows.limit(k))
        self._offered: list[tuple[Draft, Source | None]] = []  # and who was paid for it
        self._fees: list[tuple[Source, float]] = []
        self._paid: Source | None = None  # whose the choice is
        self._unpaid = EMPTY_DRAFT  # what it would be without asking
        self._pending = pending
        self._fresh = 1  # tokens of the last step
        self._stake = stake or Stake()
        self._advance = advance or Advance()
        self._choice = _Choice(EMPTY_DRAFT, 0.0, 0.0)

    def choose(self, drafts: Iterable[Draft], room: int, *, context: int | None = None) -> Draft:
        self._cost = self._curve.at(context)
        self._offered, self._fees = [], []
        price = self._pace.rate
        plain = worth = 1.0 - price * self._pass_cost(1)
        best, promised = EMPTY_DRAFT, 0.0
        behind, most_behind = EMPTY_DRAFT, plain
        given, number = iter(drafts), 0
        self._unpaid, self._paid = EMPTY_DRAFT, None
        while (source := self._source(number)) or number < self._free:
            number += 1
            pending = 1
            if source is not None:
                pending = self._pending(number - 1 - self._free)
                if not self._asks(source, pending, promised):
                    if not self._source(number) or not _skip(given):
                        break
                    continue
            draft = _next(given, behind if source is not None else None)
            if draft is None:
                break
            k, earns = 0, plain
            if draft.tokens:
                self._offered.append((draft, source))
                k, earns = self._best_length(draft, min(self._k, room, len(draft)), plain)
                if draft.deterministic and (not behind.tokens or earns > most_behind):
                    behind, most_behind = draft.as_chain(), earns
            if source is not None:
                fee = source.fee(source.passes(draft), self._cost)
                self._fees.append((source, fee))
                fee -= min(fee, self._reading(source, pending))
                added = max(earns, worth) - worth - price * fee
                source.asking.observe(promised, added)
            if k and (earns > worth or not draft.deterministic):
                best, worth, self._paid = draft.truncate(k), earns, source
            if source is None:
                self._unpaid = best
            promised = worth - plain
            if not draft.deterministic:
                break
        self._choice = _Choice(best, worth - plain, price)
        return best

    def observe(
        self, verdict: Verdict, *, rows: int, seconds: float, context: int | None = None
    ) -> None:
        for draft, source in self._offered or [(verdict.draft, None)]:
            if draft.deterministic:
                right, judged = self._learn_all(draft, verdict.tokens)
            elif verdict.draft.tokens[: len(draft)] != draft.tokens[: len(verdict.draft)]:
                continue  # it gave way to tokens that a grammar forces, so nothing judged it
            else:
                right, judged = (min(n, len(draft)) for n in (verdict.accepted, verdict.judged))
                self._survival.observe(draft, right, judged)
            if source is not None:
                taken = draft.evidence.taken
                source.judged(max(0, right - taken), max(0, judged - taken))
        self._offered = []
        self._curve.observe(rows, seconds, context)
        cost, tokens = self._cost(rows) + self._spent, len(verdict.tokens)
        for source, fee in self._fees:
            gain = self._gain(verdict, rows) if source is self._paid else 0.0
            source.won = self._advance.asked(source.won, gain - fee / self._pass_cost(1))
        self._fresh = tokens
        self._pace.observe(tokens, cost)
        self._stake.observe(tokens, cost / self._pass_cost(1))
        self._advance.passed(self._cost(rows) / self._pass_cost(1))

    def explain(self) -> str:
        draft, gain, price = self._choice
        if not draft.tokens:
            n = len(self._offered)
            offered = f"{n} draft{'s' * (n != 1)} offered, none pays" if n else "none"
            return f"no draft: {offered} (pace {price:.2f} tokens per pass)"
        chances = " ".join(f"{self._survival.of(draft, j):.2f}" for j in range(min(len(draft), 8)))
        more = " …" if len(draft) > 8 else ""
        names = "+".join(dict.fromkeys(draft.sources))
        return (
            f"{names}: {len(draft)} tokens, each stands with {chances}{more}; "
            f"{len(draft) + 1} rows cost {self._pass_cost(len(draft) + 1):.2f} passes at a pace "
            f"of {price:.2f}: {gain:+.2f} tokens against a plain pass"
        )

    def _asks(self, source: Source, pending: int, promised: float) -> bool:
        """Whether it is asked while so much is promised, and what that may cost is there."""
        first = source.fee((pending,), self._cost)
        left = source.won + max(0.0, self._advance.left - self._spent)
        if first + self._spent > self._stake.left or first > left:
            return False
        each = source.fee((1,), self._cost)
        # most engines have no draft model: nothing is planned in every step for what is free
        rest = (source.plan()[0] - 1) * each if each else 0.0
        return first + rest <= left and source.asking.wants(promised)

    @property
    def _spent(self) -> float:
        return sum(fee for _, fee in self._fees)

    def _reading(self, source: Source, pending: int) -> float:
        """What so many rows cost above as many as the last step gave tokens."""
        if pending <= self._fresh:
            return 0.0
        return source.fee((pending,), self._cost) - source.fee((self._fresh,), self._cost)

    def _gain(self, verdict: Verdict, rows: int) -> float:
        """Plain passes that a draft which was paid for won against the best free one, or lost."""
        free, given = self._unpaid, len(verdict.tokens)
        stood = sum(stood for *_, stood in _followed(free, verdict.tokens))
        tokens = given - min(given, stood + 1)
        dearer = self._cost(rows) - self._pass_cost(len(free) + 1)
        return (tokens / self._pace.rate - dearer) / self._pass_cost(1)

    def _source(self, number: int) -> Source | None:
        """Who is paid for the draft of this number; None for those that cost nothing."""
        at = number - self._free
        return self._sources[at] if 0 <= at < len(self._sources) else None

    def _learn_all(self, draft: Draft, committed: Sequence[int]) -> tuple[int, int]:
        """How many tokens of the draft's agreeing run stood, and how many were judged."""
        # what was committed is a draw from p whoever drafted: it judges every draft that agrees
        # with it so far, also the tokens that were not verified
        right = judged = 0
        for token, following, stood in _followed(draft, committed):
            for j in following:
                self._survival.learn(draft, j, draft.tokens[j] == token)
            right += stood
            judged += bool(following)
        return right, judged

    def _best_length(self, draft: Draft, most: int, plain: float) -> tuple[int, float]:
        """The best length and what it earns, 0 and `plain` where none beats the plain pass."""
        # What is known at token j of a sampled draft depends on the values of the tokens before
        # it. Looking past the first token that does not pay could throw those away because of
        # their own values, which changes the law of the output; stopping there cannot.
        sampled = not draft.deterministic
        price = self._pace.rate
        best, best_worth = 0, plain + self._margin
        tokens = 1.0
        stands: list[float] = []
        parents = draft.parents
        # one wrong draft, however sure it looked, must not cost a short answer all there is
        limit = (self._stake.left / 2.0 + 1.0) * self._pass_cost(1)
        for j in range(most):
            if self._pass_cost(j + 2) > limit:
                break
            parent = parents[j] if parents is not None else j - 1
            chance = self._survival.of(draft, j)
            stands.append(chance * stands[parent] if parent >= 0 else chance)
            tokens += stands[j]
            worth = tokens - price * self._pass_cost(j + 2)
            if worth > best_worth:
                best, best_worth = j + 1, worth
            elif sampled:
                break
        return best, best_worth if best else plain

    def _pass_cost(self, rows: int) -> float:
        return self._cost(rows + self._rows.padding(rows))
