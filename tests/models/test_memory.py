"""Sizes from headers: as llama.cpp reports them, sane for every number, refused for none."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.errors import ConfigError, ModelFileError, ModelNotFoundError
from agentspec.models.gguf import GgufHeader, Skipped, Tensor, Value
from agentspec.models.memory import (
    KV_TYPES,
    Load,
    ModelSize,
    Weights,
    cache_bytes,
    cells,
    compute_bytes,
)
from agentspec.models.shape import Shape
from agentspec.testing.gguf import KINDS, WINDOW, Kind, write_tiny

MIB = 1 << 20


def header(metadata: dict[str, Value], tensors: tuple[Tensor, ...] = ()) -> GgufHeader:
    return GgufHeader(Path("some.gguf"), 3, metadata, tensors, 32, 0, 1 << 40)


def numbers(arch: str = "llama", **changes: Value | None) -> dict[str, Value]:
    """Metadata of a small model; a keyword with __ stands for a dot, None takes a key away."""
    found: dict[str, Value] = {
        "block_count": 4,
        "embedding_length": 512,
        "feed_forward_length": 1024,
        "context_length": 4096,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "vocab_size": 1000,
    }
    found.update({k.replace("__", "."): v for k, v in changes.items() if v is not None})
    gone = {k.replace("__", ".") for k, v in changes.items() if v is None}
    kept = {f"{arch}.{k}": v for k, v in found.items() if k not in gone}
    return {"general.architecture": arch, **kept}


def shape(arch: str = "llama", **changes: Value | None) -> Shape:
    return Shape.of(header(numbers(arch, **changes)))


def off(ours: int, theirs: int) -> float:
    return abs(ours - theirs) / max(theirs, 1)


@pytest.mark.weights
@pytest.mark.parametrize(
    "name", ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
)
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_within_five_percent_of_what_llama_cpp_reports(
    weights: Callable[[str], Path], name: str, kv_type: str
) -> None:
    pytest.importorskip("llama_cpp")
    from agentspec.backends.llama_layout import reported_sizes
    from agentspec.backends.llama_params import LlamaSettings

    path = weights(name)
    # a repacked copy is made for one of the two only: it takes the time of a whole load
    load = Load(n_ctx=1000, kv_type=kv_type, repack=kv_type == "f16")
    settings = LlamaSettings(
        n_ctx=load.n_ctx,
        n_gpu_layers=0,
        type_k="q8_0" if kv_type == "q8_0" else "f16",
        type_v="q8_0" if kv_type == "q8_0" else "f16",
        max_seqs=load.sequences,
        chunk=load.chunk,
        repack=load.repack,
    )
    reported = reported_sizes(path, settings)
    _, held = ModelSize.of(path).memory(load)
    # exact but for the hundredths that llama.cpp prints
    assert abs(held.weights - reported["model"]) < 0.02 * MIB
    assert abs(held.repacked - reported["repacked"]) < 0.02 * MIB
    assert abs(held.kv - reported["KV"]) < 0.02 * MIB
    assert abs(held.output - reported["output"]) < 0.02 * MIB
    assert reported["compute"] > 10 * MIB
    assert off(held.compute, reported["compute"]) < 0.05
    assert off(held.total, sum(reported.values())) < 0.05


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sequences", [1, 3])
def test_tiny_models_take_what_llama_cpp_reports(
    tmp_path: Path, kind: Kind, sequences: int
) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("llama_cpp")
    from agentspec.backends.llama_layout import reported_sizes
    from agentspec.backends.llama_params import LlamaSettings

    path = write_tiny(tmp_path / "m.gguf", kind)
    load = Load(n_ctx=3000, sequences=sequences, swa_full=kind != "swa")
    settings = LlamaSettings(
        n_ctx=load.n_ctx, n_gpu_layers=0, max_seqs=sequences, swa_full=load.swa_full
    )
    reported = reported_sizes(path, settings)
    _, held = ModelSize.of(path).memory(load)
    # the repacked copy of a mapped file is counted apart
    assert abs(held.weights - reported["model"]) < 0.02 * MIB
    assert abs(held.kv - reported["KV"]) < 0.02 * MIB
    assert abs(held.state - reported["RS"]) < 0.02 * MIB
    assert abs(held.output - reported["output"]) < 0.02 * MIB
    assert off(held.compute, reported["compute"]) < 0.2
    assert (held.state > 0) == (kind in ("recurrent", "hybrid"))


# numbers of files people run, with what llama.cpp 0.3.36 reserves for a graph of 512 rows with 4
# sequences and 8 leaves at 8,192 and at 32,768 tokens, in MiB
NAMES = ("embd", "layers", "ff", "heads", "kv", "width", "vocab", "window", "used", "each")
RESERVED = {
    "qwen2.5-32b": ((5120, 64, 27648, 40, 8, 128, 152064, None, None, None), (211.65, 235.84)),
    "llama3-8b": ((4096, 32, 14336, 32, 8, 128, 128256, None, None, None), (124.98, 149.17)),
    "devstral-24b": ((5120, 40, 32768, 32, 8, 128, 131072, None, None, None), (239.87, 264.06)),
    "gemma3-12b": ((3840, 48, 15360, 16, 8, 256, 262144, 1024, None, None), (146.75, 184.52)),
    "qwen3-30b-a3b": ((2048, 48, 6144, 32, 4, 128, 151936, None, 8, 768), (96.76, 120.95)),
}


@pytest.mark.parametrize("name", RESERVED)
def test_compute_buffers_of_large_models(name: str) -> None:
    sizes, reserved = RESERVED[name]
    n = dict(zip(NAMES, sizes, strict=True))
    found = shape(
        "gemma3" if n["window"] else "llama",
        embedding_length=n["embd"],
        block_count=n["layers"],
        feed_forward_length=n["ff"],
        attention__head_count=n["heads"],
        attention__head_count_kv=n["kv"],
        attention__key_length=n["width"],
        attention__value_length=n["width"],
        vocab_size=n["vocab"],
        attention__sliding_window=n["window"],
        expert_used_count=n["used"],
        expert_feed_forward_length=n["each"],
    )
    for n_ctx, mib in zip((8192, 32768), reserved, strict=True):
        assert off(compute_bytes(found, Load(n_ctx=n_ctx)), int(mib * MIB)) < 0.05
    plain = Load(n_ctx=8192, flash_attn=False)
    scores = 512 * 8192 * found.heads * 4
    assert compute_bytes(found, plain) > scores


def test_grouped_heads_windows_and_latents_are_what_the_cache_keeps() -> None:
    load = Load(n_ctx=2048, sequences=1)
    dense = shape()
    # 2 of 8 heads, 64 wide, keys and values of two bytes
    assert cache_bytes(dense, load, 0) == 2048 * 2 * 64 * 2 * 2
    quantised = replace(load, kv_type="q8_0")
    assert cache_bytes(dense, quantised, 0) == 2048 * 2 * 2 * 68
    window = shape("gemma3", attention__sliding_window=WINDOW, block_count=6)
    assert [layer.window for layer in window.layers] == [WINDOW] * 5 + [0]
    short = Load(n_ctx=2048, sequences=1, swa_full=False, chunk=128)
    assert cache_bytes(window, short, 0) == 256 * 2 * 64 * 2 * 2
    assert cache_bytes(window, short, 5) == 2048 * 2 * 64 * 2 * 2
    assert cache_bytes(window, load, 0) == cache_bytes(window, load, 5)
    latent = shape(
        "deepseek2",
        attention__head_count_kv=1,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
    )
    assert cache_bytes(latent, load, 0) == 2048 * 576 * 2
    assert cells(Load(n_ctx=1)) == 256


def test_layers_without_heads_are_recurrent() -> None:
    hybrid = shape(
        "jamba",
        attention__head_count_kv=(0, 2, 0, 2),
        ssm__conv_kernel=4,
        ssm__inner_size=1024,
        ssm__state_size=16,
    )
    state = 3 * 1024 + 16 * 1024
    assert [(layer.state, layer.keys) for layer in hybrid.layers] == [(state, 0), (0, 128)] * 2
    assert hybrid.recurrent
    every = shape(
        "qwen3next",
        ssm__conv_kernel=4,
        ssm__inner_size=1024,
        ssm__state_size=16,
        ssm__group_count=2,
    )
    assert [bool(layer.state) for layer in every.layers] == [True, True, True, False]
    assert every.layers[0].state == 3 * (1024 + 2 * 2 * 16) + 16 * 1024
    short = shape("lfm2", attention__head_count_kv=(0, 0, 2, 0), shortconv__l_cache=3)
    assert short.layers[0].state == 512 * 2


def test_experts_that_do_not_work_are_not_read() -> None:
    def tensor(name: str, size: int) -> Tensor:
        return Tensor(name, (32, size // 18), 2, 0, size)

    tensors = (
        tensor("token_embd.weight", 1800),
        tensor("blk.0.attn_q.weight", 3600),
        tensor("blk.3.ffn_up_exps.weight", 18_000),
        tensor("output.weight", 1800),
    )
    found = header(numbers(expert_count=8, expert_used_count=2), tensors)
    weights = Weights.of([found], Shape.of(found), machine="x86_64")
    assert weights.total == 1800 + 3600 + 18_000 + 1800
    assert weights.layers == (3600, 0, 0, 18_000, 1800)
    assert weights.active == 3600 + 18_000 // 4 + 1800
    assert weights.tied == 0
    assert weights.repacked == (3600, 0, 0, 18_000, 0)


def test_an_embedding_that_is_the_output_too_is_held_twice_with_a_gpu() -> None:
    embedding = Tensor("token_embd.weight", (512, 1000), 1, 0, 1_024_000)
    found = header(numbers(), (embedding,))
    size = ModelSize("m", Shape.of(found), Weights.of([found], Shape.of(found)), 512_000)
    gpu, cpu = size.memory(Load(gpu_layers=-1))
    assert gpu.weights == cpu.weights == 1_024_000
    gpu, cpu = size.memory(Load())
    assert (gpu.total, cpu.weights) == (0, 1_024_000)


@given(
    st.integers(-1, 6),
    st.integers(1, 100_000),
    st.sampled_from(sorted(KV_TYPES)),
    st.integers(1, 64),
    st.integers(1, 2048),
    st.booleans(),
)
def test_what_a_gpu_takes_over_is_not_held_twice(
    gpu_layers: int, n_ctx: int, kv_type: str, sequences: int, chunk: int, flash: bool
) -> None:
    tensors = tuple(
        Tensor(f"blk.{i}.x.weight", (256, 16), 0, 0, 16_384 * (i + 1)) for i in range(4)
    )
    output = Tensor("output.weight", (256, 1), 0, 0, 1024)
    found = header(numbers(), (*tensors, output))
    size = ModelSize("m", Shape.of(found), Weights.of([found], Shape.of(found)), 1)
    load = Load(n_ctx, kv_type, sequences, chunk, flash_attn=flash, gpu_layers=gpu_layers)
    gpu, cpu = size.memory(load)
    _, alone = size.memory(replace(load, gpu_layers=0))
    assert gpu.weights + cpu.weights == size.weights.total
    assert gpu.kv + cpu.kv == alone.kv
    assert min(vars_of(gpu) + vars_of(cpu)) >= 0
    if gpu_layers:
        assert gpu.weights > 0
    _, more = size.memory(replace(load, gpu_layers=0, n_ctx=n_ctx + 256))
    assert more.kv > alone.kv
    assert more.compute >= alone.compute


def vars_of(memory: object) -> list[int]:
    return [getattr(memory, name) for name in memory.__slots__]  # type: ignore[attr-defined]


values = st.one_of(
    st.integers(-(2**63), 2**64),
    st.floats(),
    st.booleans(),
    st.text(max_size=4),
    st.builds(Skipped, st.integers(0, 12), st.integers(0, 2**40)),
    st.lists(st.integers(-5, 2**40) | st.booleans() | st.text(max_size=2), max_size=6).map(tuple),
)
KEYS = [
    *("block_count", "embedding_length", "feed_forward_length", "context_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.value_length", "attention.key_length_mla", "attention.sliding_window"),
    *("attention.sliding_window_pattern", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size"),
    *("ssm.group_count", "shortconv.l_cache", "wkv.head_size", "token_shift_count"),
    *("full_attention_interval", "expert_count", "expert_used_count"),
    *("expert_feed_forward_length", "expert_shared_feed_forward_length"),
]


@given(
    st.sampled_from(["llama", "jamba", "gemma3", "qwen3next", "falcon-h1", "phi3"]),
    st.dictionaries(st.sampled_from(KEYS), values, max_size=4),
)
def test_a_hostile_header_is_measured_or_refused_in_one_line(
    arch: str, changes: dict[str, Value]
) -> None:
    found = header({**numbers(arch), **{f"{arch}.{key}": value for key, value in changes.items()}})
    try:
        size = Shape.of(found)
    except ModelFileError as error:
        refusal = str(error)
        size = None
    if size is None:
        assert "\n" not in refusal
        assert len(refusal) < 400
        return
    weights = Weights.of([found], size)
    gpu, cpu = ModelSize("m", size, weights, 0).memory(Load(gpu_layers=2))
    assert min(vars_of(gpu) + vars_of(cpu)) >= 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"block_count": None}, "llama.block_count is absent"),
        ({"block_count": 0}, "llama.block_count is 0"),
        ({"block_count": 513}, "llama.block_count is 513"),
        ({"embedding_length": -1}, "llama.embedding_length is -1"),
        ({"attention__head_count_kv": (1, 2)}, "llama.attention.head_count_kv"),
        ({"vocab_size": None}, "llama.vocab_size is absent"),
        ({"vocab_size": 1 << 30}, "llama.vocab_size"),
    ],
)
def test_what_is_absent_or_no_size_is_named(changes: dict[str, Value], named: str) -> None:
    with pytest.raises(ModelFileError, match=named.replace(".", r"\.")):
        Shape.of(header(numbers(**changes)))  # type: ignore[arg-type]


def test_a_header_without_an_architecture_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"general\.architecture is absent"):
        Shape.of(header({}))


def test_parts_are_counted_together(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    whole = ModelSize.of(write_tiny(tmp_path / "m.gguf"))
    first = write_tiny(tmp_path / "m-00001-of-00002.gguf")
    with pytest.raises(ModelNotFoundError, match=r"m-00002-of-00002\.gguf is not beside it"):
        ModelSize.of(first)
    write_tiny(tmp_path / "m-00002-of-00002.gguf")
    assert ModelSize.of(first).weights.total == 2 * whole.weights.total
    os.rename(first, tmp_path / "m-00001-of-99999.gguf")
    with pytest.raises(ModelFileError, match="99999 parts"):
        ModelSize.of(tmp_path / "m-00001-of-99999.gguf")


def test_a_tensor_of_an_unknown_format_reaches_to_the_next() -> None:
    tensors = (
        Tensor("blk.0.a.weight", (8,), 999, 0, None),
        Tensor("blk.0.b.weight", (8,), 0, 640, 32),
    )
    found = header(numbers(), tensors)
    weights = Weights.of([found], Shape.of(found))
    assert weights.layers[0] == 640 + 32
    assert weights.by_type == {"type 999": 640, "F32": 32}


def test_heads_that_are_no_whole_blocks_take_no_quantised_cache() -> None:
    weights = Weights.of([], shape())
    assert ModelSize("m", shape(), weights, 0).takes("q8_0")
    narrow = shape(attention__key_length=80, attention__value_length=80)
    assert not ModelSize("m", narrow, weights, 0).takes("q8_0")
    assert ModelSize("m", narrow, weights, 0).takes("f16")


def test_numbers_of_a_load_are_checked() -> None:
    for bad in ({"n_ctx": 0}, {"kv_type": "q3"}, {"sequences": 0}, {"chunk": 0}):
        with pytest.raises(ConfigError):
            Load(**bad)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0))
    with pytest.raises(ModelFileError):
        ModelSize.of(path)
