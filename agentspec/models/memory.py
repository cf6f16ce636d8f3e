"""Bytes that a model takes in llama.cpp, from its header alone: weights, cache, compute buffers.

What llama.cpp keeps per tensor, layer and cell is arithmetic and comes out exact. The compute
buffer depends on how ggml's allocator reuses space inside a graph; its formula here was fitted to
what llama.cpp 0.3.36 reserves for dense, sliding-window and mixture-of-experts models, and is
within 5 % on those. Recurrent layers are counted roughly.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from agentspec.errors import ConfigError, ModelFileError, ModelNotFoundError
from agentspec.models.gguf import GgufHeader, Tensor, read_header
from agentspec.models.shape import Shape

KV_TYPES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "f32": (1, 4),
        "f16": (1, 2),
        "bf16": (1, 2),
        "q8_0": (32, 34),
        "q5_1": (32, 24),
        "q5_0": (32, 22),
        "q4_1": (32, 20),
        "q4_0": (32, 18),
    }
)
"""Number format of a KV cache -> values per block, bytes per block."""

# llama.cpp rounds a cache up to whole units of so many cells
_CELLS = 256
_FLOAT = 4
_MAX_PARTS = 256
_MAX_SEQS = 256
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_BLOCK = re.compile(r"blk\.(\d{1,4})\.")
# what kernels want in another order, and get as a second copy beside the mapped file
_REPACKED_X86 = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
_REPACKED_ARM = _REPACKED_X86 | {"Q5_K", "Q6_K", "Q8_0"}
_REPACK_ROWS = 8


@dataclass(frozen=True, slots=True)
class Load:
    """How a model would be loaded: what its memory depends on beside the file.

    `n_ctx` tokens are shared by all `sequences`. `chunk` is the most rows of a pass, `logit_rows`
    the most of them with logits, `leaves` those of a drafted tree. `gpu_layers` counts as
    llama.cpp does: the output matrix first, then layers from the last to the first; -1: all.
    With `swa_full` layers with a window keep every token, which verifying needs to roll back.
    """

    n_ctx: int = 8192
    kv_type: str = "f16"
    sequences: int = 4
    chunk: int = 512
    logit_rows: int = 128
    leaves: int = 8
    flash_attn: bool = True
    gpu_layers: int = 0
    swa_full: bool = True
    repack: bool = True

    def __post_init__(self) -> None:
        if self.kv_type not in KV_TYPES:
            raise ConfigError(
                f"kv_type must be one of {', '.join(KV_TYPES)}, not {self.kv_type[:40]!r}"
            )
        for name, low in (("n_ctx", 1), ("sequences", 1), ("chunk", 1), ("logit_rows", 1)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model's tensors, by number format and by place.

    `layers` and `repacked` have one entry per layer and one more for the output. `tied` is what a
    GPU holds once more when the embedding is the output matrix too. `active` is what one token's
    pass reads: of experts only those that are chosen.
    """

    by_type: Mapping[str, int]
    embedding: int
    layers: tuple[int, ...]
    repacked: tuple[int, ...]
    tied: int
    active: int
    largest: int

    @property
    def total(self) -> int:
        return self.embedding + sum(self.layers)

    @classmethod
    def of(cls, headers: Sequence[GgufHeader], shape: Shape, *, machine: str = "") -> Weights:
        """The weights of a model in one file or several; `machine` as platform.machine()."""
        arm = (machine or platform.machine()).lower() in ("arm64", "aarch64")
        types = _REPACKED_ARM if arm else _REPACKED_X86
        by_type: dict[str, int] = {}
        layers = [0] * (shape.n_layers + 1)
        repacked = [0] * (shape.n_layers + 1)
        embedding = tied = active = largest = 0
        has_output = any(t.name == "output.weight" for h in headers for t in h.tensors)
        for header in headers:
            used, count = _experts(header)
            for tensor, size in _sizes(header):
                by_type[tensor.type_name] = by_type.get(tensor.type_name, 0) + size
                if tensor.name == "token_embd.weight":
                    embedding += size
                    if not has_output:
                        tied, active = size, active + size
                        repacked[-1] += _repacked(tensor, size, types)
                    continue
                found = _BLOCK.match(tensor.name)
                at = min(int(found[1]), shape.n_layers) if found else shape.n_layers
                layers[at] += size
                repacked[at] += _repacked(tensor, size, types)
                active += size * used // count if "_exps." in tensor.name else size
                largest = max(largest, size)
        return cls(
            MappingProxyType(dict(sorted(by_type.items(), key=lambda item: -item[1]))),
            embedding,
            tuple(layers),
            tuple(repacked),
            tied,
            active,
            largest,
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device. `repacked` is a copy of weights, `output` what logits come back in."""

    weights: int = 0
    repacked: int = 0
    kv: int = 0
    state: int = 0
    compute: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.repacked + self.kv + self.state + self.compute + self.output


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model as memory sees it; `n_parameters` are those in the files."""

    name: str
    shape: Shape
    weights: Weights
    n_parameters: int

    @classmethod
    def of(cls, path: Path, *, name: str = "") -> ModelSize:
        """The sizes of a GGUF file, with its further parts where it has some.

        Raises ModelFileError and ModelNotFoundError.
        """
        headers = [read_header(part) for part in _parts(path)]
        shape = Shape.of(headers[0] if len(headers) == 1 else _with_tensors(headers))
        return cls(
            name or path.stem,
            shape,
            Weights.of(headers, shape),
            sum(header.n_parameters for header in headers),
        )

    def takes(self, kv_type: str) -> bool:
        """Whether its heads are whole blocks of this number format."""
        block = KV_TYPES[kv_type][0]
        widths = {layer.keys for layer in self.shape.layers}
        widths |= {layer.values for layer in self.shape.layers}
        head = self.shape.query // self.shape.heads if self.shape.heads else 0
        return all(width % block == 0 for width in (*widths, head))

    def memory(self, load: Load) -> tuple[Memory, Memory]:
        """What a GPU and what the machine itself would hold."""
        n = self.shape.n_layers
        asked = load.gpu_layers
        on_gpu = n + 1 if asked < 0 else min(asked, n + 1)
        first = n + 1 - on_gpu
        kv = [cache_bytes(self.shape, load, i) for i in range(n)]
        state = [state_bytes(self.shape, load, i) for i in range(n)]
        weights = self.weights
        full = compute_bytes(self.shape, load)
        gpu = Memory()
        if on_gpu:
            gpu = Memory(
                weights=sum(weights.layers[first:]) + weights.tied,
                kv=sum(kv[first:]),
                state=sum(state[first:]),
                # with layers outside, long passes bring those layers' tensors over, one at a time
                compute=full + (weights.largest if first else 0),
            )
        inputs = _inputs(self.shape, load)
        cpu = Memory(
            weights=weights.embedding + sum(weights.layers[:first]),
            repacked=sum(weights.repacked[:first]) if load.repack else 0,
            kv=sum(kv[:first]),
            state=sum(state[:first]),
            compute=full if first else inputs,
            output=sequences(self.shape, load) * self.shape.vocab * _FLOAT,
        )
        return gpu, cpu


def sequences(shape: Shape, load: Load) -> int:
    """Sequence ids of the context: one per conversation, one per leaf of a drafted tree."""
    if shape.recurrent or any(layer.window for layer in shape.layers):
        return load.sequences
    room = min(_MAX_SEQS, load.logit_rows, load.chunk) - load.sequences
    leaves = min(load.leaves, room)
    return load.sequences + (leaves if leaves > 1 else 0)


def cells(load: Load) -> int:
    """Cells of the cache: its tokens, rounded up."""
    return -(-load.n_ctx // _CELLS) * _CELLS


def cache_bytes(shape: Shape, load: Load, layer: int) -> int:
    """Bytes of one layer's keys and values."""
    part = shape.layers[layer]
    per, size = KV_TYPES[load.kv_type]
    blocks = -(-part.keys // per) + -(-part.values // per)
    return _kept_cells(shape, load, part.window) * blocks * size


def _kept_cells(shape: Shape, load: Load, window: int) -> int:
    """Cells of layers that see so many tokens, 0: all."""
    if not window or load.swa_full:
        return cells(load)
    kept = window * sequences(shape, load) + min(load.chunk, load.n_ctx)
    return min(cells(load), -(-kept // _CELLS) * _CELLS)


def state_bytes(shape: Shape, load: Load, layer: int) -> int:
    """Bytes of one recurrent layer's states, one per sequence id."""
    return shape.layers[layer].state * _FLOAT * sequences(shape, load)


def compute_bytes(shape: Shape, load: Load) -> int:
    """Bytes of the buffer that a pass computes in: the largest of what lives at one time.

    Inside a layer that is the feed-forward part, or attention with its scores where flash
    attention is off; at the end, the logits.
    """
    rows = _rows(shape, load)
    hidden = rows * shape.embd * _FLOAT
    query = rows * shape.query * _FLOAT
    inner = rows * shape.ff * _FLOAT
    chosen = rows * shape.experts * _FLOAT
    feed = 3 * hidden + query
    if inner > hidden:
        feed += 3 * inner
    if chosen > 2 * inner:
        feed += chosen
    masks = _masks(shape, load)
    attend = 3 * hidden + 2 * query + 2 * rows * shape.key_value * _FLOAT
    if not load.flash_attn:
        attend += rows * cells(load) * shape.heads * _FLOAT
    logit_rows = min(load.logit_rows, rows)
    end = logit_rows * (shape.vocab + shape.embd) * _FLOAT + 3 * hidden // 2
    return max(masks + max(feed, attend), end)


def _rows(shape: Shape, load: Load) -> int:
    """Rows of the largest graph: a whole number for each sequence id."""
    ids = sequences(shape, load)
    return -(-min(load.chunk, cells(load)) // ids) * ids


def _masks(shape: Shape, load: Load) -> int:
    """Which cell each row sees, once for all layers and once more for those with a window."""
    windows = {part.window for part in shape.layers if part.keys}
    seen = sum(_kept_cells(shape, load, window) for window in windows)
    return seen * _rows(shape, load) * (2 if load.flash_attn else _FLOAT)


def _inputs(shape: Shape, load: Load) -> int:
    """What a pass on a GPU is handed from outside: embeddings and masks."""
    return _rows(shape, load) * shape.embd * _FLOAT + _masks(shape, load)


def _experts(header: GgufHeader) -> tuple[int, int]:
    """Experts that a token passes through, of how many."""
    count, used = header.number("expert_count") or 1, header.number("expert_used_count") or 1
    return (used, count) if 0 < used <= count else (1, 1)


def _repacked(tensor: Tensor, size: int, types: frozenset[str]) -> int:
    wanted = len(tensor.dims) > 1 and tensor.dims[1] % _REPACK_ROWS == 0
    return size if wanted and tensor.type_name in types else 0


def _sizes(header: GgufHeader) -> list[tuple[Tensor, int]]:
    """Each tensor and its bytes; of a format not known here, up to where the next begins."""
    begins = sorted({tensor.offset for tensor in header.tensors})
    ends = [*begins[1:], max([*begins[-1:], header.n_bytes - header.data_offset])]
    after = dict(zip(begins, ends, strict=False))
    return [
        (tensor, after[tensor.offset] - tensor.offset if tensor.n_bytes is None else tensor.n_bytes)
        for tensor in header.tensors
    ]


def _parts(path: Path) -> list[Path]:
    found = _PART.search(path.name)
    if found is None:
        return [path]
    count = int(found[2])
    if not 1 <= count <= _MAX_PARTS:
        raise ModelFileError(f"{path} calls itself one of {count} parts; the most is {_MAX_PARTS}")
    stem = path.name[: found.start()]
    parts = [path.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelNotFoundError(
            f"{path} is one of {count} parts and {missing[0]} is not beside it; get the others too"
        )
    return parts


def _with_tensors(headers: Sequence[GgufHeader]) -> GgufHeader:
    """The first part, which has the numbers, with the tensors of all."""
    first = headers[0]
    return GgufHeader(
        first.path,
        first.version,
        first.metadata,
        tuple(tensor for header in headers for tensor in header.tensors),
        first.alignment,
        first.data_offset,
        first.n_bytes,
    )
