"""A workspace's files and its earlier sessions as a corpus that a proposer reads."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agentspec.backends.base import Tokenizer
from agentspec.context.evidence import ORIGINS
from agentspec.context.pool import Corpus
from agentspec.context.store import IndexStore, StoredIndex, default_directory, tokenizer_identity
from agentspec.context.workspace import Workspace

_log = logging.getLogger(__name__)

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
        self._warned = False
        self._looked = clock()
        self.corpus = Corpus(self._stored.index(), ORIGINS.index("given"), self._stored.source_at)

    def refresh(self) -> None:
        """Follow the files, at most every few seconds and for a fraction of one."""
        now = self._clock()
        if now - self._looked < _BETWEEN and not self._stored.pending:
            return
        try:
            self._stored.refresh(seconds=_LATER_SECONDS)
            self.corpus.index = self._stored.index()
        except Exception as error:  # a file that no tokenizer takes must not end an answer
            self._warn("is not brought up to date", error)
        self._looked = self._clock()

    def keep(self, session: Sequence[int]) -> None:
        """Remember the tokens of a session that ends, and write everything."""
        try:
            if session:
                # all of it: sessions of one agent begin with the same long instructions
                digest = hashlib.sha256(repr(list(session)).encode()).hexdigest()[:16]
                self._stored.add_session(digest, session)
            self._stored.save()
        except Exception as error:  # the models are still to be freed
            self._warn("is not kept", error)

    def _warn(self, what: str, error: Exception) -> None:
        if not self._warned:
            _log.warning("the index of the workspace %s: %s", what, error)
        self._warned = True
