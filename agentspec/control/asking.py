"""Whether to ask a proposer whose drafts cost passes of their own, and for how much."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

_STEPS = (0.02, 0.3, 1.0, 2.0, 4.0)
_HOPE = 0.5
_GAIN = 0.1
_EXPLORE = 48
_LOSS = 0.01
_ACCEPTANCE = 0.7
_KEEP = 0.98
_WINDOW = 40.0
_MOST = 16


class Asking:
    """Learns what a draft model adds to the draft that is there for nothing.

    What it added when it was asked, less what its passes cost, is averaged by how much the free
    draft promised; it is asked where that is positive, and now and then where it was not, the
    more seldom the dearer: looking again may lose a hundredth of a token per step. It is not
    hoped to add more where more was promised than it was seen to where less was. The
    number of tokens asked for is the best one at its mean acceptance, at first `acceptance`,
    which counts as so many tokens as `weight`.
    """

    def __init__(self, acceptance: float = _ACCEPTANCE, weight: float = _WINDOW) -> None:
        self._added: list[float | None] = [None] * (len(_STEPS) + 1)
        self._declined = [0] * (len(_STEPS) + 1)
        self._wait = [float(_EXPLORE)] * (len(_STEPS) + 1)
        self._accepted, self._judged = acceptance * weight, weight
        self.seen = 0

    def wants(self, promised: float) -> bool:
        """Whether to ask while the free draft promises so many tokens above a plain pass."""
        step = bisect_right(_STEPS, promised)
        if self._hope(step) > 0.0 or self._declined[step] >= self._wait[step]:
            self._declined[step] = 0
            return True
        self._declined[step] += 1
        return False

    def observe(self, promised: float, added: float) -> None:
        """It was asked, and its draft was worth so much more than the free one, its cost paid."""
        step = bisect_right(_STEPS, promised)
        hope = self._hope(step)
        self._added[step] = hope + _GAIN * (added - hope)
        self._wait[step] = max(_EXPLORE, -added / _LOSS)

    def _hope(self, step: int) -> float:
        own = self._added[step]
        if own is not None:
            return own
        return min((one for one in self._added[:step] if one is not None), default=_HOPE)

    def judged(self, accepted: int, judged: int) -> None:
        """So many of its tokens were compared with the target's, and so many stood."""
        self.seen += judged
        self._accepted = self._accepted * _KEEP + accepted
        self._judged = self._judged * _KEEP + judged

    @property
    def acceptance(self) -> float:
        """The share of its judged tokens that stood, of late."""
        return self._accepted / self._judged

    def limit(self, price: Callable[[int], float], most: int = _MOST) -> int:
        """How many tokens to ask for; `price(k)` is what a pass over k of them costs, in tokens.

        At least one: what nobody asks for is never learned.
        """
        stands, tokens, best, worth = 1.0, 1.0, 1, float("-inf")
        for k in range(1, most + 1):
            stands *= self.acceptance
            tokens += stands
            if tokens - price(k) > worth:
                best, worth = k, tokens - price(k)
        return best
