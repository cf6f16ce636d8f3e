"""Vocabularies of given pieces, and models that write a given text in theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentspec.testing.scripted import Law


class Vocabulary:
    """Encodes by the longest piece at each place; bytes that no piece begins with are lost.

    `special` are pieces that only `encode_special` gives; `space` is put before every text.
    """

    def __init__(
        self,
        words: Sequence[bytes],
        *,
        special: Mapping[int, bytes] | None = None,
        eos_ids: frozenset[int] = frozenset(),
        bos: int | None = None,
        space: bool = False,
    ) -> None:
        self._special = dict(special or {})
        self._pieces = list(words)
        for token, piece in sorted(self._special.items()):
            assert token == len(self._pieces)
            self._pieces.append(piece)
        self.vocab_size = len(self._pieces)
        self.eos_ids = eos_ids
        self.bos_id, self.adds_bos = bos, bos is not None
        self._space = space

    def encode(self, text: str) -> list[int]:
        return self._encoded(text, [i for i in range(self.vocab_size) if i not in self._special])

    def encode_special(self, text: str) -> list[int]:
        return self._encoded(text, range(self.vocab_size))

    def _encoded(self, text: str, allowed: Sequence[int]) -> list[int]:
        raw = (b" " if self._space and text else b"") + text.encode()
        known = sorted(
            ((self._pieces[i], i) for i in allowed if self._pieces[i]), key=lambda one: -len(one[0])
        )
        ids: list[int] = []
        while raw:
            piece, token = next((one for one in known if raw.startswith(one[0])), (raw[:1], -1))
            ids += [token] if token >= 0 else []
            raw = raw[len(piece) :]
        return ids

    def decode(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._pieces[i] for i in ids if i not in self._special)

    def piece(self, token: int) -> bytes:
        return self._pieces[token] if 0 <= token < self.vocab_size else b""

    def is_special(self, token: int) -> bool:
        return token in self._special

    def text(self, ids: Sequence[int]) -> bytes:
        """What the ids spell, without the BOS."""
        return b"".join(self._pieces[i] for i in ids if i != self.bos_id)


def writing(vocabulary: Vocabulary, text: bytes, *, peak: float = 9.0, end: int = -1) -> Law:
    """A law that goes on with `text` wherever the cache is its beginning, and with `end` behind."""

    def law(cached: Sequence[int]) -> Any:
        logits = np.zeros(vocabulary.vocab_size, dtype=np.float32)
        so_far = vocabulary.text(cached)
        rest = text[len(so_far) :] if text.startswith(so_far) else b""
        fits = [
            (len(vocabulary.piece(i)), i)
            for i in range(vocabulary.vocab_size)
            if not vocabulary.is_special(i) and rest.startswith(vocabulary.piece(i))
        ]
        if fits:
            logits[max(fits)[1]] = peak
        elif not rest and end >= 0:
            logits[end] = peak
        return logits

    return law
