"""A smaller model of the same family as proposer: it goes on where lookup leaves off."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from typing import Protocol, runtime_checkable

from agentspec.backends.base import Backend
from agentspec.engine.sampling import UNSHAPED, shape
from agentspec.engine.session import LiveSequence
from agentspec.errors import BackendError
from agentspec.propose._grown import Grown, Said
from agentspec.types import (
    EMPTY_DRAFT,
    Chance,
    Draft,
    FloatArray,
    SamplingParams,
    TurnContext,
    Verdict,
)


class Law(Said, Protocol):
    """q at one position."""

    def sample_draft(self, chance: Chance) -> int: ...

    def dense(self, vocab_size: int) -> FloatArray: ...


class Reading(Protocol):
    """A draft model that has read the committed tokens and what is drafted behind them."""

    @property
    def room(self) -> int:
        """Tokens that can still be appended."""
        ...

    @property
    def span(self) -> int:
        """Tokens that one `read` takes."""
        ...

    @property
    def rows(self) -> int:
        """Rows of the last pass."""
        ...

    @property
    def pending(self) -> int:
        """Rows of the next pass behind the committed tokens."""
        ...

    def begin(self, turn: TurnContext) -> None: ...

    def read(self, ahead: Sequence[int]) -> Sequence[Law]:
        """Append tokens; q before each of them and behind the last, in one pass.

        Raises CancelledError when the turn is cancelled.
        """
        ...

    def append(self, token: int) -> None:
        """Append a token that the next `read` computes."""
        ...

    def cut(self, drafted: int) -> None:
        """Take back all but so many of the tokens behind the committed ones."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """Put these in the place of what is drafted."""
        ...

    def end(self) -> None: ...


@runtime_checkable
class Timed(Protocol):
    """A reading whose passes cost time, which `spent` is told with their rows."""

    spent: Callable[[float, int], None] | None


class DraftModel:
    """Proposes the draft model's own continuation, also behind the draft of another proposer.

    What others drafted is read in one pass: as long as the draft model agrees it is kept; where
    it does not, the likelier token is, and from the first of its own tokens on it goes on alone
    (cascade of drafters, Chen et al. 2023, arXiv 2312.11462; here the cheap one is verified).

    Stops before a token whose distribution has max(q) < p_min. That is decided before the token
    is sampled, from committed and already drafted tokens only, so the law of the output stays the
    target's (Draft&Verify, arXiv 2309.08168, stops on the *sampled* token's probability, which is
    exact only for greedy drafts).

    Nothing is drafted behind one of `ends`. `plan` says before each draft how many own tokens to
    draft at most, and below which chance that all of them stand to stop; `chance` is the learned
    acceptance of evidence (`Survival`). Both may follow from earlier verdicts only.

    Draft tokens are the arg-max when decoding greedily or with a seed (the text of a seed is then
    the same with and without speculation), else sampled from q under the target's settings.

    `name` tells what reads, where that is no model of its own: one of `evidence.HEADS`.
    """

    def __init__(
        self,
        backend: Backend | None = None,
        *,
        target_vocab: int,
        k: int = 16,
        p_min: float = 0.4,
        plan: Callable[[], tuple[int, float]] | None = None,
        reading: Reading | None = None,
        name: str = "draft_model",
    ) -> None:
        self.name = name
        self._vocab = target_vocab
        self._k = k
        self._p_min = p_min
        self.plan = plan
        self.chance: Callable[[Sequence[int]], float] | None = None
        self.ends: Set[int] = frozenset()
        self._reading: Reading
        if reading is not None:
            self._reading = reading
        else:
            assert backend is not None
            self._reading = LiveReading(backend, target_vocab)
        self._sampling = SamplingParams()
        self._chance: Chance | None = None

    @property
    def live(self) -> LiveReading:
        """How it reads over a backend; it must have been made over one."""
        assert isinstance(self._reading, LiveReading)
        return self._reading

    @property
    def sequence(self) -> LiveSequence:
        return self.live.sequence

    @property
    def has_cache(self) -> bool:
        """True when it reads a model of its own."""
        return isinstance(self._reading, LiveReading)

    @property
    def pending(self) -> int:
        """Rows of the pass that comes first when it is asked: what it has not read yet."""
        return self._reading.pending

    def on_pass(self, spent: Callable[[float, int], None]) -> None:
        """Tell the seconds and rows of every pass over a backend."""
        if isinstance(self._reading, Timed):
            self._reading.spent = spent

    def begin(self, turn: TurnContext) -> None:
        # nothing is computed yet: a draft model that is never asked costs nothing
        self._reading.begin(turn)
        self._sampling, self._chance = turn.sampling, turn.chance

    def propose(self, max_tokens: int) -> Draft:
        return self.go_on(EMPTY_DRAFT, max_tokens)

    def go_on(self, behind: Draft, max_tokens: int) -> Draft:
        """A draft that begins with what of `behind`, a deterministic chain, seems right."""
        most, least = self.plan() if self.plan is not None else (self._k, 0.0)
        room = min(max_tokens, self._reading.room)
        grown = Grown(self.chance, self.name)
        if room <= 0 or most <= 0:
            return EMPTY_DRAFT
        ahead = behind.truncate(min(room, self._reading.span))
        laws = self._reading.read(ahead.tokens)
        grown.passes.append(self._reading.rows)
        instead = grown.keep(ahead, laws, least)
        if instead is None or grown.ended(self.ends):
            return grown.draft()
        self._reading.cut(len(grown))
        law = laws[len(grown)]
        own = min(self._k, most, room - len(grown))
        sampled = not self._sampling.greedy and self._sampling.seed is None
        while own > 0:
            if not grown.may_add(law.largest, instead, self._p_min, least):
                break
            if sampled:
                assert self._chance is not None
                token = law.sample_draft(self._chance)
            else:
                token = law.best()
            q = law.dense(self._vocab) if sampled else None
            grown.add(token, self.name, q)
            self._reading.append(token)
            own -= 1
            if not own or token in self.ends:
                break
            instead = ()
            try:
                (law,) = self._reading.read(())
                grown.passes.append(self._reading.rows)
            except BackendError:
                # what was sampled stands: to drop it because of where it led is a choice by value
                break
        return grown.draft()

    def observe(self, accepted: Sequence[int], verdict: Verdict) -> None:
        self._reading.commit(accepted)

    def end(self) -> None:
        self._reading.end()

    def close(self) -> None:
        if isinstance(self._reading, LiveReading):
            self._reading.sequence.close()


def _never() -> bool:
    return False


class LiveReading:
    """A `Reading` over a backend; its cache follows the committed tokens.

    `spent` is told the seconds and the rows of every pass. A cancel is heard before each pass: the
    first ones read the whole prompt, a chunk at a time, since nothing is read before it is asked.
    """

    def __init__(self, backend: Backend, target_vocab: int) -> None:
        self.sequence = LiveSequence(backend)
        self._vocab = target_vocab
        self.committed = 0
        self._sampling = SamplingParams()
        self._cancelled: Callable[[], bool] = _never
        self.rows = 0
        self.spent: Callable[[float, int], None] | None = None

    @property
    def room(self) -> int:
        return self.sequence.room

    @property
    def span(self) -> int:
        return self.sequence.backend.max_rows - 1

    @property
    def pending(self) -> int:
        return self.sequence.uncached

    def begin(self, turn: TurnContext) -> None:
        self.sequence.adopt(turn.tokens)
        self.committed = len(turn.tokens)
        self._sampling, self._cancelled = turn.sampling, turn.cancelled

    def read(self, ahead: Sequence[int]) -> Sequence[Law]:
        sequence = self.sequence
        for token in ahead:
            sequence.append(token)
        started, self.rows = time.perf_counter(), sequence.uncached
        output = sequence.next_rows(len(ahead) + 1, cancelled=self._cancelled)
        settings = UNSHAPED if self._sampling.greedy else self._sampling
        laws = [shape(output.logits(i)[: self._vocab], settings) for i in range(len(ahead) + 1)]
        if self.spent is not None:
            self.spent(time.perf_counter() - started, self.rows)
        return laws

    def append(self, token: int) -> None:
        self.sequence.append(token)

    def cut(self, drafted: int) -> None:
        if len(self.sequence.tokens) > self.committed + drafted:
            self.sequence.correct(self.committed + drafted, ())

    def commit(self, tokens: Sequence[int]) -> None:
        drafted = self.sequence.tokens[self.committed :]
        same = 0
        while same < min(len(drafted), len(tokens)) and drafted[same] == tokens[same]:
            same += 1
        self.sequence.correct(self.committed + same, tokens[same:])
        self.committed += len(tokens)

    def end(self) -> None:
        self._cancelled = _never  # it knows the request, which nothing may keep
        # drafted tokens are still behind the committed ones when a step broke off
        self.sequence.correct(self.committed, ())
        self.sequence.settle()
