"""A workspace's files and its earlier sessions as a corpus that a proposer reads."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agentspec.backends.base import Tokenizer
from agentspec.context.evidence import ORIGINS
from agentspec.context.pool import Corpus
from agentspec.context.store import IndexStore, StoredIndex, default_directory, tokenizer_identity
from agentspec.context.workspace import Workspace

_FIRST_SECONDS = 3.0
_LATER_SECONDS = 0.3
_BETWEEN = 5.0


class Library:
    """The stored index of one workspace; `corpus` follows its files.

    Everything in it can only cost speed. `identity` names the tokenizer (a digest of the model
    file, or computed). Raises InvalidRequestError when `root` is no folder.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        tokenizer: Tokenizer,
        *,
        identity: str | None = None,
        directory: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        workspace = Workspace(Path(root))
        store = IndexStore(
            directory or default_directory(), identity or tokenizer_identity(tokenizer), tokenizer
        )
        self._stored: StoredIndex = store.open(workspace, seconds=_FIRST_SECONDS)
        self._clock = clock
        self._looked = clock()
        self.corpus = Corpus(self._stored.index(), ORIGINS.index("given"), self._stored.source_at)

    def refresh(self) -> None:
        """Follow the files, at most every few seconds and for a fraction of one."""
        now = self._clock()
        if now - self._looked < _BETWEEN and not self._stored.pending:
            return
        self._stored.refresh(seconds=_LATER_SECONDS)
        self._looked = self._clock()
        self.corpus.index = self._stored.index()

    def keep(self, session: Sequence[int]) -> None:
        """Remember the tokens of a session that ends, and write everything."""
        if session:
            digest = hashlib.sha256(repr(list(session[:256])).encode()).hexdigest()[:16]
            self._stored.add_session(digest, session)
        self._stored.save()
