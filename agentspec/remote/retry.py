"""When a request that was not answered is sent again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from agentspec.aio import Stop
from agentspec.errors import BackendError, CancelledError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retries:
    """At most `most` more tries, within `seconds` from the first one on.

    The wait before try n is drawn from the upper half of `first` times 2 to the n seconds, at most
    `longest`; a server that asks for more, within `seconds`, gets it.
    """

    most: int = 4
    seconds: float = 60.0
    first: float = 0.5
    longest: float = 20.0

    def run(self, attempt: Callable[[], _T], stop: Stop) -> _T:
        """What `attempt` returns, tried again after each BackendError that has a `retry_after`.

        Raises the last of those, and CancelledError once `stop` is set.
        """
        end = time.monotonic() + self.seconds
        for n in range(self.most + 1):
            try:
                return attempt()
            except BackendError as error:
                if error.retry_after is None:
                    raise
                wait = self.wait(n, error.retry_after)
                if n == self.most or time.monotonic() + wait > end:
                    raise
                _log.info("%s; asked again in %.1f s", error, wait)
            if stop.wait(wait):
                raise CancelledError("cancelled while the server was not answering")
        raise AssertionError("the last try returns or raises")

    def wait(self, n: int, asked: float = 0.0) -> float:
        """Seconds before the next try when n came before."""
        own = min(self.longest, self.first * 2.0**n)
        # a burst that was refused together does not come back together
        return max(asked, random.uniform(own / 2, own))
