"""What each GPU of a vLLM server holds: weights, draft model, KV cache, and room for the passes.

Weights and cache are arithmetic. What a pass needs beside them vLLM measures when it starts, with
made-up requests; here it is estimated, and what is left for the cache is therefore about right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentspec.vllm.facts import VOCAB_STEP, ModelFacts

BLOCK = 16
"""Tokens that vLLM keeps together (CacheConfig.DEFAULT_BLOCK_SIZE)."""
UTILIZATION = 0.92
"""vLLM's own --gpu-memory-utilization."""
LARGE_GPU = 70 << 30
"""From here on vLLM takes larger batches by itself (EngineArgs.get_batch_defaults)."""
LARGEST_GPU = 160 << 30

_ALONE, _TOGETHER = 1 << 30, 3 << 29
_SAMPLED = 6  # bytes of a logit: as computed, and as 32 bits


@dataclass(frozen=True, slots=True)
class Setup:
    """What memory depends on beside the models.

    `kv_bytes` are those of one value in the cache, `value_bytes` of one that is not quantised, and
    `bytes_per_weight` of one that is while it is loaded; the draft model's where they are others.
    Experts are divided among the `dp` too;
    all else each of those has for itself. `batch` counts tokens, `requests` run at
    once, `k` tokens are drafted for each.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    utilization: float = UTILIZATION
    kv_bytes: float = 2.0
    value_bytes: float = 2.0
    bytes_per_weight: float | None = None
    draft_kv_bytes: float | None = None
    draft_bytes_per_weight: float | None = None
    batch: int = 2048
    requests: int = 256
    k: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """One GPU of one pipeline stage, in bytes; `kv` and `draft_kv` are those of one token.

    `window_kv` is the part of `kv` whose layers keep no more than a window.
    """

    layers: int
    weights: int
    draft: int
    passes: int
    reserve: int
    kv: float
    window_kv: float
    draft_kv: float


@dataclass(frozen=True, slots=True)
class Budget:
    """A server's memory. `gpu` are the bytes of one GPU, None where none was named."""

    setup: Setup
    stages: tuple[Stage, ...]
    gpu: int | None
    window: int

    @property
    def usable(self) -> int:
        """Bytes of a GPU that vLLM may take."""
        return int((self.gpu or 0) * self.setup.utilization)

    def held(self, stage: Stage) -> int:
        """Bytes that are taken before the cache."""
        return stage.weights + stage.draft + stage.passes + stage.reserve

    def left(self, stage: Stage) -> int:
        """Bytes left for the cache, less than 0 where not even the rest fits."""
        return self.usable - self.held(stage)

    def request(self, stage: Stage, tokens: int) -> float:
        """Bytes of cache that one request of so many tokens takes."""
        rounded = -(-tokens // BLOCK) * BLOCK
        seen = min(rounded, self.window + self.setup.batch) if self.window else rounded
        whole = stage.kv - stage.window_kv + stage.draft_kv
        return rounded * whole + seen * stage.window_kv

    def requests(self, tokens: int) -> int:
        """Requests of so many tokens whose cache fits at once, the scarcest GPU counting."""
        fits = min(
            int(self.left(s) / each) if (each := self.request(s, tokens)) else 1 << 30
            for s in self.stages
        )
        return max(0, fits)

    def longest(self, most: int) -> int:
        """Tokens, `most` at most, that one request may have."""
        low, high = 0, most // BLOCK
        while low < high:
            middle = (low + high + 1) // 2
            if self.requests(middle * BLOCK):
                low = middle
            else:
                high = middle - 1
        return min(most, low * BLOCK)

    def surely_too_small(self, tokens: int) -> bool:
        """True when even without the estimated parts one request of so many tokens has no room."""
        return any(s.weights + s.draft + self.request(s, tokens) > self.usable for s in self.stages)


def budget(
    target: ModelFacts, draft: ModelFacts | None, setup: Setup, *, gpu: int | None, mtp: bool
) -> Budget:
    """The memory of a server. With `mtp`, the target's own further layers draft."""
    cuts = stage_layers(target.layers, setup.pp)
    stages = []
    for i, layers in enumerate(cuts):
        last = i == len(cuts) - 1
        kv = kv_per_token(target, setup, layers)
        caching = target.layers * target.caching
        windowed = target.windowed / caching if caching else 0.0
        stages.append(
            Stage(
                layers=layers,
                weights=_weights(target, setup, layers, first=i == 0, last=last),
                draft=_draft_weights(draft, setup) if last else 0,
                passes=_passes(target, draft, setup, last=last),
                reserve=_TOGETHER if setup.tp * setup.pp > 1 else _ALONE,
                kv=kv,
                window_kv=kv * windowed,
                draft_kv=_draft_kv(target, draft, setup, mtp=mtp) if last else 0.0,
            )
        )
    return Budget(setup, tuple(stages), gpu, target.window)


def stage_layers(layers: int, pp: int) -> list[int]:
    """Layers of each pipeline stage, as vLLM deals them out (vllm/distributed/utils.py)."""
    cuts = [layers // pp] * pp
    for i in range(2, layers % pp + 2):
        cuts[-i] += 1
    return cuts


def kv_per_token(model: ModelFacts, setup: Setup, layers: int) -> float:
    """Bytes of cache of one token in so many layers on one GPU.

    KV heads are divided among the GPUs of a stage, but each keeps one at least; a latent that all
    heads share is kept by every one of them.
    """
    caching = layers * model.caching
    if model.latent:
        return caching * model.latent * setup.kv_bytes
    heads = max(1, model.kv_heads // setup.tp)
    return caching * 2 * heads * model.head_dim * setup.kv_bytes


def batch_defaults(gpu: int | None, name: str = "") -> tuple[int, int]:
    """Tokens of a batch and requests at once that vLLM's server takes on such a GPU by itself."""
    if gpu is not None and gpu >= LARGEST_GPU:
        return 16384, 1024
    if gpu is not None and gpu >= LARGE_GPU and "a100" not in name.lower():
        return 8192, 1024
    return 2048, 256


def _weights(model: ModelFacts, setup: Setup, layers: int, *, first: bool, last: bool) -> int:
    quantised = model.bytes_per_weight < 2.0
    each = setup.bytes_per_weight or (model.bytes_per_weight if quantised else setup.value_bytes)
    if not model.plain and model.loaded is not None:
        # nobody has counted the parts of such a model: they are taken to divide evenly
        part = layers / max(model.layers, 1) / setup.tp * _share(model, setup)
        return int(model.loaded * part * each / model.bytes_per_weight)
    split = model.split()
    kv_share = max(1, model.kv_heads // setup.tp) / max(model.kv_heads, 1)
    # FusedMoEParallelConfig: divided by all, with whole experts in parallel or not
    inner = split["feed_forward"] / (setup.dp if model.moe else 1)
    layer = (split["attention"] + inner) / setup.tp + split["keys"] * kv_share
    # embeddings and norms are not quantised
    small = layers * model.whole() + (model.hidden if last else 0)
    rows = int(first) + int(last) - (1 if model.tied and first and last else 0)
    others = small + rows * model.embedding() / setup.tp
    counted = layers * layer * each + others * setup.value_bytes
    return int(counted * (1.0 if setup.bytes_per_weight else _correction(model)))


def _share(model: ModelFacts, setup: Setup) -> float:
    """The part of a model that one of `dp` holds: its share of the experts, and all else."""
    if not model.moe or setup.dp == 1 or not model.n_weights():
        return 1.0
    experts = min(1.0, model.layers * model.split()["feed_forward"] / model.n_weights())
    return experts / setup.dp + 1.0 - experts


def _correction(model: ModelFacts) -> float:
    """What the files say against what the shape says, 1 where there are no files."""
    layers = model.layers * sum(model.split().values())
    counted = layers * model.bytes_per_weight + 2 * (model.n_weights() - layers)
    return model.loaded / counted if model.loaded is not None and counted else 1.0


def _draft_weights(draft: ModelFacts | None, setup: Setup) -> int:
    if draft is None:
        return 0
    if draft.loaded is not None and not (draft.plain and draft.layers > 1):
        # heads: their few layers are divided, how evenly is nobody's promise
        return int(draft.loaded / setup.tp * setup.value_bytes / 2)
    alone = Setup(
        tp=setup.tp,
        value_bytes=setup.value_bytes,
        bytes_per_weight=setup.draft_bytes_per_weight,
    )
    return _weights(draft, alone, draft.layers, first=True, last=True)


def _draft_kv(target: ModelFacts, draft: ModelFacts | None, setup: Setup, *, mtp: bool) -> float:
    if mtp and draft is None:
        return kv_per_token(target, setup, max(1, target.mtp))
    if draft is None or draft.model_type == "medusa":
        return 0.0
    own = replace(setup, kv_bytes=setup.draft_kv_bytes or setup.kv_bytes)
    return kv_per_token(draft, own, draft.layers)


def _passes(target: ModelFacts, draft: ModelFacts | None, setup: Setup, *, last: bool) -> int:
    """About what the largest pass and sampling take: an estimate."""
    ff = target.expert_ff * 8 if target.moe else target.ff
    rows = setup.batch * 2 * (4 * target.hidden + 3 * ff // setup.tp)
    if not last:
        return rows
    # vLLM's own trial run samples one row for each request, and one more where it drafts
    sampled = min(setup.batch, setup.requests * (2 if setup.k else 1))
    vocab = -(-target.vocab // VOCAB_STEP) * VOCAB_STEP
    side = setup.batch * 2 * 4 * draft.hidden if draft is not None else 0
    return rows + side + sampled * vocab * _SAMPLED
