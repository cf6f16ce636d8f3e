"""The vocabulary of a GGUF model, through the llama.cpp C API."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from agentspec.errors import InvalidRequestError, ModelError

# user-defined pieces that are ordinary text in the models that have them (Gemma): splitting
# them would tokenise plain text unlike the model's training, and a template never emits them
_ORDINARY = re.compile(
    r"\s+|</?(table|caption|thead|tbody|tfoot|tr|th|td|ul|ol|li|h[1-6]|p|a|b|i|u|s|em|br|img|"
    r"div|span|strong|blockquote|code|sub|sup)>"
)


class LlamaTokenizer:
    """Text to ids and back; `encode` gives plain text only, whatever the text spells."""

    def __init__(self, lib: Any, vocab: Any) -> None:
        self._lib = lib
        self.llama_vocab = vocab
        self.vocab_size = int(lib.llama_vocab_n_tokens(vocab))
        self._pieces: dict[int, bytes] = {}
        self._buffer = ctypes.create_string_buffer(512)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        is_eog, vocab = self._lib.llama_vocab_is_eog, self.llama_vocab
        return frozenset(i for i in range(self.vocab_size) if is_eog(vocab, i))

    @property
    def bos_id(self) -> int | None:
        token = int(self._lib.llama_vocab_bos(self.llama_vocab))
        return token if token >= 0 else None

    @property
    def eos_id(self) -> int | None:
        token = int(self._lib.llama_vocab_eos(self.llama_vocab))
        return token if token >= 0 else None

    @property
    def adds_bos(self) -> bool:
        """True when the model expects its BOS id before every text."""
        return bool(self._lib.llama_vocab_get_add_bos(self.llama_vocab))

    @cached_property
    def _attributes(self) -> list[int]:
        get = self._lib.llama_vocab_get_attr
        return [int(get(self.llama_vocab, i)) for i in range(self.vocab_size)]

    @cached_property
    def special_pieces(self) -> dict[str, int]:
        """Pieces that only a template may emit: control and user-defined tokens."""
        lib = self._lib
        wanted = (
            lib.LLAMA_TOKEN_ATTR_CONTROL
            | lib.LLAMA_TOKEN_ATTR_USER_DEFINED
            | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        )
        pieces = {}
        for token, attributes in enumerate(self._attributes):
            if attributes & wanted:
                text = self.piece(token).decode("utf-8", "replace")
                user = attributes & lib.LLAMA_TOKEN_ATTR_USER_DEFINED
                if text and not (user and _ORDINARY.fullmatch(text)):
                    pieces[text] = token
        return pieces

    @cached_property
    def _special_pattern(self) -> re.Pattern[str] | None:
        pieces = sorted(self.special_pieces, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, pieces))) if pieces else None

    def is_special(self, token: int) -> bool:
        lib = self._lib
        mask = (
            lib.LLAMA_TOKEN_ATTR_CONTROL
            | lib.LLAMA_TOKEN_ATTR_UNUSED
            | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        )
        return bool(self._attributes[token] & mask) or token in self._special_ids

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.special_pieces.values())

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Pieces that would become special ids are cut in two first.

        `parse_special=False` is not enough: user-defined pieces become one id all the same.
        """
        pattern = self._special_pattern
        if pattern is None:
            return self._tokenize(text, special=False)
        ids: list[int] = []
        start, found = 0, pattern.search(text)
        while found:
            cut = found.start() + 1
            ids += self._tokenize(text[start:cut], special=False)
            start, found = cut, pattern.search(text, cut)
        return ids + self._tokenize(text[start:], special=False)

    def encode_special(self, text: str) -> list[int]:
        return self._tokenize(text, special=True)

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        if not text:
            return []
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the text has a lone surrogate at character {error.start}; it is not valid Unicode"
            ) from None
        size = len(raw) + 8
        if size >= 2**31:
            raise InvalidRequestError("the text is longer than 2 GiB")
        out = (ctypes.c_int32 * size)()
        n = self._lib.llama_tokenize(self.llama_vocab, raw, len(raw), out, size, False, special)
        if n < 0:
            raise ModelError(f"llama.cpp could not tokenize a text of {len(raw)} bytes (code {n})")
        return list(out[:n])

    def piece(self, token: int) -> bytes:
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._render(token)
        return known

    def _render(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            return b""
        buffer = self._buffer
        n = self._lib.llama_token_to_piece(self.llama_vocab, token, buffer, len(buffer), 0, True)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = self._lib.llama_token_to_piece(self.llama_vocab, token, buffer, -n, 0, True)
        return buffer.raw[: max(n, 0)]

    def decode(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.piece(i) for i in ids if not self.is_special(i))
