"""Which draft tokens stand: greedy comparison and rejection sampling, one token at a time."""

from __future__ import annotations

from collections.abc import Iterator

from agentspec.backends.base import Output
from agentspec.engine.sampling import Distribution, Sampler
from agentspec.types import Draft, FloatArray


def judge(
    draft: Draft, output: Output, sampler: Sampler, position: int
) -> Iterator[tuple[int, bool]]:
    """Yield (token, accepted) for each token the pass commits, in text order.

    Row i of `output` follows the last committed token and i draft tokens; `position` is the text
    position of the first token drawn. Ends with the recovered token after a rejection, or with
    the bonus token when every draft token stood. Rows are evaluated only when asked for, so a
    consumer that stops at EOS pays for nothing behind it.

    Speculative sampling: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023
    (arXiv 2302.01318). A deterministic draft token (q one-hot) is accepted when the target's own
    draw equals it: the same acceptance probability p(x) as rejection sampling, and the text of a
    seed is then the text of plain decoding.
    """
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        if sampler.params.greedy or not _is_law_of(q, token):
            drawn = sampler.draw(output, i, position + i)
        else:
            assert q is not None
            drawn = _accept_or_recover(sampler.law(output, i), q, token, sampler, position + i)
        sampler.commit(drawn, output, i)
        yield drawn, drawn == token
        if drawn != token:
            return
    n = len(draft)
    bonus = sampler.draw(output, n, position + n)
    sampler.commit(bonus, output, n)
    yield bonus, False


def _accept_or_recover(
    p: Distribution, q: FloatArray, token: int, sampler: Sampler, position: int
) -> int:
    """The token itself with probability min(1, p/q), else a draw from the residual."""
    ratio = min(1.0, p.of(token) / float(q[token]))
    if sampler.chance.bernoulli(ratio, position):
        return token
    return p.residual(q).sample(sampler.chance, position)


def _is_law_of(q: FloatArray | None, token: int) -> bool:
    # a proposer whose q denies its own token would be accepted always; as a deterministic
    # token it is judged exactly whatever led to it
    return q is not None and 0 <= token < len(q) and q[token] > 0.0
