"""Phrases that agents write often, known before the session has shown any."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.backends.base import Tokenizer
from agentspec.context.index import SEPARATOR, TokenIndex
from agentspec.errors import InvalidRequestError


def habit_index(phrases: Sequence[str], tokenizer: Tokenizer) -> TokenIndex:
    """The phrases in this vocabulary, each a document of its own."""
    run: list[int] = []
    for phrase in phrases:
        try:
            run += tokenizer.encode(phrase)
        except InvalidRequestError:
            continue
        run.append(SEPARATOR)
    index = TokenIndex()
    index.load(run)
    return index
