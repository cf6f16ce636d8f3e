"""What the same candidates would give to someone who knows how much of each will stand."""

from __future__ import annotations

from collections.abc import Mapping

from agentspec.backends.base import Tokenizer
from agentspec.control.cost import CostCurve
from agentspec.control.prior import Prior
from agentspec.drafting import Drafting
from agentspec.engine.sampling import SeededChance
from agentspec.replay.chatml import Tokens
from agentspec.replay.tally import Tally
from agentspec.types import EMPTY_DRAFT, Proposer, SamplingParams, TurnContext, Verdict

_DEPTH = 32


def perfect(
    tokens: Tokens, tokenizer: Tokenizer, points: Mapping[int, float], prior: Prior | None = None
) -> Tally:
    """The cheapest passes that commit a session when every draft length is chosen in hindsight.

    At each place the engine's own chain is asked for, and any length of it may be verified, none
    included; least cost over all ways by dynamic programming. No choice of lengths can be faster;
    an engine can, where what it learned on the way made it draft other tokens.
    """
    cost = CostCurve.from_points(points)
    # where rows cost nothing a draft is as long as it can be
    free = CostCurve.from_points({1: 1.0, 64: 1.0})
    drafting = Drafting(tokenizer, cost=free, prior=prior, without={"survival"})
    (lookup,) = drafting.proposers()
    tally = Tally()
    for start, stop in tokens.turns:
        stands = _stands(tokens, lookup, start, stop)
        least, step = [0.0] * (stop - start + 1), [0] * (stop - start)
        for i in range(stop - start - 1, -1, -1):
            # a draft that ends the answer leaves no token for the pass itself to add
            ways = [
                (cost(k + 1) + least[min(i + k + 1, stop - start)], k) for k in range(stands[i] + 1)
            ]
            least[i], step[i] = min(ways)
        tally.cost += least[0]
        tally.turns += 1
        tally.tokens += stop - start
        at = 0
        while at < stop - start:
            tally.passes += 1
            tally.drafted += step[at]
            tally.accepted += step[at]
            at += step[at] + 1
    return tally


def _stands(tokens: Tokens, lookup: Proposer, start: int, stop: int) -> list[int]:
    """How many tokens of the draft behind each token of an answer are the recorded ones."""
    ids, found = tokens.ids, []
    lookup.begin(TurnContext(ids[:start], SamplingParams(), SeededChance(0), (), tokens.tools))
    for at in range(start, stop):
        draft, right = lookup.propose(_DEPTH), 0
        while right < min(len(draft), stop - at) and draft.tokens[right] == ids[at + right]:
            right += 1
        found.append(right)
        lookup.observe((ids[at],), Verdict(EMPTY_DRAFT, (ids[at],), 0, 0))
    lookup.end()
    return found
