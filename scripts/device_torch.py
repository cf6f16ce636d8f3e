"""torch on the device: models of given shapes with random weights, made in its memory."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from scripts.device_measure import ROWS, Found, answers, curves, equal_rows, texts_of

SHAPES: dict[str, dict[str, Any]] = {
    "1b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
        "tie_word_embeddings": False,
    },
    "14b": {
        "hidden_size": 5120, "intermediate_size": 13_824, "num_hidden_layers": 48,
        "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
    "tiny": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
CONTEXTS = (1024, 8192, 32_768)


def measure(name: str, until: float, found: Found) -> None:
    """Cost curves, equal bits, the engine's own time and memory of one shape."""
    import torch

    tiny = name == "tiny"
    contexts: Sequence[int] = (32, 64) if tiny else CONTEXTS
    rows = (1, 2, 4) if tiny else ROWS
    begun = time.monotonic()
    with _random(name, n_ctx=contexts[-1] + 512, tiny=tiny) as backend:
        cuda = str(backend.device.type) == "cuda"
        wait = torch.cuda.synchronize if cuda else lambda: None
        found("model", backend.description())
        found("device", backend.device_name())
        found("load_seconds", round(time.monotonic() - begun, 2))
        costs = curves(backend, contexts, until - (until - time.monotonic()) / 4, found, rows, wait)
        found("equal_rows", equal_rows(backend, contexts[0], rows))
        prompts = texts_of(256, contexts[0] // 2, 2)
        found("engine", answers(backend, prompts, 16 if tiny else 96, costs, until))
        if cuda:
            found("memory_bytes", int(torch.cuda.max_memory_allocated()))


def real(folder: Path, root: Path, until: float, found: Found, *, tiny: bool) -> None:
    """A small real model on agent-like prompts: accelerated against plain, token by token."""
    import torch

    from agentspec.backends.torch import TorchBackend, TorchSettings

    settings = TorchSettings(n_ctx=4096, dtype="float32", n_threads=1 if tiny else None)
    backend = TorchBackend(folder, settings)
    try:
        cuda = str(backend.device.type) == "cuda"
        wait = torch.cuda.synchronize if cuda else lambda: None
        found("model", backend.description())
        rows = (1, 2, 4) if tiny else ROWS
        costs = curves(backend, (64 if tiny else 512,), until, found, rows, wait)
        prompts = agent_prompts(backend.tokenizer, root)
        if tiny:
            prompts = [prompt[-48:] for prompt in prompts[:2]]
        prompts = [prompt for prompt in prompts if len(prompt) < 3500]
        found("engine", answers(backend, prompts, 16 if tiny else 256, costs, until))
        if cuda:
            found("memory_bytes", int(torch.cuda.max_memory_allocated()))
    finally:
        backend.close()


def agent_prompts(tokenizer: Any, root: Path) -> list[list[int]]:
    """The prompts of the bench in ids, each to where the answer begins."""
    from agentspec.replay.chatml import ChatEncoder
    from agentspec.replay.recording import read_recordings

    encoder = ChatEncoder(tokenizer)
    opening = tokenizer.encode_special("<|im_start|>") + tokenizer.encode("assistant\n")
    recordings = read_recordings([root / "prompts" / "bench_sessions.jsonl"])
    return [encoder.encode(recording).ids + opening for recording in recordings]


@contextlib.contextmanager
def _random(name: str, *, n_ctx: int, tiny: bool) -> Iterator[Any]:
    """A backend of a shape in bfloat16 on the GPU, in float32 on a CPU; nothing is on disk."""
    import torch
    import transformers

    from agentspec.backends import torch_load
    from agentspec.backends.torch import TorchBackend, TorchSettings
    from agentspec.backends.torch_settings import Libraries, chosen_device, chosen_dtype

    config = transformers.LlamaConfig(
        **SHAPES[name], max_position_embeddings=131_072, bos_token_id=None, eos_token_id=None,
        pad_token_id=None,
    )  # fmt: skip

    def made(path: Path, settings: TorchSettings, libraries: Libraries) -> Any:
        device = chosen_device(torch, settings)
        dtype = chosen_dtype(torch, settings, device, "bfloat16")
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            # drawn where it will lie: 14B numbers do not fit the time on a CPU
            with torch.device(device):
                model = transformers.AutoModelForCausalLM.from_config(config)
        finally:
            torch.set_default_dtype(before)
        model = model.to(device, dtype)
        return torch_load._finished(model, _letters(), None, device, settings)

    settings = TorchSettings(
        n_ctx=n_ctx, chunk=64 if tiny else 2048, n_threads=1 if tiny else None,
        device="cpu" if tiny else "auto",
    )  # fmt: skip
    with mock.patch.object(torch_load, "open_model", made):
        backend = TorchBackend(f"random-{name}", settings)
    try:
        yield backend
    finally:
        backend.close()


def _letters() -> Any:
    """A tokenizer whose ids are bytes, and ChatML's marks."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    # written as a file would be: constructors differ between releases
    plain = json.loads(Tokenizer(models.BPE()).to_str())
    plain["model"]["vocab"] = vocabulary
    fast = Tokenizer.from_str(json.dumps(plain))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    marks = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    fast.add_special_tokens([AddedToken(text, special=True) for text in marks])
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|im_end|>")
