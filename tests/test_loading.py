"""From settings to a loaded engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentspec import loading
from agentspec.audit.record import Recorder
from agentspec.config import Settings
from agentspec.control.cost_draft import DraftCost
from agentspec.errors import (
    BackendError,
    ConfigError,
    ExactModeError,
    ModelError,
    PairMismatchError,
)
from agentspec.testing.scripted import ScriptedProposer

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """`load_engine` on one thread, with all that is kept in folders of the test."""
    monkeypatch.setattr("agentspec.audit.store._default_folder", lambda: tmp_path / "kept")
    monkeypatch.setattr("agentspec.control.cost_store._default_folder", lambda: tmp_path / "costs")

    def load_tiny(path: Path, **settings: Any) -> Any:
        small = {"n_ctx": 1024, "n_threads": 1, "n_gpu_layers": 0}
        return loading.load_engine(path, **{**small, **settings})

    return load_tiny


@pytest.fixture
def any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of a tiny model cost nothing but overhead: the price of a class says nothing."""
    from agentspec.audit import calibrate

    monkeypatch.setattr(calibrate, "exact_rows", partial(calibrate.exact_rows, most=1e9))


def test_the_settings_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr(loading, "gpu_in_use", lambda settings: False)
    plain = loading.llama_settings(Settings(n_ctx=999, n_threads=0, n_batch=64))
    assert (plain.n_ctx, plain.n_threads, plain.chunk) == (999, None, 64)
    assert (plain.type_k, plain.type_v, plain.repack, plain.flash_attn) == (
        "f16",
        "f16",
        True,
        True,
    )
    exact = loading.llama_settings(Settings(exact=True, flash_attn="off"))
    assert (exact.type_k, exact.type_v, exact.repack) == ("q8_0", "f16", False)
    assert exact.flash_attn is False
    assert loading.llama_settings(Settings(exact=True, kv_type="f32")).type_k == "f32"
    monkeypatch.setattr(loading, "gpu_in_use", lambda settings: True)
    on_gpu = loading.llama_settings(Settings(exact=True))
    assert (on_gpu.type_k, on_gpu.repack) == ("f16", True)


def test_wrap_and_description(load: Any, tiny: Any) -> None:
    with load(tiny("dense"), wrap=Recorder, max_tokens=4) as engine:
        assert isinstance(engine.target, Recorder)
        assert engine.complete(HI).usage.completion_tokens == 4
        engine.target.end_turn([])
        assert engine.target.turns[0].events  # its passes, and none of the calibration's
    assert set(loading.describe(Settings())) >= {"n_ctx", "exact", "speculation"}


@pytest.mark.parametrize("speculation", [True, False])
def test_speculation_off_is_plain_decoding(load: Any, tiny: Any, speculation: bool) -> None:
    with load(tiny("dense"), speculation=speculation) as engine:
        assert engine.speculation is speculation
        assert (engine.cost is not None) == speculation


def test_a_draft_model_is_loaded_when_named_only(load: Any, tiny: Any) -> None:
    path = tiny("dense")
    for draft, loaded in ((None, False), ("none", False), (path, True)):
        with load(path, draft=draft) as engine:
            assert (engine.draft is not None) == loaded
            answer = engine.complete(HI, max_tokens=6)
            assert answer.usage.completion_tokens == 6
            assert not answer.speculation.notes
    with load(path, draft=path, speculation=False) as engine:
        assert engine.draft is None


@pytest.mark.parametrize(("on_gpu", "chunk"), [(False, 128), (True, 512)])
def test_a_draft_model_reads_in_as_small_pieces_as_its_target(
    load: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch, on_gpu: bool, chunk: int
) -> None:
    monkeypatch.setattr(loading, "gpu_in_use", lambda settings: on_gpu)
    with load(tiny("dense"), draft=tiny("dense")) as engine:
        assert engine.draft.max_rows == chunk
        assert all(slot.sequence._chunk == chunk for slot in engine._scheduler.pool.slots)


def test_a_draft_model_of_another_vocabulary_needs_a_setting(
    load: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentspec.testing import gguf

    path = tiny("dense")
    monkeypatch.setattr(gguf, "_MERGES", gguf._MERGES[:-2])
    other = gguf.write_tiny(tmp_path / "other.gguf", vocab="bytes", seed=3)
    with pytest.raises(PairMismatchError, match=r"or set draft_reencode to draft by its text$"):
        load(path, draft=other)
    with load(path, draft=other, draft_reencode=True) as engine:
        assert engine.draft_reencode
        engine.cost.draft = DraftCost(0.01)  # so that it is asked
        answer = engine.complete(HI, max_tokens=30)
        plain = engine.complete(HI, max_tokens=30, speculation=False)
        assert answer.text == plain.text
        assert not answer.speculation.notes
        assert engine._scheduler.pool.slots[0].follower.cached > 0  # it was asked
        engine.release_draft()
        assert engine.complete(HI, max_tokens=4).usage.completion_tokens == 4
    # where ids mean the same they are drafted as they are
    with load(path, draft=path, draft_reencode=True) as engine:
        assert not engine.draft_reencode
    textless = gguf.write_tiny(tmp_path / "textless.gguf", vocab=300)
    with pytest.raises(PairMismatchError, match="the vocabulary of the draft model gives ''"):
        load(path, draft=textless, draft_reencode=True)


def test_a_cost_curve_is_measured_once_per_setting(
    load: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentspec.control.cost import CostCurve

    measured: list[Any] = []
    real = CostCurve.measure

    def measure(backend: Any, **options: Any) -> CostCurve:
        measured.append(backend)
        return real(backend, **{**options, "budget": 0.2})

    monkeypatch.setattr(CostCurve, "measure", measure)
    # passes of a tiny model are mostly noise
    monkeypatch.setattr(CostCurve, "agrees", lambda *_, **__: True)
    for settings, times in (({}, 1), ({"n_ctx": 900}, 1), ({"n_threads": 2}, 2), ({}, 2)):
        with load(tiny("dense"), **settings) as engine:
            assert engine.cost.draft is None
        assert len(measured) == times
    with load(tiny("dense"), draft=tiny("dense")) as engine:
        assert engine.cost.draft() > 0
    assert len(measured) == 2
    assert len(list((tmp_path / "costs").iterdir())) == 3


def test_exact_mode_calibrates_once_and_gives_the_same_text(
    load: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_price: None
) -> None:
    with load(tiny("dense"), exact=True) as engine:
        assert engine.exact
        assert len(engine.rows.sizes) > 1
        ask = [{"role": "user", "content": "abc " * 20}]
        options = {"max_tokens": 40, "context": "abc abc abc"}
        texts = {
            engine.complete(ask, speculation=on, **options).text for on in (True, False, {"k": 2})
        }
        assert len(texts) == 1
    assert len(list((tmp_path / "kept").iterdir())) == 1

    def never(*_: Any) -> None:
        raise AssertionError("it was measured before")

    monkeypatch.setattr("agentspec.audit.calibrate.calibrate", never)
    with load(tiny("dense"), exact=True) as again:
        assert again.rows == engine.rows
    with pytest.raises(AssertionError, match="measured before"):
        load(tiny("dense"), exact=True, n_ctx=900)  # other settings, other kernels


def test_exact_mode_is_refused_where_it_cannot_hold(load: Any, tiny: Any) -> None:
    with pytest.raises(ExactModeError, match="cache can be cut"):
        load(tiny("recurrent"), exact=True)


def test_keys_that_cannot_be_quantised_are_kept_as_they_are(
    load: Any, tiny: Any, any_price: None
) -> None:
    """The heads of the tiny model are narrower than a block of q8_0."""
    with load(tiny("dense"), exact=True) as engine:
        assert engine.target.settings.type_k == "f16"
        assert engine.target.settings.repack is False
    with pytest.raises(ConfigError, match="type_k"):
        load(tiny("dense"), kv_type="q8_0")


def test_a_small_batch_still_calibrates(load: Any, tiny: Any, any_price: None) -> None:
    with load(tiny("dense"), exact=True, n_batch=8) as engine:
        assert max(engine.rows.sizes) <= 8


@pytest.mark.parametrize("kind", ["dense", "swa", "recurrent", "hybrid"])
def test_every_kind_of_cache_answers_turn_after_turn(load: Any, tiny: Any, kind: str) -> None:
    with load(tiny(kind)) as engine:
        talk = [{"role": "user", "content": "abc abc abc"}]
        for _ in range(3):
            answer = engine.complete(talk, max_tokens=16, context="abc abc abc")
            assert 0 < answer.usage.completion_tokens <= 16
            assert not answer.speculation.notes
            talk += [
                {"role": "assistant", "content": answer.text},
                {"role": "user", "content": "more abc"},
            ]


def test_what_fails_half_way_frees_what_was_loaded(
    load: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    real = loading.open_backend

    def open_backend(*args: Any) -> Any:
        opened.append(real(*args))
        return opened[-1]

    monkeypatch.setattr(loading, "open_backend", open_backend)
    path = tiny("dense")
    for settings, error in (
        ({"template": "{% if %}"}, ModelError),
        ({"template": "no such"}, ModelError),
        ({"draft": path.with_name("missing.gguf")}, ModelError),
        ({"wrap": lambda backend: 1 / 0}, ZeroDivisionError),
    ):
        with pytest.raises(error):
            load(path, **settings)
        for backend in opened:
            with pytest.raises(BackendError, match="closed"):
                backend.open()
        assert opened
        opened.clear()


def test_settings_that_are_wrong_are_named(load: Any, tiny: Any) -> None:
    for settings, word in (
        ({"n_ctx": 2}, "n_ctx"),
        ({"kv_type": "f64"}, "kv_type"),
        ({"n_contexts": 2}, "n_contexts"),
        ({"exact": "perhaps"}, "exact"),
    ):
        with pytest.raises(ConfigError, match=word):
            load(tiny("dense"), **settings)


def test_proposers_of_the_caller(tiny: Callable[[str], Path], load: Callable[..., Any]) -> None:
    vocabularies: list[int] = []

    def make(tokenizer: Any) -> Any:
        vocabularies.append(tokenizer.vocab_size)
        return ScriptedProposer(lambda tokens, room: [65] * 4, name="mine")

    plain = load(tiny("dense"), max_sessions=2)
    with plain, load(tiny("dense"), max_sessions=2, proposers=[make]) as engine:
        assert vocabularies == [engine.target.vocab_size] * 2
        answer = engine.complete(HI, max_tokens=20)
        assert answer.text == plain.complete(HI, max_tokens=20).text
        assert not answer.speculation.notes
