"""The production loop over fakes, with its invariants checked after every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from agentspec.backends.base import Backend
from agentspec.control.controller import Controller, FixedController
from agentspec.control.rows import ANY_ROWS, RowClass
from agentspec.engine.decode import decode
from agentspec.engine.panel import Panel
from agentspec.engine.sampling import Sampler, SeededChance
from agentspec.engine.session import LiveSequence
from agentspec.engine.stats import TurnStats
from agentspec.engine.stop import StopRule
from agentspec.engine.verify import Rule
from agentspec.propose.draft_model import DraftModel
from agentspec.testing.scripted import ScriptedBackend
from agentspec.types import (
    Chance,
    Constraint,
    FinishReason,
    Proposer,
    SamplingParams,
    TurnContext,
    Verdict,
)

GREEDY = SamplingParams()


@dataclass
class Answer:
    """What one run of the loop gave."""

    tokens: list[int] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    finish: FinishReason | None = None
    stats: TurnStats = field(default_factory=TurnStats)
    reused: int = 0


class Loop:
    """One target sequence that answers prompts turn after turn, as the engine does.

    With a ScriptedBackend every step is checked: the target's cache holds the committed tokens
    minus the last, a DraftModel's cache a prefix of them, at most all but the last.
    """

    def __init__(self, target: Backend, *, chunk: int = 512) -> None:
        self.target = target
        self.sequence = LiveSequence(target, chunk=chunk)

    def answer(
        self,
        prompt: Sequence[int],
        proposers: Sequence[Proposer] = (),
        *,
        params: SamplingParams = GREEDY,
        chance: Chance | None = None,
        controller: Controller | None = None,
        constraint: Constraint | None = None,
        max_tokens: int = 32,
        stop: Sequence[str] = (),
        stop_token_ids: Set[int] = frozenset(),
        rows: RowClass = ANY_ROWS,
        accept: Rule | None = None,
        context: Sequence[tuple[str, Sequence[int]]] = (),
        leave_after: int | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        into: Answer | None = None,
    ) -> Answer:
        """Run one turn; `leave_after` steps the consumer walks away.

        `into` is filled as the turn goes, for looking at what stood when something raised.
        Raises what the loop raises, and AssertionError when an invariant is broken.
        """
        answer = into or Answer()
        chance = chance or SeededChance(params.seed)
        tokenizer = self.target.tokenizer
        rule = StopRule(
            max_tokens=max_tokens,
            eos_ids=tokenizer.eos_ids,
            stop=stop,
            stop_token_ids=stop_token_ids,
            piece=tokenizer.piece,
        )
        panel = Panel(proposers, answer.stats, constraint=constraint)
        sampler = Sampler(params, chance, prompt=prompt, constraint=constraint)
        answer.reused = self.sequence.start(prompt)
        panel.begin(TurnContext(prompt, params, chance, context))
        steps = decode(
            self.sequence,
            panel,
            controller or FixedController(16, match_factor=0.0),
            sampler,
            rule,
            answer.stats,
            rows=rows,
            rule=accept,
            cancelled=cancelled,
        )
        try:
            while answer.finish is None and len(answer.verdicts) != leave_after:
                verdict = next(steps)
                answer.verdicts.append(verdict)
                answer.tokens += verdict.tokens
                answer.finish = verdict.finish
                committed = [*prompt, *answer.tokens]
                self.check(committed)
                for proposer in proposers:
                    if isinstance(proposer, DraftModel) and not answer.stats.notes:
                        check_draft(proposer, committed)
        finally:
            steps.close()
        if answer.finish is not None:
            assert len(answer.tokens) <= max_tokens
        return answer

    def check(self, committed: Sequence[int]) -> None:
        """The target's cache equals the committed tokens minus the last."""
        assert self.sequence.tokens == list(committed), "other tokens are committed"
        if isinstance(self.target, ScriptedBackend):
            cache = self.target.caches[self.sequence.seq]
            assert cache == list(committed[:-1]), "the target's cache is not the text"


def check_draft(proposer: DraftModel, committed: Sequence[int]) -> None:
    """The draft model's cache is a prefix of the committed tokens, at most all but the last."""
    if not proposer.has_cache:
        return
    backend = proposer.sequence.backend
    if isinstance(backend, ScriptedBackend):
        cache = backend.caches[proposer.sequence.seq]
        assert len(cache) <= len(committed) - 1, "the draft's cache is too long"
        assert cache == list(committed[: len(cache)]), "the draft's cache is not the text"
