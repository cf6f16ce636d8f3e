"""A vocabulary small enough to reason about: every byte, and the special pieces given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest


class FakeTokenizer:
    """Bytes are ids 0 to 255; special pieces follow, the longest matching first."""

    def __init__(self, special: Sequence[str], eos: str, padding: int = 0) -> None:
        self.special = {piece: 256 + i for i, piece in enumerate(special)}
        self.by_id = {i: piece for piece, i in self.special.items()}
        self.eos_ids = frozenset({self.special[eos]})
        self.vocab_size = 256 + len(special) + padding

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def encode_special(self, text: str) -> list[int]:
        ids: list[int] = []
        at = 0
        order = sorted(self.special, key=len, reverse=True)
        while at < len(text):
            piece = next((p for p in order if text.startswith(p, at)), None)
            if piece is None:
                ids += text[at].encode("utf-8")
                at += 1
            else:
                ids.append(self.special[piece])
                at += len(piece)
        return ids

    def decode(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.piece(i) for i in ids if not self.is_special(i))

    def piece(self, token: int) -> bytes:
        if token < 256:
            return bytes([token])
        return self.by_id.get(token, "").encode()

    def is_special(self, token: int) -> bool:
        return token >= 256


MakeTokenizer = Callable[..., FakeTokenizer]


@pytest.fixture(scope="session")
def make_tokenizer() -> MakeTokenizer:
    return FakeTokenizer


@pytest.fixture(scope="session")
def vocabulary() -> Iterator[Callable[[str], tuple[Any, str | None]]]:
    """Loads the vocabulary and the chat template of a model file, without its weights."""
    models: dict[str, tuple[Any, Any, str | None]] = {}

    def load(path: str) -> tuple[Any, str | None]:
        lib = pytest.importorskip("llama_cpp.llama_cpp")
        from agentspec.backends.llama_tokenizer import LlamaTokenizer

        if path not in models:
            params = lib.llama_model_default_params()
            params.vocab_only = True
            model = lib.llama_model_load_from_file(path.encode(), params)
            raw = lib.llama_model_chat_template(model, None)
            tokenizer = LlamaTokenizer(lib, lib.llama_model_get_vocab(model))
            models[path] = (model, tokenizer, raw.decode() if raw else None)
        return models[path][1:]

    yield load
    if models:
        import llama_cpp.llama_cpp as lib

        for model, *_ in models.values():
            lib.llama_model_free(model)
