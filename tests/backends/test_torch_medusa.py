"""Medusa heads over a transformers target: their sums, their files, and texts drafted with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rows
from agentspec.errors import ModelFileError, ModelNotFoundError, PairMismatchError
from agentspec.propose.medusa import Medusa
from agentspec.testing.loop import Loop
from agentspec.types import SamplingParams

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.head_files import (  # noqa: E402
    VOCAB,
    WIDTH,
    as_vllm,
    medusa_tensors,
    write_heads,
    write_published,
)

NEAR = 1e-5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.torch_models import write_tiny

    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def target(tiny: Path, open_torch: Callable[..., Any]) -> Any:
    return open_torch(tiny)


def heads_of(path: Path, target: Any) -> Any:
    from agentspec.backends.torch_medusa import MedusaHeads

    return MedusaHeads(path, target)


def drafting(heads: Any, loop: Loop, leaves: int) -> Medusa:
    return Medusa(heads, lambda: loop.sequence, leaves=leaves)


def silu(x: Any) -> Any:
    return x / (1.0 + np.exp(-x))


def reference(tensors: dict[str, Any], states: Any, heads: int, layers: int) -> Any:
    """The published formula, row by row in float64: [heads, rows, vocabulary]."""
    found = []
    for head in range(heads):
        rows = []
        for state in np.asarray(states, dtype=np.float64):
            x = state
            for layer in range(layers):
                weight = tensors[f"{head}.{layer}.linear.weight"].double().numpy()
                bias = tensors[f"{head}.{layer}.linear.bias"].double().numpy()
                x = x + silu(weight @ x + bias)
            rows.append(tensors[f"{head}.{layers}.weight"].double().numpy() @ x)
        found.append(rows)
    return np.asarray(found)


# what heads compute


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("layout", ["published", "vllm", "prefixed"])
def test_heads_compute_what_the_published_formula_says(
    target: Any, tmp_path: Path, layout: str, layers: int
) -> None:
    tensors = medusa_tensors(layers=layers)
    named = tensors if layout == "published" else as_vllm(tensors, layers)
    if layout == "prefixed":
        named = {f"medusa_heads.{name}": tensor for name, tensor in named.items()}
    heads = heads_of(write_heads(tmp_path / "m.safetensors", named), target)
    assert (heads.count, heads.layers) == (3, layers)
    seq = target.open()
    output = target.forward([Rows(seq, [5, 6, 7, 8], logits_from=0, hidden=True)])
    states = np.stack([output.hidden(i) for i in range(4)])
    found = heads.logits(torch.from_numpy(states)).numpy()
    expected = reference(tensors, states, 3, layers)
    assert np.abs(found - expected).max() < NEAR
    heard = heads.heard(seq)
    assert (heard.start, tuple(heard.rows.tokens)) == (0, (5, 6, 7, 8))
    assert np.array_equal(heard.features.last.numpy(), states)
    chances = np.exp(expected - expected.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    guesses = heads.guesses(heard.features.last[2], 2, 4)
    assert [len(row) for row in guesses] == [4, 4]
    for head, row in enumerate(guesses):
        best = np.argsort(-chances[head, 2])[:4]
        assert [token for token, _ in row] == best.tolist()
        assert [chance for _, chance in row] == pytest.approx(chances[head, 2][best], abs=1e-5)


def test_heads_without_a_vocabulary_head_use_the_targets(target: Any, tmp_path: Path) -> None:
    tensors = {name: t for name, t in medusa_tensors().items() if "linear" in name}
    heads = heads_of(write_heads(tmp_path / "m.safetensors", tensors), target)
    state = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(1))
    own = target.inner.get_output_embeddings().weight.detach()
    full = {**tensors, **{f"{head}.1.weight": own for head in range(3)}}
    assert np.abs(heads.logits(state).numpy() - reference(full, state, 3, 1)).max() < 1e-4


def test_one_vocabulary_head_may_serve_all(target: Any, tmp_path: Path) -> None:
    tensors = medusa_tensors()
    named = as_vllm(tensors)
    shared = named["lm_heads.0.weight"]
    own = {name: tensor for name, tensor in named.items() if name.startswith("blocks")}
    state = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(1))
    full = {**tensors, **{f"{head}.1.weight": shared for head in range(3)}}
    ways: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"lm_head.weight": shared}, {}),
        ({"lm_heads.0.weight": shared}, {"original_lm_head": True}),
    ]
    for more, told in ways:
        path = write_heads(tmp_path / "m.safetensors", {**own, **more}, **told)
        found = heads_of(path, target).logits(state).numpy()
        assert np.abs(found - reference(full, state, 3, 1)).max() < NEAR


@pytest.mark.parametrize("cut", [True, False])
def test_heads_of_a_part_of_the_vocabulary(target: Any, tmp_path: Path, cut: bool) -> None:
    ids = torch.tensor([9, 4, 200, 7, 33])
    tensors = medusa_tensors(heads=2)
    named = as_vllm(tensors)
    if cut:
        named = {n: t[ids] if n.startswith("lm_heads") else t for n, t in named.items()}
    path = write_heads(tmp_path / "m.safetensors", {**named, "token_map": ids})
    heads = heads_of(path, target)
    state = torch.randn(WIDTH, generator=torch.Generator().manual_seed(2))
    full = reference(tensors, state[None], 2, 1)[:, 0]
    for head, row in enumerate(heads.guesses(state, 2, 2)):
        best = sorted(ids.tolist(), key=lambda token: -full[head, token])[:2]
        assert [token for token, _ in row] == best


def test_heads_are_cast_to_the_number_format_of_the_target(
    tiny: Path, open_torch: Any, tmp_path: Path
) -> None:
    tensors = {name: tensor.half() for name, tensor in medusa_tensors().items()}
    path = write_heads(tmp_path / "m.safetensors", tensors)
    wide = heads_of(path, open_torch(tiny))
    narrow = heads_of(path, open_torch(tiny, dtype="bfloat16"))
    state = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(3))
    assert str(wide.logits(state).dtype) == "torch.float32"
    assert str(narrow.logits(state).dtype) == "torch.bfloat16"
    expected = reference(tensors, state, 3, 1)
    assert np.abs(wide.logits(state).numpy() - expected).max() < NEAR
    assert np.corrcoef(narrow.logits(state).float().numpy().ravel(), expected.ravel())[0, 1] > 0.99


# files that are refused


def without(name: str) -> dict[str, Any]:
    return {n: t for n, t in medusa_tensors().items() if n != name}


def test_what_does_not_fit_is_refused_by_name(target: Any, tmp_path: Path) -> None:
    good = medusa_tensors()
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({**good, "1.0.linear.weight": torch.zeros(WIDTH, 3)}, {}, r"1\.0\.linear\.weight.*64×3"),
        ({**good, "2.1.weight": torch.zeros(9, WIDTH)}, {}, r"2\.1\.weight.*9×64.*264×64"),
        ({**good, "0.0.linear.bias": torch.zeros(2)}, {}, r"0\.0\.linear\.bias"),
        ({**good, "0.1.weight": good["0.1.weight"].to(torch.int8)}, {}, r"0\.1\.weight.*int8"),
        ({**good, "0.1.weight": good["0.1.weight"].double()}, {}, r"0\.1\.weight.*float64"),
        ({**good, "3.9.strange": torch.zeros(2)}, {}, r"3\.9\.strange"),
        (without("1.0.linear.weight"), {}, "missing"),
        (without("1.1.weight"), {}, "2 vocabulary heads for 3"),
        (without("1.0.linear.bias"), {}, "bias"),
        (good, {"medusa_num_heads": 5}, "holds 3 heads, not 5"),
        (good, {"medusa_num_layers": 2}, "1 blocks, not 2"),
        (good, {"medusa_num_heads": "x"}, "medusa_num_heads"),
        (good, {"hidden_size": 4096}, "4096"),
        (medusa_tensors(width=32), {}, "32×32.*64×64"),
        ({"weight": torch.zeros(2)}, {}, "no Medusa heads"),
        (as_vllm(good) | {"token_map": torch.tensor([1, 999])}, {}, "outside the target"),
        (as_vllm(good) | {"token_map": torch.zeros(2)}, {}, "token_map"),
    ]
    for number, (tensors, told, message) in enumerate(wrong):
        path = write_heads(tmp_path / f"{number}.safetensors", tensors, **told)
        with pytest.raises(ModelFileError, match=message) as caught:
            heads_of(path, target)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not target._listeners, "refused heads go on listening"


def test_heads_of_another_model_are_refused_by_name(target: Any, tmp_path: Path) -> None:
    path = write_heads(tmp_path / "m.safetensors", medusa_tensors(), base="lmsys/vicuna-7b-v1.3")
    with pytest.raises(PairMismatchError, match=r"lmsys/vicuna-7b-v1\.3.*tiny"):
        heads_of(path, target)
    path = write_heads(tmp_path / "m.safetensors", medusa_tensors(), base=None)
    with pytest.raises(PairMismatchError, match="does not say"):
        heads_of(path, target)
    told = {"base_identity": target.identity}
    heads_of(write_heads(tmp_path / "m.safetensors", medusa_tensors(), base="x", **told), target)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
        ("smollm2-135m-instruct-Q4_K_M.gguf", "smollm2-135m-instruct"),
        ("a/b/SmolLM2-135M-Instruct-f16.gguf", "smollm2-135m-instruct"),
        ("C:\\models\\Tiny\\", "tiny"),
        ("vicuna-7b-v1.3", "vicuna-7b-v1.3"),
    ],
)
def test_a_models_name_is_compared_without_what_does_not_tell_models_apart(
    name: str, plain: str
) -> None:
    from agentspec.backends.torch_heads import plain_name

    assert plain_name(name) == plain


def test_a_pickle_is_never_opened(target: Any, tmp_path: Path) -> None:
    folder = write_published(tmp_path / "medusa", medusa_tensors())
    for path in (folder, folder / "medusa_lm_head.pt"):
        with pytest.raises(ModelFileError, match="convert-medusa"):
            heads_of(path, target)


def test_a_file_that_is_damaged_or_not_there(target: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        heads_of(tmp_path / "none.safetensors", target)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 100)
    with pytest.raises(ModelFileError, match="not a whole"):
        heads_of(broken, target)
    whole = write_heads(tmp_path / "two" / "a.safetensors", medusa_tensors())
    (whole.parent / "b.safetensors").write_bytes(whole.read_bytes())
    with pytest.raises(ModelFileError, match="2 safetensors"):
        heads_of(whole.parent, target)


def test_a_folder_is_read_with_its_configuration(target: Any, tmp_path: Path) -> None:
    path = write_heads(tmp_path / "heads" / "m.safetensors", medusa_tensors(), base=None)
    config = path.parent / "config.json"
    config.write_text(json.dumps({"medusa_num_heads": 2, "base_model_name_or_path": "org/Tiny"}))
    # published configurations name fewer heads than their files have
    assert heads_of(path.parent, target).count == 3
    config.write_text("{")
    with pytest.raises(ModelFileError, match=r"config\.json"):
        heads_of(path.parent, target)


# texts


def knowing(target: Any, prompt: Sequence[int], heads: int = 3) -> dict[str, Any]:
    """Heads fitted to what the target says behind a prompt: their guesses are often right."""
    text = [*prompt, *Loop(target).answer(prompt, max_tokens=120).tokens]
    seq = target.open()
    states = []
    for at in range(0, len(text), 64):
        rows = [Rows(seq, text[at : at + 64], logits_from=0, hidden=True)]
        output = target.forward(rows)
        states += [output.hidden(i) for i in range(len(output))]
    target.drop(seq)
    found: dict[str, Any] = {}
    for head in range(heads):
        wanted = text[head + 2 :]
        x = torch.from_numpy(np.stack(states[: len(wanted)])).double()
        goal = torch.nn.functional.one_hot(torch.tensor(wanted), VOCAB).double()
        eye = 1e-3 * torch.eye(WIDTH, dtype=torch.double)
        solved = torch.linalg.solve(x.T @ x + eye, x.T @ goal).T
        found[f"{head}.0.linear.weight"] = torch.zeros(WIDTH, WIDTH)
        found[f"{head}.0.linear.bias"] = torch.zeros(WIDTH)
        found[f"{head}.1.weight"] = 9.0 * solved.float()
    return found


@pytest.mark.parametrize("leaves", [1, 4])
def test_the_text_is_that_of_plain_decoding(
    target: Any, tmp_path: Path, words: Any, leaves: int
) -> None:
    prompt = words(20)
    path = write_heads(tmp_path / "m.safetensors", knowing(target, prompt))
    heads = heads_of(path, target)
    accepted = rejected = 0
    for params in (SamplingParams(), SamplingParams(temperature=0.7, seed=3)):
        plain = Loop(target).answer(prompt, params=params, max_tokens=100)
        loop = Loop(target, chunk=16)
        medusa = drafting(heads, loop, leaves)
        fast = loop.answer(prompt, [medusa], params=params, max_tokens=100)
        assert fast.tokens == plain.tokens
        assert not fast.stats.notes
        counted = fast.stats.sources["medusa"]
        accepted, rejected = accepted + counted.accepted, rejected + counted.judged
        rejected -= counted.accepted
        if leaves == 1:
            # the cache after every step is that of the text alone
            text, seq = loop.sequence.tokens, target.open()
            for at in range(0, len(text), 64):
                row = target.forward([Rows(seq, text[at : at + 64])]).logits(0).copy()
            target.drop(seq)
            mine = target.forward([Rows(loop.sequence.seq, text[-1:])]).logits(0)
            assert np.abs(row - mine).max() < 1e-3
        loop.sequence.close()
    assert accepted > 20
    assert rejected > 5
    if leaves > 1:
        assert any(v.draft.parents is not None for v in fast.verdicts)


def test_every_draft_is_that_of_the_true_hidden_state(
    target: Any, tmp_path: Path, words: Any
) -> None:
    """Behind chains, trees, cuts and reused prompts the heads read the right row."""
    prompt = words(20)
    heads = heads_of(write_heads(tmp_path / "m.safetensors", knowing(target, prompt)), target)
    fresh, drafts = heads_of(write_heads(tmp_path / "n.safetensors", medusa_tensors()), target), []
    real, seen = heads.guesses, []

    def guesses(state: Any, count: int, top: int) -> Any:
        seen.append(state.clone())
        drafts.append(list(loop.sequence.tokens))
        return real(state, count, top)

    heads.guesses = guesses
    loop = Loop(target, chunk=16)
    medusa = drafting(heads, loop, 4)
    answer = loop.answer(prompt, [medusa], max_tokens=40)
    loop.answer([*prompt, *answer.tokens[:9], 7, 8, 9], [medusa], max_tokens=20)
    assert len(seen) > 20
    for state, text in zip(seen, drafts, strict=True):
        seq = target.open()
        for at in range(0, len(text) - 1, 64):
            part = text[at : min(at + 64, len(text) - 1)]
            target.forward([Rows(seq, part, logits_from=len(part))])
        expected = fresh.heard(seq).features.last[-1]
        target.drop(seq)
        assert float((state - expected).abs().max()) < 1e-4
