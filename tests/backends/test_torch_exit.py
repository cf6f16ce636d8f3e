"""Early exits of a transformers target: rows behind its first layers, adapters, and their texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rows
from agentspec.engine.session import LiveSequence
from agentspec.errors import ModelFileError, PairMismatchError, UnsupportedError
from agentspec.propose.draft_model import DraftModel
from agentspec.propose.early_exit import Exit, ExitReading, PlainExit
from agentspec.testing.loop import Loop
from agentspec.types import SamplingParams

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.head_files import WIDTH, write_heads  # noqa: E402

LAYERS = 4


@pytest.fixture
def folder(torch_folder: Callable[..., Path]) -> Callable[..., Path]:
    return partial(torch_folder, layers=LAYERS)


@pytest.fixture
def target(folder: Callable[..., Path], open_torch: Callable[..., Any]) -> Any:
    return open_torch(folder())


def leaving(
    target: Any, sequence: LiveSequence, layer: Any = 2, way_out: Exit | None = None, k: int = 4
) -> DraftModel:
    at = layer if callable(layer) else lambda: layer
    reading = ExitReading(target, lambda: sequence, at, way_out)
    return DraftModel(
        target_vocab=target.vocab_size, k=k, p_min=0.0, reading=reading, name="early_exit"
    )


def cut_short(folder: Path, layer: int) -> Any:
    """A model of transformers that has the first layers only."""
    import transformers

    plain = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    plain.base_model.layers = plain.base_model.layers[:layer]
    return plain


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2"])
def test_drafts_are_those_of_a_model_that_ends_there(
    folder: Any, open_torch: Any, words: Any, kind: str
) -> None:
    target, prompt = open_torch(folder(kind)), words(20)
    for layer in (1, 3):
        plain = cut_short(folder(kind), layer)
        loop = Loop(target, chunk=16)
        proposer = leaving(target, loop.sequence, layer)
        drafts: list[tuple[list[int], tuple[int, ...]]] = []
        real = proposer.propose

        def propose(room: int, real: Any = real, loop: Any = loop, drafts: Any = drafts) -> Any:
            draft = real(room)
            drafts.append((list(loop.sequence.tokens), draft.tokens))
            return draft

        proposer.propose = propose  # type: ignore[method-assign, assignment]
        loop.answer(prompt, [proposer], max_tokens=24)
        loop.sequence.close()
        assert len(drafts) > 4
        for text, tokens in drafts:
            expected: list[int] = []
            for _ in tokens:
                with torch.no_grad():
                    rows = plain(torch.tensor([[*text, *expected]]), use_cache=False).logits
                expected.append(int(rows[0, -1].argmax()))
            assert list(tokens) == expected


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "gemma3"])
def test_the_text_is_that_of_plain_decoding(
    folder: Any, open_torch: Any, words: Any, kind: str
) -> None:
    target, prompt = open_torch(folder(kind)), words(20)
    layers = iter([1, 3, 2] * 100)
    endless = dict.fromkeys(target.tokenizer.eos_ids, float("-inf"))
    for params in (
        SamplingParams(logit_bias=endless),
        SamplingParams(temperature=0.7, seed=3, logit_bias=endless),
    ):
        plain = Loop(target).answer(prompt, params=params, max_tokens=60)
        loop = Loop(target, chunk=16)
        proposer = leaving(target, loop.sequence, lambda: next(layers))
        fast = loop.answer(prompt, [proposer], params=params, max_tokens=60)
        assert fast.tokens == plain.tokens
        assert not fast.stats.notes
        assert fast.stats.drafted > 60
        # nothing of the exits is left in the cache: its next row is that of a fresh context
        text = loop.sequence.tokens
        seq = target.open()
        target.forward([Rows(seq, text[:60], logits_from=60)])
        target.forward([Rows(seq, text[60:-1], logits_from=99)])
        expected = target.forward([Rows(seq, text[-1:])]).logits(0).copy()
        assert target.ahead(loop.sequence.seq) == 0
        found = target.forward([Rows(loop.sequence.seq, text[-1:])]).logits(0)
        assert np.abs(found - expected).max() < 1e-3
        loop.sequence.close()
        target.drop(seq)


def test_rows_of_an_exit_are_dropped_when_an_answer_is_left(target: Any, words: Any) -> None:
    loop = Loop(target)
    proposer = leaving(target, loop.sequence)
    loop.answer(words(20), [proposer], max_tokens=40, leave_after=3)
    assert target.ahead(loop.sequence.seq) == 0
    assert target.length(loop.sequence.seq) == len(loop.sequence.tokens) - 1


# adapters


def random_adapter(layer: int = 2, *, rank: int = 8, seed: int = 0) -> Any:
    from agentspec.backends.torch_exit import ExitAdapter

    torch.manual_seed(seed)
    adapter = ExitAdapter(WIDTH, layer, rank=rank)
    with torch.no_grad():
        for weight in adapter.parameters():
            weight.normal_(1.0 if weight.dim() == 1 else 0.0, 0.2)
    return adapter


@pytest.mark.parametrize("rank", [0, 8])
def test_an_adapter_computes_what_its_file_says(
    folder: Any, target: Any, words: Any, tmp_path: Path, rank: int
) -> None:
    from agentspec.backends.torch_exit import AdaptedExit, load_exit

    path = tmp_path / "exit.safetensors"
    random_adapter(rank=rank).save(path, base="tiny-llama")
    adapter = load_exit(path, target)
    assert (adapter.layer, adapter.rank) == (2, rank)
    text = words(12)
    seq = target.open()
    target.forward([Rows(seq, text[:8], logits_from=8)])
    output = AdaptedExit(adapter, target)(seq, text[8:], 3, 2)
    assert len(output) == 3
    plain = cut_short(folder(), 2)
    plain.base_model.norm = torch.nn.Identity()
    with torch.no_grad():
        states = plain.base_model(torch.tensor([text]))[0][0].double().numpy()[-3:]
    kept = {name: t.double().numpy() for name, t in random_adapter(rank=rank).state_dict().items()}
    moved = states @ kept["down.weight"].T if rank else states
    x = states + moved @ kept["up.weight"].T
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * kept["norm"]
    expected = x @ plain.lm_head.weight.detach().double().numpy().T
    for i in range(3):
        assert np.abs(output.logits(i) - expected[i]).max() < 1e-5 * np.abs(expected).max()
        assert output.argmax(i) == expected[i].argmax()
    with pytest.raises(UnsupportedError, match="layer 2 only"):
        AdaptedExit(adapter, target)(seq, [1], 1, 3)


def test_an_adapter_that_was_not_trained_is_the_plain_exit(
    target: Any, words: Any, tmp_path: Path
) -> None:
    from agentspec.backends.torch_exit import AdaptedExit, ExitAdapter

    adapter = ExitAdapter(WIDTH, 2, eps=target.inner.config.rms_norm_eps)
    adapter.norm.data.copy_(target.inner.base_model.norm.weight)
    leave, text = AdaptedExit(adapter, target), words(9)
    seq, other = target.open(), target.open()
    ours, theirs = leave(seq, text, 2, 2), PlainExit(target)(other, text, 2, 2)
    for i in range(2):
        assert np.abs(ours.logits(i) - theirs.logits(i)).max() < 1e-4


def test_taps_of_others_stay_where_an_exit_ends_before_them(target: Any, words: Any) -> None:
    from agentspec.backends.torch_exit import AdaptedExit

    target.tap([1, 3])
    leave = AdaptedExit(random_adapter(), target)
    assert target.taps == (1, 2, 3)
    assert len(leave(target.open(), words(5), 1, 2)) == 1


def test_texts_with_an_adapter(target: Any, words: Any) -> None:
    from agentspec.backends.torch_exit import AdaptedExit

    prompt = words(20)
    plain = Loop(target).answer(prompt, max_tokens=40)
    loop = Loop(target)
    leave = AdaptedExit(random_adapter(), target)
    fast = loop.answer(prompt, [leaving(target, loop.sequence, 2, leave)], max_tokens=40)
    assert fast.tokens == plain.tokens
    assert not fast.stats.notes
    assert fast.stats.sources["early_exit"].drafted > 40


def test_adapters_that_do_not_fit_are_refused_by_name(target: Any, tmp_path: Path) -> None:
    from agentspec.backends.torch_exit import FORMAT, load_exit

    good = {name: t.detach() for name, t in random_adapter().state_dict().items()}
    told = {"format": FORMAT, "layer": 2, "width": WIDTH, "rank": 8, "dtype": "float32"}
    number = 0

    def load(tensors: dict[str, Any] = good, base: str | None = "tiny-llama", **more: Any) -> Any:
        nonlocal number
        number += 1
        path = tmp_path / f"{number}.safetensors"
        return load_exit(write_heads(path, tensors, base, **{**told, **more}), target)

    assert load().layer == 2
    short = {**good, "down.weight": torch.zeros(8, 3)}
    half = {name: tensor.half() for name, tensor in good.items()}
    wrong: list[tuple[Any, str]] = [
        (lambda: load(layer=LAYERS), f"layer {LAYERS}"),
        (lambda: load(layer=9), "layer 9"),
        (lambda: load(width=32), "hidden states of 32"),
        (lambda: load(rank=4), r"down\.weight"),
        (lambda: load(short), r"down\.weight.*8×3.*8×64"),
        (lambda: load(half), "float16, not float32"),
        (lambda: load({**good, "down.weight": good["down.weight"].to(torch.int8)}), "int8"),
        (lambda: load({**good, "more": torch.zeros(1)}), "more"),
        (lambda: load({"norm": good["norm"]}), "has no tensor"),
        (lambda: load(eps="small"), "eps"),
        (lambda: load(format="other"), "no exit adapter"),
        (lambda: load(layer="two"), "layer 'two'"),
    ]
    for make, message in wrong:
        with pytest.raises(ModelFileError, match=message) as caught:
            make()
        assert ".safetensors" in str(caught.value)
    with pytest.raises(PairMismatchError, match=r"org/other.*tiny-llama"):
        load(base="org/other")
    with pytest.raises(PairMismatchError):
        load(base=None)
    assert load(half, dtype="float16").norm.dtype == torch.float32
    assert load(base="x", base_identity=target.identity).layer == 2
