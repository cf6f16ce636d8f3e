"""Which draft tokens stand: greedy comparison and rejection sampling, one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from agentspec.backends.base import Output
from agentspec.engine.sampling import Distribution, Sampler
from agentspec.types import Draft, FloatArray

Rule = Callable[[Draft, Output, Sampler, int], Iterator[tuple[int, int | None]]]
"""What decides which draft tokens stand: `judge`, or one that says of itself that it is lossy."""


def judge(
    draft: Draft, output: Output, sampler: Sampler, position: int
) -> Iterator[tuple[int, int | None]]:
    """Yield (token, its index in the draft) for each token the pass commits, in text order.

    Row 0 of `output` follows the last committed token, row j + 1 draft token j; `position` is the
    text position of the first token drawn. Ends with a token whose index is None: the recovered
    one after a rejection, or the bonus where the draft ends. Rows are evaluated only when asked
    for, so a consumer that stops at EOS pays for nothing behind it.

    Speculative sampling: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023
    (arXiv 2302.01318). A deterministic draft token (q one-hot) is accepted when the target's own
    draw equals it: the same acceptance probability p(x) as rejection sampling, and the text of a
    seed is then the text of plain decoding. In a tree the draw says which of the tokens that
    follow is walked to: the draw is never made twice, so its law is p whatever was drafted.
    """
    assert draft.parents is None or draft.deterministic
    children = draft.children
    node: int | None = -1
    while node is not None:
        row = node + 1
        token, q = _sampled(draft, children[row])
        if sampler.params.greedy or q is None:
            drawn = sampler.draw(output, row, position)
        else:
            drawn = _accept_or_recover(sampler.law(output, row), q, token, sampler, position)
        sampler.commit(drawn, output, row)
        position += 1
        node = next((j for j in children[row] if draft.tokens[j] == drawn), None)
        yield drawn, node


def _accept_or_recover(
    p: Distribution, q: FloatArray, token: int, sampler: Sampler, position: int
) -> int:
    """The token itself with probability min(1, p/q), else a draw from the residual."""
    ratio = min(1.0, p.of(token) / float(q[token]))
    if sampler.chance.bernoulli(ratio, position):
        return token
    return p.residual(q).sample(sampler.chance, position)


def _sampled(draft: Draft, following: Sequence[int]) -> tuple[int, FloatArray | None]:
    """The draft token to come and the law it was sampled from; None when it was not sampled."""
    if len(following) != 1:
        return -1, None
    token, q = draft.tokens[following[0]], draft.q[following[0]]
    # a proposer whose q denies its own token would be accepted always; as a deterministic
    # token it is judged exactly whatever led to it
    stands = q is not None and 0 <= token < len(q) and q[token] > 0.0
    return token, q if stands else None
