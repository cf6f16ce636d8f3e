"""The vocabulary of a GGUF file alone: no weights, no context, a third of a second."""

from __future__ import annotations

import hashlib
import os
import weakref
from functools import lru_cache
from pathlib import Path

from agentspec.backends.llama_log import interrupts_held, library, log_lines, reason
from agentspec.backends.llama_memory import Handles
from agentspec.backends.llama_params import check_file
from agentspec.backends.llama_tokenizer import LlamaTokenizer
from agentspec.errors import ModelFileError

_END = 16 << 20


def open_vocabulary(path: str | os.PathLike[str]) -> LlamaTokenizer:
    """The tokenizer of a GGUF file; what C holds is freed with it.

    Raises ModelFileError when the file cannot be loaded, MissingExtraError without llama_cpp.
    """
    path = Path(path)
    check_file(path)
    lib = library()
    handles = Handles(lib)
    with log_lines() as lines, interrupts_held():
        params = lib.llama_model_default_params()
        params.vocab_only = True
        handles.model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not handles.model:
        raise ModelFileError(
            f"llama.cpp cannot read the vocabulary of {path}: {reason(lines)}; "
            "check the file with: agentspec models verify"
        )
    tokenizer = LlamaTokenizer(lib, lib.llama_model_get_vocab(handles.model))
    weakref.finalize(tokenizer, handles.free)
    return tokenizer


@lru_cache(maxsize=8)
def file_identity(path: Path) -> str:
    """A digest of both ends of a file and its size: other for another vocabulary or weights.

    The vocabulary, its merges and the name of its splitting rule lie at the head.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(_END))
        file.seek(max(0, size - _END))
        digest.update(file.read(_END))
    digest.update(str(size).encode())
    return digest.hexdigest()
