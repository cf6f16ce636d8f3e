"""The decode loop: propose, choose, verify, accept, roll back, observe."""

from __future__ import annotations

from collections.abc import Callable, Generator

from agentspec.control.controller import Controller
from agentspec.control.rows import ANY_ROWS, RowClass
from agentspec.engine.panel import Panel
from agentspec.engine.sampling import Sampler
from agentspec.engine.session import LiveSequence
from agentspec.engine.stats import TurnStats
from agentspec.engine.stop import StopRule
from agentspec.engine.verify import Rule, judge
from agentspec.errors import CancelledError
from agentspec.types import Verdict


def decode(
    sequence: LiveSequence,
    panel: Panel,
    controller: Controller,
    sampler: Sampler,
    stop: StopRule,
    stats: TurnStats,
    *,
    rows: RowClass = ANY_ROWS,
    rule: Rule | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Generator[Verdict, None, None]:
    """Yield one verdict per target pass until the answer ends.

    The sequence must be started. After every yield its cache holds all committed tokens but the
    last, and it stays usable when the consumer leaves early or anything raises. A `rule` stands in
    the place of `judge`. Raises CancelledError, ContextOverflowError in exact mode when the prompt
    leaves no room for the padding, and what the backend raises.
    """
    try:
        stop.bound(sequence.room_with(rows.spare))
        finish = None
        while finish is None:
            if cancelled():
                raise CancelledError("generation was cancelled; the text so far stands")
            fits = min(sequence.backend.max_rows - 1, sequence.room)
            room = min(stop.left - 1, rows.limit(fits))
            with stats.timing("draft"):
                drafts = panel.propose(room, sequence.backend.vocab_size)
                context = len(sequence.tokens) - 1
                draft = panel.lead(controller.choose(drafts, room, context=context), room)
                draft = sequence.verifiable(draft)
                stats.explain(controller.explain)
            padding, before = rows.padding(len(draft) + 1), stats.verify_seconds
            with stats.timing("verify"):
                output = sequence.verify(draft.tokens, parents=draft.parents, padding=padding)
            run: list[int] = []
            path: list[int] = []
            for token, node in (rule or judge)(draft, output, sampler, stats.tokens):
                run.append(token)
                path += () if node is None else (node,)
                finish = stop.feed(token)
                if finish is not None:
                    break
            verdict = Verdict.of(draft, run, path, finish)
            sequence.commit(run, path)
            stats.observe(verdict)
            with stats.timing("draft"):
                panel.observe(verdict)
                controller.observe(
                    verdict,
                    rows=len(draft) + 1 + padding,
                    seconds=stats.verify_seconds - before,
                    context=context,
                )
            yield verdict
    finally:
        try:
            sequence.settle()
        finally:
            panel.end()
