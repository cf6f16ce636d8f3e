"""The tiny random models load in llama.cpp and behave like models of their kind."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.models.gguf import read_header
from agentspec.testing.gguf import KINDS, WINDOW, Kind, write_tiny

pytest.importorskip("gguf")


@contextmanager
def loaded(path: Path, n_ctx: int = 128) -> Iterator[tuple[Any, Any, Any]]:
    """The llama_cpp module, a model and a context."""
    lib = pytest.importorskip("llama_cpp.llama_cpp")
    lib.llama_backend_init()
    settings = lib.llama_model_default_params()
    settings.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(str(path).encode(), settings)
    assert model, "llama.cpp refuses the file"
    try:
        wanted = lib.llama_context_default_params()
        wanted.n_ctx, wanted.n_threads, wanted.n_threads_batch = n_ctx, 1, 1
        wanted.swa_full = False
        context = lib.llama_init_from_model(model, wanted)
        assert context
        try:
            yield lib, model, context
        finally:
            lib.llama_free(context)
    finally:
        lib.llama_model_free(model)


def last_logits(lib: Any, model: Any, context: Any, tokens: Sequence[int]) -> Any:
    array = (lib.llama_token * len(tokens))(*tokens)
    assert lib.llama_decode(context, lib.llama_batch_get_one(array, len(tokens))) == 0
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    row = lib.llama_get_logits_ith(context, -1)
    return np.ctypeslib.as_array(row, shape=(n_vocab,)).copy()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_decodes_and_depends_on_its_past(tmp_path: Path, kind: Kind) -> None:
    path = write_tiny(tmp_path / "m.gguf", kind, seed=1)
    with loaded(path) as (lib, model, context):
        logits = last_logits(lib, model, context, [3, 5, 7, 9])
        assert logits.shape == (256,)
        assert np.isfinite(logits).all()
        assert logits.std() > 0.1
        recurrent = bool(lib.llama_model_is_recurrent(model))
        hybrid = bool(lib.llama_model_is_hybrid(model))
        assert (recurrent, hybrid) == (kind == "recurrent", kind == "hybrid")
        assert lib.llama_model_n_swa(model) == (WINDOW if kind == "swa" else 0)
    with loaded(path) as (lib, model, context):
        other = last_logits(lib, model, context, [4, 5, 7, 9])
    assert np.abs(other - logits).max() > 1e-3


def test_the_seed_decides_the_bytes(tmp_path: Path) -> None:
    first = write_tiny(tmp_path / "a.gguf", seed=1).read_bytes()
    assert write_tiny(tmp_path / "b.gguf", seed=1).read_bytes() == first
    assert write_tiny(tmp_path / "c.gguf", seed=2).read_bytes() != first


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dense, dense_q"):
        write_tiny(tmp_path / "a.gguf", "wide")  # type: ignore[arg-type]


def test_the_byte_vocabulary_tokenises(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "dense", vocab="bytes")
    header = read_header(path)
    assert header.chat_template
    assert "<|im_start|>" in header.chat_template
    with loaded(path) as (lib, model, context):
        vocab = lib.llama_model_get_vocab(model)

        def encode(text: str, special: bool) -> list[int]:
            data = text.encode()
            out = (lib.llama_token * 256)()
            n = lib.llama_tokenize(vocab, data, len(data), out, 256, False, special)
            assert n > 0
            return list(out[:n])

        def pieces(ids: Sequence[int]) -> list[bytes]:
            found = []
            for token in ids:
                buffer = ctypes.create_string_buffer(64)
                n = lib.llama_token_to_piece(vocab, token, buffer, 64, 0, True)
                found.append(buffer.raw[:n])
            return found

        text = "def f(self):\n    return 'é😀'\n"
        ids = encode(text, special=False)
        assert b"".join(pieces(ids)) == text.encode()
        assert b"def" in pieces(ids)
        assert b"self" in pieces(ids)
        chat = pieces(encode("<|im_start|>user\nhi<|im_end|>", special=True))
        assert chat[0] == b"<|im_start|>"
        assert chat[-1] == b"<|im_end|>"
        assert pieces(encode("<tool_call>", special=False)) == [b"<tool_call>"]
        assert lib.llama_vocab_is_eog(vocab, encode("<|im_end|>", special=True)[0])
        assert np.isfinite(last_logits(lib, model, context, ids)).all()
