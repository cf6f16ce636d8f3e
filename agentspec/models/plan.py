"""What of a target, its cache and a draft model fits where, and what to give up when it does not.

Sizes come from `agentspec.models.memory`. Speeds are only compared, never told: a pass is taken to
cost what it reads, and a CPU to read `_CPU_SLOWER` times slower than a GPU. Whether drafting pays
on a device is measured when a model is loaded; here it is judged whether it could.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType

from agentspec.models.memory import Load, Memory, ModelSize, Weights

RESERVE = 512 << 20
"""Bytes that a device needs beside the models: a driver's context, or the process itself."""
SMALL_CONTEXT = 8192
"""Tokens below which no context is proposed: tool descriptions and one file take as much."""
LIKELY_ACCEPTANCE = 0.6
"""What a pair of one family reaches on code; a draft model that needs more is not proposed."""
CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072)

_CPU_SLOWER = 12
_ROW_ON_GPU, _ROW_ON_CPU = 0.03, 0.5
_LONGEST_DRAFT = 8
_GAIN = 1.05
_SMALL_BITS = 4.85  # Q4_K_M
_LEAST_SAVED = 64 << 20


@dataclass(frozen=True, slots=True)
class Room:
    """Usable bytes: of the GPU, None where there is none, and of the machine's own memory."""

    gpu: int | None
    system: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything would lie. `gpu_layers` counts as llama.cpp does; the draft model's too."""

    load: Load
    target: tuple[Memory, Memory]
    draft: tuple[Memory, Memory] | None
    gpu_layers: int
    all_layers: int
    fits: bool

    @property
    def gpu_bytes(self) -> int:
        """What the GPU holds, reserve included; 0 where it holds nothing."""
        held = self.target[0].total + (self.draft[0].total if self.draft else 0)
        return held + RESERVE if held else 0

    @property
    def system_bytes(self) -> int:
        """What the machine's own memory holds, reserve included."""
        return self.target[1].total + (self.draft[1].total if self.draft else 0) + RESERVE

    @property
    def whole(self) -> bool:
        """True when it fits, and where there is a GPU all of the target is on it."""
        return self.fits and self.gpu_layers == self.all_layers


@dataclass(frozen=True, slots=True)
class Step:
    """One thing more to give up, after those before it: what, why in this order, and the result."""

    change: str
    reason: str
    saved: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class DraftWorth:
    """Whether a draft model is worth its memory.

    `ratio` is a draft pass in target passes, `pays_from` the least acceptance rate at which the
    best draft length gains 5 % over drafting without it, None where no rate does.
    """

    bytes: int
    ratio: float
    pays_from: float | None
    displaced: int

    @property
    def worth_it(self) -> bool:
        return self.pays_from is not None and self.pays_from <= LIKELY_ACCEPTANCE


def place(target: ModelSize, draft: ModelSize | None, load: Load, room: Room) -> Placement:
    """As many of the target's layers on the GPU as fit beside everything else."""
    n = target.shape.n_layers + 1
    if room.gpu is None:
        return _placed(target, draft, load, room, 0, all_layers=0)
    low, high = 0, n
    # what the GPU holds grows with every layer but the last: the whole is tried first
    whole = _placed(target, draft, load, room, n, all_layers=n)
    if whole.gpu_bytes <= room.gpu:
        return whole
    while low < high:
        middle = (low + high + 1) // 2
        if _placed(target, draft, load, room, middle, all_layers=n).gpu_bytes <= room.gpu:
            low = middle
        else:
            high = middle - 1
    return _placed(target, draft, load, room, min(low, n - 1), all_layers=n)


def _placed(
    target: ModelSize,
    draft: ModelSize | None,
    load: Load,
    room: Room,
    gpu_layers: int,
    *,
    all_layers: int,
) -> Placement:
    chosen = replace(load, gpu_layers=gpu_layers)
    made = Placement(
        load,
        target.memory(chosen),
        draft.memory(chosen) if draft else None,
        gpu_layers,
        all_layers,
        fits=False,
    )
    fits = made.system_bytes <= room.system and made.gpu_bytes <= (room.gpu or 0)
    return replace(made, fits=fits)


def steps(target: ModelSize, draft: ModelSize | None, load: Load, room: Room) -> Iterator[Step]:
    """What to give up, one after the other, until all of it fits, but for what saves too little.

    First what changes no answer, then what changes it least: a draft model only proposes, so a
    smaller one or none costs speed alone.
    """
    now = place(target, draft, load, room)
    if now.whole:
        return
    for change, reason, other, chosen in _choices(target, draft, load):
        then = place(target, other, chosen, room)
        saved = _held(now) - _held(then)
        better = then.fits > now.fits or then.gpu_layers > now.gpu_layers
        if saved >= _LEAST_SAVED or better:
            yield Step(change, reason, max(saved, 0), then)
            now = then
        if now.whole:
            return


def _held(placement: Placement) -> int:
    memories = [*placement.target, *(placement.draft or ())]
    return sum(memory.total for memory in memories)


def _choices(
    target: ModelSize, draft: ModelSize | None, load: Load
) -> Iterator[tuple[str, str, ModelSize | None, Load]]:
    """Change, reason, and what is then left of the draft model and the settings."""
    eight_bits = load.kv_type in ("f32", "f16", "bf16") and _takes(target, draft, "q8_0")
    if eight_bits:
        load = replace(load, kv_type="q8_0")
        yield "kv_type q8_0", "half the cache, answers hardly change", draft, load
    if load.sequences > 1:
        load = replace(load, sequences=1)
        yield "max_sessions 1", "one conversation at a time", draft, load
    if draft is not None:
        smaller = _requantised(draft)
        if smaller is not None:
            draft = smaller
            yield (
                "the draft model as Q4_K_M",
                "drafts get a little worse, answers stay what they are",
                draft,
                load,
            )
        draft = None
        yield (
            "draft none",
            "drafts come from the text and the workspace, which takes no memory; answers stay",
            draft,
            load,
        )
    while load.n_ctx // 2 >= SMALL_CONTEXT:
        load = replace(load, n_ctx=load.n_ctx // 2)
        yield f"n_ctx {load.n_ctx}", "the conversation is compacted earlier", draft, load
    if load.kv_type == "q8_0" and _takes(target, draft, "q4_0"):
        load = replace(load, kv_type="q4_0")
        yield (
            "kv_type q4_0",
            "a quarter of the cache, long contexts are read less well",
            draft,
            load,
        )
    if load.chunk > 128:
        load = replace(load, chunk=128)
        yield "n_batch 128", "smaller compute buffers, prompts are read more slowly", draft, load


def _takes(target: ModelSize, draft: ModelSize | None, kv_type: str) -> bool:
    return target.takes(kv_type) and (draft is None or draft.takes(kv_type))


def _requantised(model: ModelSize) -> ModelSize | None:
    """The model at 4.85 bits per value, None where it is about as small already."""
    bits = model.weights.total * 8 / max(model.n_parameters, 1)
    if bits < 1.1 * _SMALL_BITS:
        return None
    share = _SMALL_BITS / bits

    def less(size: int) -> int:
        return int(size * share)

    old = model.weights
    new = Weights(
        by_type=MappingProxyType({"Q4_K_M": less(old.total)}),
        embedding=less(old.embedding),
        layers=tuple(less(size) for size in old.layers),
        repacked=tuple(less(size) for size in old.layers),
        tied=less(old.tied),
        active=less(old.active),
        largest=less(old.largest),
    )
    return replace(model, name=f"{model.name} as Q4_K_M", weights=new)


def draft_worth(target: ModelSize, draft: ModelSize, load: Load, room: Room) -> DraftWorth:
    """Compares drafting with the model to doing without it, layers that it displaces included."""
    beside = place(target, draft, load, room)
    alone = place(target, None, load, room)
    assert beside.draft is not None
    slow = _pass_time(target, beside.gpu_layers)
    ratio = _pass_time(draft, beside.gpu_layers) / max(slow, 1e-9)
    # cost(k) of a target whose layers lie on both is that of the slower part
    on_cpu = beside.gpu_layers < beside.all_layers or room.gpu is None
    per_row = _ROW_ON_CPU if on_cpu else _ROW_ON_GPU
    lost = slow / max(_pass_time(target, alone.gpu_layers), 1e-9)
    return DraftWorth(
        bytes=sum(memory.total for memory in beside.draft),
        ratio=ratio,
        pays_from=_pays_from(ratio, per_row, lost) if beside.fits else None,
        displaced=max(0, alone.gpu_layers - beside.gpu_layers),
    )


def _pass_time(model: ModelSize, gpu_layers: int) -> float:
    """Bytes read by a pass, those outside the GPU counted as slow as they are."""
    layers = model.weights.layers
    first = max(0, len(layers) - gpu_layers)
    total = sum(layers)
    outside = sum(layers[:first]) / total if total else 1.0
    return model.weights.active * (1.0 + outside * (_CPU_SLOWER - 1))


def _pays_from(ratio: float, per_row: float, lost: float) -> float | None:
    for percent in range(1, 100):
        rate = percent / 100
        for k in range(1, _LONGEST_DRAFT + 1):
            gained = (1 - rate ** (k + 1)) / (1 - rate)
            cost = 1 + per_row * k + ratio * k
            if gained / cost >= _GAIN * lost:
                return rate
    return None


def contexts(target: ModelSize, load: Load) -> list[int]:
    """Context lengths worth a row of a table: the round ones, what was asked, what it learned."""
    most = max(target.shape.n_ctx_train, load.n_ctx)
    return sorted({n for n in CONTEXTS if n <= most} | {load.n_ctx} | ({most} if most else set()))
