"""The vocabulary of a transformers model: its Rust tokenizer, special pieces kept apart."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from agentspec.backends.special import SpecialPieces, is_ordinary, parts
from agentspec.errors import InvalidRequestError, ModelFileError

# what llama.cpp takes for the end of an answer by its text, so that both say the same of a model
_ENDS = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
        "<end_of_turn>", "<turn|>", "<|tool_response>", "<|endoftext|>", "</s>", "<|eom_id|>",
        "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<｜end▁of▁sentence｜>", "<|end_of_text|>",
        "<end_of_utterance>", "<eos>", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
        "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|reponame|>",
        "<|file_sep|>",
    }
)  # fmt: skip
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "▁"


class TorchTokenizer(SpecialPieces):
    """Text to ids and back; `encode` gives plain text only, whatever the text spells.

    `vocab_size` is the model's: ids that the tokenizer lacks pad it. Raises ModelFileError for a
    tokenizer that is not one of the Rust library, or whose pieces cannot be told as bytes.
    """

    def __init__(self, tokenizer: Any, *, vocab_size: int, eos_ids: Collection[int] = ()) -> None:
        rust: Any = getattr(tokenizer, "backend_tokenizer", None)
        if not hasattr(rust, "encode_batch"):
            raise ModelFileError(
                f"the tokenizer {type(tokenizer).__name__} is no fast one; the torch backend needs "
                "a tokenizer.json"
            )
        self._rust = rust
        self._rust.no_truncation()
        self._rust.no_padding()
        self.vocab_size = vocab_size
        self._added: Mapping[int, Any] = {
            token: piece
            for token, piece in self._rust.get_added_tokens_decoder().items()
            if token < vocab_size
        }
        self._named = {
            token
            for token in getattr(tokenizer, "all_special_ids", ())
            if isinstance(token, int) and token < vocab_size
        }
        self._letters = _letters(self._rust.decoder)
        self.bos_id: int | None = getattr(tokenizer, "bos_token_id", None)
        self.eos_id: int | None = getattr(tokenizer, "eos_token_id", None)
        ends = {token for token in (*eos_ids, self.eos_id) if token is not None}
        ends |= {token for text in _ENDS if (token := rust.token_to_id(text)) is not None}
        self.eos_ids = frozenset(token for token in ends if token < vocab_size)

    @cached_property
    def adds_bos(self) -> bool:
        """True when the model expects its BOS id before every text."""
        with_special = list(self._rust.encode("a", add_special_tokens=True).ids)
        return self.bos_id is not None and with_special[:1] == [self.bos_id]

    @cached_property
    def _table(self) -> list[str | None]:
        table: list[str | None] = [None] * self.vocab_size
        for text, token in self._rust.get_vocab(with_added_tokens=True).items():
            if token < self.vocab_size:
                table[token] = text
        return table

    @cached_property
    def unused_ids(self) -> frozenset[int]:
        """Ids that pad the vocabulary to a round size."""
        return frozenset(i for i, text in enumerate(self._table) if text is None)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Control, added and unused ids: what plain text never becomes.

        Added pieces of white space, HTML tags or a single character are ordinary text.
        """
        special = set(self.eos_ids) | self.unused_ids | self._named
        for token, piece in self._added.items():
            if piece.special or not is_ordinary(str(piece.content)):
                special.add(token)
        return frozenset(special)

    def _text(self, token: int) -> str:
        return self._table[token] or ""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Pieces that would become special ids are cut in two first."""
        ids: list[int] = []
        for part in parts(text, self._special_pattern):
            found = self._encode(part)
            if not self.special_ids.isdisjoint(found):
                # a normaliser may make a special piece of what does not look like one
                found = [token for letter in part for token in self._encode(letter)]
                found = [token for token in found if token not in self.special_ids]
            ids += found
        return ids

    def encode_special(self, text: str) -> list[int]:
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the text has a lone surrogate at character {error.start}; it is not valid Unicode"
            ) from None
        return list(self._rust.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _pieces(self) -> list[bytes]:
        return list(self._rendered())

    def _rendered(self) -> Iterator[bytes]:
        for token, text in enumerate(self._table):
            if text is None:
                yield b""
            elif token in self._added:
                yield text.encode()
            elif self._letters is not None:
                yield _unlettered(text, self._letters)
            elif byte := _BYTE_PIECE.fullmatch(text):
                yield bytes([int(byte[1], 16)])
            else:
                yield text.replace(_SPACE, " ").encode()

    def piece(self, token: int) -> bytes:
        return self._pieces[token] if 0 <= token < self.vocab_size else b""

    def decode(self, ids: Sequence[int]) -> bytes:
        special = self.special_ids
        return b"".join(self.piece(i) for i in ids if i not in special)


def _letters(decoder: Any) -> Mapping[str, int] | None:
    """The bytes of a byte-level vocabulary's letters, None for one that marks spaces.

    Raises ModelFileError for any other.
    """
    try:
        told = json.loads(decoder.__getstate__())
    except (AttributeError, TypeError, ValueError):
        told = {}
    kinds = set(_kinds(told))
    if "ByteLevel" in kinds:
        return _byte_letters()
    if kinds & {"Metaspace", "ByteFallback"}:
        return None
    raise ModelFileError(
        f"the tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) is not known to the torch "
        "backend; byte-level and SentencePiece vocabularies are"
    )


def _kinds(told: Any) -> Iterator[str]:
    if isinstance(told, dict):
        if isinstance(told.get("type"), str):
            yield told["type"]
        for inner in told.get("decoders") or ():
            yield from _kinds(inner)


def _byte_letters() -> Mapping[str, int]:
    """GPT-2's letters: printable bytes stand for themselves, the others for letters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return letters | {chr(256 + n): byte for n, byte in enumerate(others)}


def _unlettered(text: str, letters: Mapping[str, int]) -> bytes:
    try:
        return bytes(letters[letter] for letter in text)
    except KeyError:
        return text.encode()
