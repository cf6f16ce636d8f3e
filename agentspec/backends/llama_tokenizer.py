"""The vocabulary of a GGUF model, through the llama.cpp C API."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Container, Sequence
from functools import cached_property, partial
from typing import Any

from agentspec.backends.special import SpecialPieces, is_ordinary, parts
from agentspec.errors import BackendError, InvalidRequestError, ModelError

_CHUNK = 8192


class LlamaTokenizer(SpecialPieces):
    """Text to ids and back; `encode` gives plain text only, whatever the text spells.

    With a byte-level vocabulary (Qwen) decode(encode(x)) == x for every text; SmolLM2 has no
    tokens for some control characters and unassigned planes and loses them. With a SentencePiece
    vocabulary (Gemma) U+2581 comes back as a space, and models that put a space before every
    text do so after every special piece that was cut, too.
    """

    def __init__(self, lib: Any, vocab: Any) -> None:
        self._lib = lib
        self._vocab: Any = vocab
        self.vocab_size = int(lib.llama_vocab_n_tokens(vocab))
        self._pieces: dict[int, bytes] = {}
        # a file may come without texts; llama.cpp ends the process when it is asked for one then
        self._textless = int(lib.llama_vocab_type(vocab)) == 0

    @property
    def llama_vocab(self) -> Any:
        """The C pointer. Raises BackendError when the model was closed."""
        if self._vocab is None:
            raise BackendError("the model of this tokenizer was closed")
        return self._vocab

    def close(self) -> None:
        """Forget the C pointer: the model that owns it is being freed."""
        self._vocab = None

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        ends = map(partial(self._lib.llama_vocab_is_eog, self.llama_vocab), range(self.vocab_size))
        return frozenset(i for i, end in enumerate(ends) if end)

    @cached_property
    def bos_id(self) -> int | None:
        token = int(self._lib.llama_vocab_bos(self.llama_vocab))
        return token if token >= 0 else None

    @cached_property
    def eos_id(self) -> int | None:
        token = int(self._lib.llama_vocab_eos(self.llama_vocab))
        return token if token >= 0 else None

    @cached_property
    def adds_bos(self) -> bool:
        """True when the model expects its BOS id before every text."""
        return bool(self._lib.llama_vocab_get_add_bos(self.llama_vocab))

    def texts(self) -> list[bytes]:
        """The text of every id as the vocabulary writes it (byte-level letters not undone)."""
        if self._textless:
            return [b""] * self.vocab_size
        get = partial(self._lib.llama_vocab_get_text, self.llama_vocab)
        return [text or b"" for text in map(get, range(self.vocab_size))]

    @cached_property
    def _attributes(self) -> list[int]:
        if self._textless:
            return [0] * self.vocab_size
        return list(
            map(partial(self._lib.llama_vocab_get_attr, self.llama_vocab), range(self.vocab_size))
        )

    @cached_property
    def unused_ids(self) -> frozenset[int]:
        """Ids that pad the vocabulary to a round size."""
        unused = self._lib.LLAMA_TOKEN_ATTR_UNUSED
        return frozenset(i for i, attributes in enumerate(self._attributes) if attributes & unused)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Control, user-defined, unknown and unused ids: what plain text never becomes.

        User-defined pieces of white space, HTML tags or a single character are ordinary text.
        """
        lib = self._lib
        user = lib.LLAMA_TOKEN_ATTR_USER_DEFINED
        wanted = (
            lib.LLAMA_TOKEN_ATTR_CONTROL
            | lib.LLAMA_TOKEN_ATTR_UNKNOWN
            | lib.LLAMA_TOKEN_ATTR_UNUSED
            | user
        )
        special = set(self.eos_ids)
        for token, attributes in enumerate(self._attributes):
            if attributes & wanted and not (
                attributes & wanted == user
                and token not in special
                and is_ordinary(self._text(token))
            ):
                special.add(token)
        return frozenset(special)

    def _text(self, token: int) -> str:
        if self._textless:
            return ""
        raw = self._lib.llama_vocab_get_text(self.llama_vocab, token) or b""
        return str(raw, "utf-8", "replace")

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Pieces that would become special ids are cut in two first.

        `parse_special=False` is not enough: user-defined pieces become one id all the same.
        """
        ids: list[int] = []
        for part in parts(text, self._special_pattern):
            ids += self._tokenize(part, special=False)
        return ids

    def encode_special(self, text: str) -> list[int]:
        return self._tokenize(text, special=True)

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        """One call of llama.cpp for a short text, several for a long one.

        llama.cpp takes quadratic time in the special pieces of a text, and in Gemma every line
        end is one: 10 MB of code would take half an hour in one call, and so would a conversation
        of 100,000 short messages.
        """
        boundary = self._boundaries[special] if len(text) > _CHUNK else None
        if boundary is None:
            return self._tokenize_at_once(text, special)
        ids: list[int] = []
        start = 0
        while start < len(text):
            found = boundary.search(text, start + _CHUNK)
            end = found.end() if found else len(text)
            ids += self._tokenize_at_once(text[start:end], special)
            start = end
        return ids

    @cached_property
    def _boundaries(self) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
        """What ends where llama.cpp divides a text anyway: cutting there changes no id.

        Of plain text, and of a template's, whose turns end with an end-of-text piece.
        """
        lib = self._lib
        whole = lib.LLAMA_TOKEN_ATTR_USER_DEFINED | lib.LLAMA_TOKEN_ATTR_CONTROL
        # white space beside these is dropped, so what follows is not read by itself
        strips = lib.LLAMA_TOKEN_ATTR_LSTRIP | lib.LLAMA_TOKEN_ATTR_RSTRIP
        found = {
            self._text(i) for i, attributes in enumerate(self._attributes) if attributes & whole
        } - {""}
        ends = {self._text(i) for i in self.eos_ids if not self._attributes[i] & strips}
        special = set(self.special_pieces)
        return _boundary_of(found, special), _boundary_of(found, special - ends)

    def _tokenize_at_once(self, text: str, special: bool) -> list[int]:
        if not text:
            return []
        if self._textless:
            raise ModelError("the model file has no vocabulary; it cannot take text")
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
        return out[:n]

    def piece(self, token: int) -> bytes:
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._render(token)
        return known

    def _render(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size or self._textless:
            return b""
        # a buffer of its own: two threads may ask at once, and C runs without the lock
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = int(self._lib.llama_token_to_piece(self.llama_vocab, token, buffer, size, 0, True))
            if n >= 0:
                return buffer.raw[:n]
            size = max(-n, 2 * size)

    def decode(self, ids: Sequence[int]) -> bytes:
        special = self.special_ids
        return b"".join(self.piece(i) for i in ids if i not in special)


def _boundary_of(pieces: set[str], special: Container[str]) -> re.Pattern[str] | None:
    """Pieces that no other contains or overlaps, runs of one letter as a whole; none special."""
    beginnings = {piece[:n] for piece in pieces for n in range(1, len(piece) + 1)}
    endings = {piece[-n:] for piece in pieces for n in range(1, len(piece) + 1)}
    ends = []
    for piece in pieces:
        if piece in special:
            continue
        if len(piece) == 1:
            if all(set(other) == {piece} for other in pieces if piece in other):
                ends.append(f"{re.escape(piece)}(?!{re.escape(piece)})")
        elif not (
            any(piece[-n:] in beginnings or piece[:n] in endings for n in range(1, len(piece)))
            or any(piece in other for other in pieces if other != piece)
        ):
            ends.append(re.escape(piece))
    return re.compile("|".join(sorted(ends))) if ends else None
