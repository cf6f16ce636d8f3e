"""What fits is really counted, what is given up comes in an order that spares the answers."""

from __future__ import annotations

from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from agentspec.models.memory import Load, ModelSize, Weights
from agentspec.models.plan import (
    LIKELY_ACCEPTANCE,
    RESERVE,
    Room,
    contexts,
    draft_worth,
    place,
    steps,
)
from agentspec.models.shape import Layer, Shape

MIB, GIB = 1 << 20, 1 << 30


def model(
    name: str, mib: int, layers: int = 32, *, kv: int = 1024, bits: float = 4.85
) -> ModelSize:
    """A dense model of so many MiB, a tenth of them embedding and output."""
    shape = Shape(
        "llama",
        (Layer(kv, kv),) * layers,
        embd=1024,
        ff=4096,
        heads=16,
        query=1024,
        key_value=kv,
        vocab=32_000,
        n_ctx_train=32_768,
    )
    size = mib * MIB
    each = size * 8 // 10 // layers
    weights = Weights(
        MappingProxyType({"Q4_K": size}),
        size // 10,
        (*(each,) * layers, size // 10),
        (0,) * (layers + 1),
        tied=0,
        active=size * 9 // 10,
        largest=each // 4,
    )
    return ModelSize(name, shape, weights, int(size * 8 / bits))


TARGET = model("target", 16 * 1024, 48)
DRAFT = model("draft", 1024, 12)


def test_all_of_it_on_a_large_gpu() -> None:
    placed = place(TARGET, DRAFT, Load(), Room(80 * GIB, 64 * GIB))
    assert placed.whole
    assert placed.gpu_layers == placed.all_layers == 49
    assert placed.draft is not None
    assert not list(steps(TARGET, DRAFT, Load(), Room(80 * GIB, 64 * GIB)))


@given(st.integers(1, 40 * 1024), st.integers(0, 64 * 1024), st.integers(256, 65_536))
def test_as_many_layers_as_fit_and_not_one_more(gpu: int, system: int, n_ctx: int) -> None:
    room = Room(gpu * MIB, system * MIB)
    load = Load(n_ctx=n_ctx)
    placed = place(TARGET, DRAFT, load, room)
    if placed.gpu_layers:
        assert placed.gpu_bytes <= gpu * MIB
    if placed.fits:
        assert placed.system_bytes <= system * MIB
    assert placed.gpu_bytes == 0 or placed.gpu_bytes >= RESERVE
    more = place(TARGET, DRAFT, load, Room((gpu + 256) * MIB, system * MIB))
    assert more.gpu_layers >= placed.gpu_layers
    alone = place(TARGET, None, load, room)
    assert alone.gpu_layers >= placed.gpu_layers


def test_without_a_gpu_memory_alone_counts() -> None:
    held = place(TARGET, None, Load(), Room(None, 64 * GIB))
    assert held.whole
    assert held.gpu_bytes == 0
    assert held.system_bytes > 16 * GIB
    assert not place(TARGET, None, Load(), Room(None, held.system_bytes - 1)).fits
    assert place(TARGET, None, Load(), Room(None, held.system_bytes)).fits


@given(st.integers(1024, 24 * 1024), st.integers(8192, 131_072), st.booleans())
def test_each_step_helps_and_the_last_one_ends_it(gpu: int, n_ctx: int, drafting: bool) -> None:
    room = Room(gpu * MIB, 24 * GIB)
    draft = model("draft", 2048, 12, bits=8.5) if drafting else None
    load = Load(n_ctx=n_ctx)
    given_up = list(steps(TARGET, draft, load, room))
    before = place(TARGET, draft, load, room)
    assert bool(given_up) or before.whole or n_ctx < 16_384
    for step in given_up:
        after = step.placement
        assert after.gpu_layers >= before.gpu_layers
        assert step.saved >= 64 * MIB or (after.gpu_layers, after.fits) > (
            before.gpu_layers,
            before.fits,
        )
        assert not before.whole
        before = after
    changes = [step.change for step in given_up]
    if "draft none" in changes and "the draft model as Q4_K_M" in changes:
        assert changes.index("the draft model as Q4_K_M") < changes.index("draft none")
    # a context is not touched, nor the cache made coarse, while a draft model could still go
    lossy = [i for i, c in enumerate(changes) if c.startswith("n_ctx") or c == "kv_type q4_0"]
    if drafting and lossy:
        assert changes.index("draft none") < lossy[0]


def test_nothing_is_proposed_that_the_model_does_not_take() -> None:
    narrow = model("narrow", 16 * 1024, 48, kv=1000)
    changes = [s.change for s in steps(narrow, None, Load(n_ctx=65_536), Room(8 * GIB, 64 * GIB))]
    assert changes
    assert not any(change.startswith("kv_type") for change in changes)
    small = model("draft", 1024, 12, bits=4.9)
    given_up = steps(TARGET, small, Load(n_ctx=65_536), Room(8 * GIB, 64 * GIB))
    assert "the draft model as Q4_K_M" not in [step.change for step in given_up]


def test_a_draft_model_that_fits_beside_its_target_pays() -> None:
    worth = draft_worth(TARGET, DRAFT, Load(), Room(80 * GIB, 64 * GIB))
    assert worth.worth_it
    assert worth.displaced == 0
    assert 0.05 < worth.ratio < 0.08
    assert worth.pays_from is not None
    assert worth.pays_from < 0.3


def test_a_draft_model_that_pushes_layers_out_must_earn_them_back() -> None:
    alone = place(TARGET, None, Load(), Room(80 * GIB, 64 * GIB)).gpu_bytes
    worth = draft_worth(TARGET, DRAFT, Load(), Room(alone, 64 * GIB))
    assert worth.displaced > 0
    assert worth.pays_from is None or worth.pays_from > LIKELY_ACCEPTANCE
    assert not worth.worth_it


def test_on_a_cpu_and_for_a_draft_as_large_as_its_target_drafting_does_not_pay() -> None:
    assert not draft_worth(TARGET, DRAFT, Load(), Room(None, 64 * GIB)).worth_it
    same = draft_worth(TARGET, TARGET, Load(), Room(80 * GIB, 64 * GIB))
    assert same.ratio == 1.0
    assert not same.worth_it


def test_contexts_of_a_table_are_what_the_model_learned_and_what_was_asked() -> None:
    assert contexts(TARGET, Load(n_ctx=10_000)) == [4096, 8192, 10_000, 16384, 32768]
    assert contexts(TARGET, Load(n_ctx=65_536))[-1] == 65_536
