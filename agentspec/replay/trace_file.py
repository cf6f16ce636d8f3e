"""What every pass of a replay did, so that somebody else can recompute the figure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from agentspec.types import Verdict


class PassTrace:
    """One JSON line per pass of a session.

    `context` is the hex sha256 of all tokens committed before the pass, each id as a
    little-endian int32, nothing between them; `position` is their number. `drafted` are the ids
    that were verified and `proposers` who proposed each, `accepted` how many of them stood,
    `tokens` how many tokens the pass committed: the accepted ones and the one that the pass
    itself gave, unless the answer ended inside the accepted run. `rows` is the rows of the pass,
    `charge` its cost with that of the `draft_passes` computed for it, the rows of each. So a
    session's own ids say whether the drafts stood, and tokens over charges is the speed. Of a
    tree, `parents` are the indices of the ids that each follows, -1 the context, and `path` those
    that were accepted.
    """

    def __init__(self, session: str, source: str, **labels: str) -> None:
        self._labels = {"session": session, "source": source, **labels}
        self._digest = hashlib.sha256()
        self._hashed: list[int] = []
        self.lines: list[str] = []

    def follow(self, prompt: Sequence[int]) -> None:
        """Begin an answer behind `prompt`, which begins with what was committed so far."""
        known = len(self._hashed)
        assert self._hashed == list(prompt[:known])
        self._commit(prompt[known:])

    def add(
        self, verdict: Verdict, *, turn: int, rows: int, charge: float, drafts: Sequence[int]
    ) -> None:
        line = {
            **self._labels,
            "turn": turn,
            "position": len(self._hashed),
            "context": self._digest.copy().hexdigest(),
            "drafted": list(verdict.draft.tokens),
            "proposers": list(verdict.draft.sources),
            "accepted": verdict.accepted,
            "tokens": len(verdict.tokens),
            "rows": rows,
            "charge": charge,
            "draft_passes": list(drafts),
        }
        if verdict.draft.parents is not None:
            line["parents"] = list(verdict.draft.parents)
            line["path"] = list(verdict.path)
        self.lines.append(json.dumps(line, separators=(",", ":")))
        self._commit(verdict.tokens)

    def _commit(self, tokens: Sequence[int]) -> None:
        self._digest.update(np.asarray(tokens, dtype="<i4").tobytes())
        self._hashed += tokens
