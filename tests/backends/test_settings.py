"""Settings reach llama.cpp or are refused in one line; so are files that are no models."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.llama_params import LlamaSettings
from agentspec.errors import ConfigError, MissingExtraError, ModelFileError

Load = Callable[..., Any]


@pytest.mark.parametrize(
    "settings",
    [
        {"n_ctx": 0},
        {"n_ctx": 7},
        {"n_ctx": -1},
        {"n_ctx": 2**32 + 256},
        {"n_ctx": 1.5},
        {"n_ctx": True},
        {"n_ctx": "many"},
        {"n_threads": 0},
        {"n_threads": 100_000},
        {"n_gpu_layers": -2},
        {"n_gpu_layers": None},
        {"max_seqs": 0},
        {"max_seqs": 257},
        {"chunk": 0},
        {"chunk": 1 << 20},
        {"max_logit_rows": 0},
        {"type_k": "q2_k"},
        {"type_k": "F16"},
        {"type_v": None},
        {"flash_attn": "auto"},
        {"mmap": 1},
        {"type_v": "q8_0", "flash_attn": False},
    ],
)
def test_a_setting_without_meaning(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        LlamaSettings(**settings)
    assert "\n" not in str(caught.value)
    assert next(iter(settings)) in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"flash_attn": False},
        {"mmap": False},
        {"repack": False},
        {"n_threads": 2},
        {"n_gpu_layers": 0},
        {"type_k": "f32", "type_v": "f32", "flash_attn": False},
        {"type_k": "bf16", "type_v": "bf16"},
        {"swa_full": True},
        {"chunk": 3},
        {"max_logit_rows": 8},
    ],
)
@pytest.mark.parametrize("kind", ["dense_q", "swa"])
def test_a_setting_that_changes_no_meaning(
    load: Load, tiny: Any, feed: Any, words: Any, kind: str, settings: dict[str, Any]
) -> None:
    plain, other = load(tiny(kind)), load(tiny(kind), **settings)
    steps = (3,) * 10
    left = feed(plain, plain.open(), words(30), steps)
    right = feed(other, other.open(), words(30), steps)
    spread = float(np.std(left[0]))
    assert max(np.abs(a - b).max() for a, b in zip(left, right, strict=True)) < 0.3 * spread


def test_what_llama_cpp_is_told() -> None:
    lib = pytest.importorskip("llama_cpp.llama_cpp")
    from agentspec.backends.llama_params import context_params, model_params

    plain, told = LlamaSettings(), LlamaSettings(mmap=False, repack=False, n_gpu_layers=3)
    assert model_params(lib, plain).use_extra_bufts
    model = model_params(lib, told)
    assert (model.load_mode, model.use_extra_bufts, model.n_gpu_layers) == (0, False, 3)
    assert model.load_mode != model_params(lib, plain).load_mode
    context = context_params(
        lib,
        LlamaSettings(
            n_ctx=None,
            n_threads=3,
            type_k="q8_0",
            type_v="bf16",
            swa_full=False,
            max_seqs=2,
            chunk=40,
            max_logit_rows=20,
        ),
        777,
    )
    assert (context.n_ctx, context.n_threads, context.n_threads_batch) == (777, 3, 3)
    assert (context.type_k, context.type_v) == (lib.GGML_TYPE_Q8_0, 30)
    assert (context.n_batch, context.n_ubatch, context.n_outputs_max) == (40, 40, 20)
    assert (context.n_seq_max, context.kv_unified, context.swa_full) == (2, True, False)
    assert context.flash_attn_type == lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
    off = context_params(lib, LlamaSettings(flash_attn=False), 777)
    assert off.flash_attn_type == lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    assert not off.kv_unified


@pytest.mark.weights
@pytest.mark.parametrize("kv", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "f32", "bf16"])
def test_cache_types_take_the_memory_they_promise(
    load: Load, weights: Any, feed: Any, words: Any, kv: str
) -> None:
    path = weights("smollm2-135m")
    plain, other = load(path), load(path, type_k=kv, type_v=kv)
    tokens = words(20, 40000)
    a, b = plain.open(), other.open()
    left, right = feed(plain, a, tokens)[-1], feed(other, b, tokens)[-1]
    assert not np.array_equal(left, right) or kv in ("f32", "bf16")
    assert np.corrcoef(left, right)[0, 1] > (0.9 if kv.startswith("q4") else 0.98)
    point = [
        backend._lib.llama_state_seq_get_size(backend._handles.ctx, seq)
        for backend, seq in ((plain, a), (other, b))
    ]
    bits = {"q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5, "f32": 32, "bf16": 16}
    assert point[1] / point[0] == pytest.approx(bits[kv] / 16, rel=0.05)


def test_a_cache_type_that_the_model_cannot_have(load: Load, tiny: Any) -> None:
    """Heads of 16 values are no whole block of 32."""
    with pytest.raises(ConfigError, match=r"cannot make a context .* type_k and type_v") as caught:
        load(tiny(), type_k="q8_0")
    assert "\n" not in str(caught.value)


def test_the_context_comes_from_the_model(
    load: Load, tiny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny("dense", n_ctx_train=512)
    assert load(path, n_ctx=None).n_ctx == 512
    caplog.set_level(logging.INFO, logger="agentspec.llama_cpp")
    assert load(path, n_ctx=1024).n_ctx == 1024
    assert any("512" in record.getMessage() for record in caplog.records), "nothing warns of it"


def test_a_context_that_no_memory_holds(load: Load, tiny: Any) -> None:
    path = tiny("dense", n_ctx_train=1 << 30)
    held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    per_token = 2 * 2 * 16 * 8
    n_ctx = None if held > per_token << 24 else min(held // per_token + 1024, 1 << 24)
    with pytest.raises(ConfigError, match=r"takes at least .* smaller n_ctx") as caught:
        load(path, n_ctx=n_ctx, type_k="f32", type_v="f32")
    assert "\n" not in str(caught.value)


def test_the_window_is_full_unless_told(load: Load, tiny: Any) -> None:
    assert load(tiny("swa")).n_swa == 16
    assert load(tiny("swa"), swa_full=True).n_swa == 0
    assert load(tiny("dense")).n_swa == 0


def test_what_the_file_says_of_itself(load: Load, tiny: Any) -> None:
    backend = load(tiny("dense", vocab="bytes"))
    template = backend.chat_template()
    assert template is not None
    assert "<|im_start|>" in template
    assert backend.description().startswith("llama")
    assert backend.vocab_size == backend.tokenizer.vocab_size == 279
    assert load(tiny("dense")).chat_template() is None


def test_without_llama_cpp(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    from agentspec.backends import llama_log
    from agentspec.backends.llama_cpp import LlamaCppBackend

    path = tiny()
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("llama_cpp"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    llama_log.library.cache_clear()
    try:
        monkeypatch.setattr(builtins, "__import__", absent)
        with pytest.raises(MissingExtraError, match=r"\.\[llama\]"):
            LlamaCppBackend(path)
    finally:
        llama_log.library.cache_clear()


# files


def refused(load: Load, path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path)[:60] in message
    return message


def test_a_file_that_is_not_there(load: Load, tmp_path: Path) -> None:
    assert "no such file" in refused(load, tmp_path / "absent.gguf")
    assert "not a file" in refused(load, tmp_path)
    (tmp_path / "plain").touch()
    assert refused(load, tmp_path / "plain" / "below.gguf")
    assert refused(load, tmp_path / ("x" * 5000))


def test_a_file_that_may_not_be_read(load: Load, tiny: Any, tmp_path: Path) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("everything may be read here")
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny().read_bytes())
    path.chmod(0)
    assert "Permission denied" in refused(load, path)


@pytest.mark.parametrize(
    "content", [b"", b"GG", b"not a model", b"\0" * 100, b"GGUF" + b"\xff" * 40]
)
def test_a_file_that_is_not_gguf(load: Load, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    refused(load, path)


@pytest.mark.parametrize("kind", ["dense", "recurrent"])
def test_a_truncated_file(load: Load, tiny: Any, tmp_path: Path, kind: str) -> None:
    raw = tiny(kind).read_bytes()
    path = tmp_path / "m.gguf"
    for n in (24, 100, 1000, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:n])
        assert "truncated" in refused(load, path)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("dense", "llama.block_count", 0),
        ("dense", "llama.block_count", 2**31),
        ("dense", "llama.block_count", 3),
        ("dense", "llama.embedding_length", 0),
        ("dense", "llama.embedding_length", 2**31 - 1),
        ("dense", "llama.context_length", 0),
        ("dense", "llama.context_length", 2**32 - 1),
        ("dense", "llama.attention.head_count", 0),
        ("dense", "llama.attention.head_count", 2**32 - 1),
        ("dense", "llama.attention.head_count_kv", 3),
        ("dense", "llama.feed_forward_length", 0),
        ("swa", "gemma3.rope.dimension_count", 0),
        ("swa", "gemma3.rope.dimension_count", 3),
        ("swa", "gemma3.rope.dimension_count", 2**32 - 2),
        ("hybrid", "jamba.embedding_length", 1),
        ("recurrent", "mamba.ssm.inner_size", 2**31),
    ],
)
def test_an_absurd_header(
    load: Load, tiny: Any, tmp_path: Path, kind: str, key: str, value: int
) -> None:
    """On several of these llama.cpp would end the process."""
    raw = tiny(kind).read_bytes()
    name = struct.pack("<Q", len(key)) + key.encode()
    at = raw.index(name) + len(name) + 4
    path = tmp_path / "m.gguf"
    path.write_bytes(raw[:at] + struct.pack("<I", value) + raw[at + 4 :])
    refused(load, path)
