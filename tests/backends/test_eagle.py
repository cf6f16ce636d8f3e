"""EAGLE's draft layers over torch: both published layouts, their cache, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rows
from agentspec.control.controller import FixedController
from agentspec.errors import (
    CancelledError,
    DecodeError,
    ModelFileError,
    ModelNotFoundError,
    PairMismatchError,
)
from agentspec.propose.eagle import Eagle
from agentspec.testing.loop import Loop
from agentspec.types import SamplingParams

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.eagle_checkpoints import DRAFTED, Reference, write_eagle  # noqa: E402
from tests.torch_models import VOCAB  # noqa: E402

CLOSE = 1e-5
LAYERS = 4


@pytest.fixture
def model(torch_folder: Callable[..., Path]) -> Callable[..., Path]:
    return lambda kind="llama": torch_folder(kind, name=kind, layers=LAYERS)


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[Any, Any]]:
    found: dict[Any, Any] = {}
    try:
        yield found
    finally:
        for backend in found.values():
            backend.close()


@pytest.fixture
def target(model: Callable[..., Path], opened: dict[Any, Any]) -> Iterator[Callable[..., Any]]:
    """A target of this kind and these settings, the same one as in other tests, as good as new."""
    from agentspec.backends.torch import TorchBackend, TorchSettings

    used: list[Any] = []

    def load(kind: str = "llama", **settings: Any) -> Any:
        told = {"n_ctx": 512, "n_threads": 1, "chunk": 64, "device": "cpu", "max_seqs": 3}
        key = kind, *sorted(settings.items())
        if key not in opened:
            opened[key] = TorchBackend(model(kind), TorchSettings(**{**told, **settings}))
        used.append(opened[key])
        return opened[key]

    yield load
    for backend in used:
        backend.tap([])
        backend._listeners = ()
        for seq in list(backend._sequences):
            backend.drop(seq)


def reading(net: Any, **settings: Any) -> Any:
    from agentspec.backends.torch_eagle import EagleReading

    return EagleReading(net, **settings)


def net(folder: Path, backend: Any) -> Any:
    from agentspec.backends.torch_eagle import open_eagle

    return open_eagle(folder, backend)


def feed(backend: Any, seq: int, tokens: Sequence[int], chunk: int = 20) -> None:
    for at in range(0, len(tokens), chunk):
        part = tokens[at : at + chunk]
        backend.forward([Rows(seq, part, logits_from=len(part))])


def reference(folder: Path, backend: Any) -> Reference:
    embeddings = backend.embed(range(VOCAB)).float().numpy().astype(np.float64)
    head = backend.inner.get_output_embeddings().weight.float().numpy().astype(np.float64)
    return Reference(folder, embeddings, head)


def states(path: Path, text: Sequence[int], taps: Sequence[int] | None) -> list[Any]:
    """Hidden states of transformers' own model: behind the taps, or behind the final norm."""
    import transformers

    plain = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    with torch.no_grad():
        out = plain.model(torch.tensor([list(text)]), output_hidden_states=True)
    found = [out.last_hidden_state] if taps is None else [out.hidden_states[n] for n in taps]
    return [one[0].numpy().astype(np.float64) for one in found]


LAYOUTS: dict[str, dict[str, Any]] = {
    "1": {"version": 1},
    "1 as vLLM wraps it": {"version": 1, "layout": "vllm"},
    "1 of two layers": {"version": 1, "layers": 2},
    "1 without a bias": {"version": 1, "replace": {"fc.bias": None}},
    "3": {"version": 3},
    "3 with other positions": {"version": 3, "config": {"rope_theta": 500.0}},
    "3 as speculators writes it": {
        "version": 3,
        "layout": "speculators",
        "config": {"norm_before_residual": True},
    },
    "3 of two layers": {"version": 3, "layers": 2, "layout": "speculators",
        "config": {"norm_before_residual": False}},
    "3 of another width": {"version": 3, "width": 32, "embeddings": VOCAB},
    "3 over all tokens": {"version": 3, "drafted": VOCAB},
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_features_and_logits_are_those_of_a_forward_written_apart(
    model: Any, target: Any, words: Any, tmp_path: Path, name: str
) -> None:
    told = dict(LAYOUTS[name])
    if "embeddings" in told:
        rng = torch.Generator().manual_seed(9)
        told["embeddings"] = torch.randn(told["embeddings"], told["width"], generator=rng)
    folder = write_eagle(tmp_path / "eagle", **told)
    backend = target(packed=False)
    found = net(folder, backend)
    assert found.version == told["version"]
    other = reference(folder, backend)
    if "embeddings" in told:
        other.embeddings = other.w["embed_tokens.weight"]
    text = words(50)
    feed(backend, backend.open(), text[:-1])
    given = other.fuse(states(model(), text, [0, 1, 2] if told["version"] == 3 else None))
    n = len(text) - 1
    seen = np.tri(n, dtype=bool)
    expected = other.features(given[:n], text[1:], range(n), seen)

    one = reading(found, chunk=16)
    one.begin(text)
    assert one.pending == n
    law = one.read()
    assert one.read_up_to == tuple(range(n))
    assert one.rows == n  # of all chunks
    assert one.pending == 1
    logits = other.logits(expected)[-1]
    assert_close(law.logits(), logits)
    best = law.top(5)
    assert [token for token, _ in best] == np.argsort(-logits)[:5].tolist()
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    assert np.allclose([p for _, p in best], chances[[t for t, _ in best]], atol=CLOSE)

    # a tree behind it: two children, a child of the second, two of the first
    tokens, parents = [5, 9, 200, 5, 31], [-1, -1, 1, 0, 0]
    laws = [*one.grow(parents[:2], tokens[:2]), *one.grow(parents[2:], tokens[2:])]
    features, places = [expected[-1]], [n - 1]
    for i, parent in enumerate(parents):
        whole = np.zeros((n + i + 1, n + i + 1), dtype=bool)
        whole[:n, :n] = seen
        for row in range(i + 1):
            whole[n + row, :n] = True
            at = row
            while at >= 0:
                whole[n + row, n + at] = True
                at = parents[at]
        behind = [features[p + 1] for p in parents[: i + 1]]
        positions = [places[p + 1] + 1 for p in parents[: i + 1]]
        rows = other.features(
            np.concatenate([given[:n], np.stack(behind)]),
            [*text[1:], *tokens[: i + 1]],
            [*range(n), *positions],
            whole,
        )
        features.append(rows[-1])
        places.append(places[parent + 1] + 1)
        assert_close(laws[i].logits(), other.logits(rows)[-1])
    # and it leaves no trace
    one.cut()
    assert_close(one.read().logits(), logits)


def assert_close(found: Any, expected: Any) -> None:
    assert np.array_equal(np.isinf(found), np.isinf(expected))
    had = ~np.isinf(expected)
    scale = max(1.0, float(np.abs(expected[had]).max()))
    assert np.abs(found[had] - expected[had]).max() < CLOSE * scale


def test_packed_weights_change_nothing(target: Any, words: Any, tmp_path: Path) -> None:
    rows = []
    for packed in (True, False):
        backend = target(packed=packed)
        folder = tmp_path / "eagle"
        one = reading(net(folder if folder.exists() else write_eagle(folder, 3), backend))
        text = words(30)
        feed(backend, backend.open(), text)
        one.begin(text)
        one.read()
        rows.append(np.stack([law.logits() for law in one.grow([-1, -1], [4, 5])]))
    had = ~np.isinf(rows[0])
    assert np.abs(rows[0][had] - rows[1][had]).max() < 1e-3


@pytest.mark.parametrize(
    ("ids", "layers", "taps"),
    [
        (None, 4, None),
        ([1, 2], 4, (2, 3)),
        ([2, 3, 4], 4, (2, 3, 4)),
        ([0, 4], 4, (0, 4)),
    ],
)
def test_which_layers_are_read(
    target: Any, tmp_path: Path, ids: Any, layers: int, taps: Any
) -> None:
    """From a 1 on they name layers by their outputs, else by what is in front of them."""
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids} if ids else {}}
    folder = write_eagle(tmp_path / "eagle", 3, taps=len(ids or "abc"), config=config)
    backend = target()
    found = net(folder, backend)
    assert found.taps == (taps or (2, layers // 2, layers - 3))
    assert set(found.taps) <= set(backend.taps)


def test_layers_that_others_listen_to_stay_tapped(target: Any, words: Any, tmp_path: Path) -> None:
    backend = target()
    backend.tap([3])
    one = reading(net(write_eagle(tmp_path / "eagle", 3), backend))
    assert set(backend.taps) == {0, 1, 2, 3}
    feed(backend, backend.open(), words(9))
    one.begin(words(9))
    assert one.read() is not None


# what is refused, by name


def tensor(*shape: int, dtype: str = "float32") -> Any:
    return torch.zeros(*shape, dtype=getattr(torch, dtype))


REFUSED: dict[str, tuple[int, dict[str, Any], type[Exception], str]] = {
    "width": (1, {"width": 32, "theirs": 32}, PairMismatchError, r"hidden states of 32.*has.*64"),
    "target's width": (
        3, {"config": {"target_hidden_size": 128}}, PairMismatchError, "hidden states of 128",
    ),
    "vocabulary": (1, {"vocab": 300}, PairMismatchError, "a vocabulary of 300"),
    "no head for its width": (3, {"width": 32}, PairMismatchError, "embeddings of 32"),
    "layers": (
        3,
        {"config": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}}},
        PairMismatchError,
        r"behind layers \[2, 16, 29\]",
    ),
    "ids of layers": (
        3,
        {"config": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "low"}}},
        ModelFileError,
        "eagle_aux_hidden_state_layer_ids is 'low'",
    ),
    "another kind of 3": (
        3,
        {"config": {"eagle_config": {"use_aux_hidden_state": False}}},
        ModelFileError,
        "last hidden state only",
    ),
    "shape": (
        1, {"replace": {"layers.0.mlp.up_proj.weight": "shape"}}, ModelFileError,
        r"layers.0.mlp.up_proj.weight is \[7, 64\] of float32 instead of \[80, 64\]",
    ),
    "fc": (3, {"taps": 3, "theirs": 48}, ModelFileError, r"fc.weight is \[64, 144\].*\[64, 192\]"),
    "dtype": (
        1, {"replace": {"fc.weight": "int8"}}, ModelFileError, "fc.weight is .* of int8; quantised",
    ),
    "missing": (3, {"replace": {"norm.weight": None}}, ModelFileError, "no weight norm.weight"),
    "unknown": (
        3, {"replace": {"fc_norm.weight": "one"}}, ModelFileError, "weight fc_norm.weight",
    ),
    "no d2t": (3, {"replace": {"d2t": None}}, ModelFileError, "no d2t"),
    "d2t of another size": (3, {"replace": {"d2t": "one"}}, ModelFileError, "d2t is"),
    "d2t out of the vocabulary": (
        3, {"replace": {"d2t": "far"}}, ModelFileError, "d2t does not lead to",
    ),
    "d2t against t2d": (3, {"replace": {"d2t": "zero"}}, ModelFileError, "contradict"),
    "no layers": (
        1,
        {"layers": 0, "replace": {}},
        ModelFileError,
        "its layers are none",
    ),
    "heads": (1, {"config": {"num_key_value_heads": 3}}, ModelFileError, "4 heads do not share 3"),
    "config": (1, {"config": {"hidden_size": "64"}}, ModelFileError, "hidden_size as '64'"),
    "activation": (1, {"config": {"rms_norm_eps": 5}}, ModelFileError, "rms_norm_eps is 5"),
    "base model": (1, {"embeddings": "other"}, PairMismatchError, "embeddings it was trained on"),
}  # fmt: skip


def made(value: Any) -> Any:
    """Of the name of a tensor, since torch may be absent where this file is read."""
    far = torch.full((DRAFTED,), 1000)
    named = {
        "shape": tensor(7, 64),
        "int8": tensor(64, 128, dtype="int8"),
        "one": tensor(64),
        "far": far,
        "zero": torch.zeros(DRAFTED, dtype=torch.long),
        "other": torch.randn(VOCAB, 64, generator=torch.Generator().manual_seed(1)),
    }
    if isinstance(value, dict) and all(isinstance(v, (str, type(None))) for v in value.values()):
        return {name: named[v] if v else None for name, v in value.items()}
    return named[value] if isinstance(value, str) else value


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name(target: Any, tmp_path: Path, name: str) -> None:
    version, changes, kind, said = REFUSED[name]
    told = {k: v if k == "config" else made(v) for k, v in changes.items()}
    folder = write_eagle(tmp_path / "eagle", version, **told)
    with pytest.raises(kind, match=said) as caught:
        net(folder, target())
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_what_is_no_checkpoint_is_refused_by_name(target: Any, tmp_path: Path) -> None:
    backend = target()

    def refused(folder: Path, kind: type[Exception], said: str) -> None:
        with pytest.raises(kind, match=said) as caught:
            net(folder, backend)
        assert "\n" not in str(caught.value)

    refused(tmp_path / "none", ModelNotFoundError, "no folder")
    folder = write_eagle(tmp_path / "eagle", 1)
    weights = folder / "model.safetensors"
    (folder / "pytorch_model.bin").write_bytes(weights.read_bytes())
    weights.rename(folder / "kept")
    refused(folder, ModelFileError, "pytorch_model.bin, a pickle")
    (folder / "pytorch_model.bin").unlink()
    refused(folder, ModelFileError, "holds no weights")
    weights.write_bytes((folder / "kept").read_bytes()[:-9])
    refused(folder, ModelFileError, "cannot read")
    for text, said in (("{", "cannot read"), ("[]", "no configuration")):
        (folder / "config.json").write_text(text)
        refused(folder, ModelFileError, said)
    (folder / "config.json").unlink()
    refused(folder, ModelFileError, "no config.json")


def test_embeddings_of_the_target_are_held_once(target: Any, tmp_path: Path) -> None:
    backend = target()
    own = backend.embed(range(VOCAB)).clone()
    same = net(write_eagle(tmp_path / "same", 1, embeddings=own.half()), backend)
    assert "embed_tokens.weight" not in same.files.weights
    trained = own + 0.3 * own.abs().mean() * torch.randn(own.shape)
    other = net(write_eagle(tmp_path / "other", 3, embeddings=trained), backend)
    assert "embed_tokens.weight" in other.files.weights
    assert other.size() > same.size()


# its cache, and what the passes of the target leave behind


def fresh_law(other: Any, folder: Path, text: Sequence[int]) -> Any:
    """What layers that are opened now say behind a text, over a backend that read only this."""
    found, seq = net(folder, other), other.open()
    try:
        feed(other, seq, text[:-1], 64)
        one = reading(found)
        one.begin(text)
        return one.read().logits()
    finally:
        found.close()
        other.drop(seq)


def assert_near(found: Any, expected: Any) -> None:
    had = ~np.isinf(expected)
    assert np.array_equal(had, ~np.isinf(found))
    assert np.abs(found[had] - expected[had]).max() < 1e-3


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("leaves", [1, 8])
def test_after_every_step_the_layers_are_those_of_a_fresh_context(
    target: Any, words: Any, tmp_path: Path, version: int, leaves: int
) -> None:
    backend, other = target(packed=False), target(packed=False, max_seqs=1)
    folder = fitted(tmp_path, backend, words(20), version)
    one = reading(net(folder, backend), chunk=7)
    looked: list[int] = []

    class Watched(Eagle):
        def observe(self, accepted: Sequence[int], verdict: Any) -> None:
            super().observe(accepted, verdict)
            text = loop.sequence.tokens
            law = one.read()
            assert law is not None
            assert one.read_up_to == tuple(range(len(text) - 1))
            assert_near(law.logits(), fresh_law(other, folder, text))
            looked.append(verdict.accepted)

    loop = Loop(backend)
    eagle = Watched(one, leaves=leaves, p_min=0.0, floor=0.0, depth=3, width=3)
    answer = loop.answer(words(20), [eagle], max_tokens=16)
    assert not answer.stats.notes
    assert 0 < answer.stats.accepted < answer.stats.drafted
    assert len(looked) == len(answer.verdicts)
    assert any(v.draft.parents is not None for v in answer.verdicts) == (leaves > 1)
    # a turn that shares most of the text, and one that shares little
    for prompt in ([*words(20), *answer.tokens[:3], 7, 8], [*words(20)[:5], 1, 2, 3]):
        looked.clear()
        answer = loop.answer(prompt, [eagle], max_tokens=6)
        assert not answer.stats.notes
        assert looked


def fitted(tmp_path: Path, backend: Any, prompt: Sequence[int], version: int) -> Path:
    """A checkpoint whose last matrix knows the target's own answer by heart, as far as it goes."""
    from safetensors.torch import load_file, save_file

    plain = Loop(backend)
    answer = plain.answer(prompt, max_tokens=40)
    plain.sequence.close()
    text = [*prompt, *answer.tokens]
    folder = write_eagle(tmp_path / f"fitted{version}", version, drafted=VOCAB)
    found = net(folder, backend)
    seq, n = backend.open(), len(text) - 2
    feed(backend, seq, text, 64)
    inner: list[Any] = []
    down = found._layers[0]._down

    def watched(rows: Any) -> Any:
        inner.append(rows)
        return down(rows)

    found._layers[0]._down = watched
    with torch.inference_mode():
        ((begin, _, rows),) = found.trail.since(text, 0)
        assert begin == 0
        seen = torch.ones(n, n, dtype=torch.bool).tril()
        caches = found.caches()
        features = found.run(rows.between(0, n), text[1 : n + 1], range(n), seen, caches)
        if version == 3:
            name, given = "lm_head.weight", found._norm(features)
            wanted = 20.0 * torch.nn.functional.one_hot(torch.tensor(text[2:]), VOCAB).float()
        else:
            # the head is the target's: its own row is what gives a token the most
            name, given = "layers.0.mlp.down_proj.weight", inner[0]
            head = backend.inner.get_output_embeddings().weight[text[2:]]
            wanted = 4.0 * head - (features - down(inner[0]))
    weights = load_file(folder / "model.safetensors")
    solved = torch.linalg.lstsq(given.double().clone(), wanted.double().clone()).solution.T
    weights[name] = solved.float().contiguous()
    save_file(weights, folder / "model.safetensors")
    found.close()
    backend.drop(seq)
    return folder


@pytest.mark.parametrize(
    ("kind", "leaves"), [("llama", 8), ("gemma3", 8), ("mistral", 1), ("qwen2", 1)]
)
def test_with_its_drafts_the_text_is_that_of_plain_decoding(
    target: Any, words: Any, tmp_path: Path, kind: str, leaves: int
) -> None:
    backend = target(kind)
    prompt = words(25)
    folder = fitted(tmp_path, backend, prompt, 3)
    plain = Loop(backend)
    expected = plain.answer(prompt, max_tokens=60).tokens
    plain.sequence.close()
    eagle = Eagle(reading(net(folder, backend)), leaves=leaves, p_min=0.0, floor=0.0)
    answer = Loop(backend).answer(
        prompt, [eagle], controller=FixedController(12, match_factor=0.0), max_tokens=60
    )
    assert answer.tokens == expected
    assert not answer.stats.notes
    assert 0 < answer.stats.accepted < answer.stats.drafted


def test_sampled_chains_over_the_real_layers_have_a_law_of_their_own(
    target: Any, words: Any, tmp_path: Path
) -> None:
    backend = target()
    eagle = Eagle(reading(net(write_eagle(tmp_path / "eagle", 3), backend)), p_min=0.0)
    params = SamplingParams(temperature=1.0, top_p=0.9)
    answer = Loop(backend).answer(words(12), [eagle], params=params, max_tokens=12)
    assert not answer.stats.notes
    draft = answer.verdicts[0].draft
    for token, q in zip(draft.tokens, draft.q, strict=True):
        assert q is not None
        assert q.shape == (VOCAB,)
        assert q[token] > 0
        assert q.sum() == pytest.approx(1.0)
        assert np.count_nonzero(q) <= DRAFTED


def test_a_cancel_is_heard_between_the_chunks_of_a_long_prompt(
    target: Any, words: Any, tmp_path: Path
) -> None:
    backend = target()
    one = reading(net(write_eagle(tmp_path / "eagle", 1), backend), chunk=16)
    text = words(60)
    feed(backend, backend.open(), text)
    passes: list[int] = []
    one.spent = lambda _seconds, rows: passes.append(rows)
    one.begin(text, lambda: len(passes) == 2)
    with pytest.raises(CancelledError):
        one.read()
    one.end()
    assert passes == [16, 16]
    # what was read counts
    one.begin(text)
    one.read()
    assert passes == [16, 16, 16, 11]
    assert one.read_up_to == tuple(range(59))


def test_a_pass_that_fails_leaves_the_cache_as_it_was(
    target: Any, words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = target()
    found = net(write_eagle(tmp_path / "eagle", 1), backend)
    one = reading(found)
    text = words(20)
    feed(backend, backend.open(), text)
    one.begin(text)
    before = one.read().logits()
    run = found.run

    def failing(*given: Any) -> Any:
        run(*given)
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(found, "run", failing)
    with pytest.raises(DecodeError, match="2 rows on an EAGLE layer failed: out of memory"):
        one.grow([-1, -1], [1, 2])
    monkeypatch.undo()
    assert one.grow([-1, -1], [1, 2])
    assert one.grow([1], [3])
    one.cut()
    assert np.array_equal(one.read().logits(), before)


def test_hidden_states_that_nobody_saw_are_left_out(
    target: Any, words: Any, tmp_path: Path
) -> None:
    backend = target()
    text = words(40)
    seq = backend.open()
    feed(backend, seq, text[:25])
    backend.save(seq, tmp_path / "kept")
    one = reading(net(write_eagle(tmp_path / "eagle", 1), backend))
    one.begin(text[:26])
    assert one.read() is None
    later = backend.load(tmp_path / "kept")
    feed(backend, later, text[25:])
    one.begin(text)
    assert one.read() is not None
    assert one.read_up_to == tuple(range(25, 39))


def test_rows_are_found_by_their_tokens_in_whichever_sequence(
    target: Any, words: Any, tmp_path: Path
) -> None:
    backend = target()
    found = net(write_eagle(tmp_path / "eagle", 3), backend)
    texts = [words(30), [*words(10), *words(40)[20:]]]
    seqs = [backend.open(), backend.open()]
    for at in range(0, 30, 10):
        for seq, text in zip(seqs, texts, strict=True):
            feed(backend, seq, text[at : at + 10])
    laws = []
    for text in texts:
        one = reading(found)
        one.begin(text)
        laws.append(one.read().logits())
        assert one.read_up_to == tuple(range(len(text) - 1))
    had = ~np.isinf(laws[0])
    assert np.abs(laws[0][had] - laws[1][had]).max() > 0.1
    # one that goes on in another way than it did
    backend.rollback(seqs[0], 12)
    feed(backend, seqs[0], [3, 4, 5])
    one = reading(found)
    one.begin([*texts[0][:12], 3, 4, 5])
    assert one.read() is not None
    one.begin(texts[0])
    assert one.read() is None


def test_a_copied_sequence_has_its_beginning_in_another(
    target: Any, words: Any, tmp_path: Path
) -> None:
    backend = target()
    folder = write_eagle(tmp_path / "eagle", 3)
    found, text = net(folder, backend), words(40)
    first = backend.open()
    feed(backend, first, text[:30])
    second = backend.fork(first)
    backend.rollback(second, 20)
    feed(backend, second, [7, *text[21:40]])
    one = reading(found, chunk=8)
    one.begin([*text[:20], 7, *text[21:]])
    law = one.read()
    assert one.read_up_to == tuple(range(39))
    expected = fresh_law(target(packed=False, max_seqs=1), folder, [*text[:20], 7, *text[21:]])
    assert_near(law.logits(), expected)


def test_the_branch_that_stood_is_kept_though_others_hold_the_same_token(
    target: Any, words: Any, tmp_path: Path
) -> None:
    backend = target()
    folder = write_eagle(tmp_path / "eagle", 1)
    one, text, seq = reading(net(folder, backend)), words(12), backend.open()
    feed(backend, seq, text[:-1])
    one.begin(text)
    one.read()
    backend.forward([Rows(seq, [text[-1], 5, 9, 9, 9], parents=[-1, 0, 1, 0, 3])])
    backend.commit_path(seq, [0, 3])
    one.commit([9, 40])
    expected = fresh_law(target(packed=False, max_seqs=1), folder, [*text, 9, 40])
    assert_near(one.read().logits(), expected)
    # the next pass goes on behind it
    feed(backend, seq, [40])
    one.commit([41])
    expected = fresh_law(target(packed=False, max_seqs=1), folder, [*text, 9, 40, 41])
    assert_near(one.read().logits(), expected)


def test_a_listener_that_fails_costs_drafts_only(
    target: Any, words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = target()
    found = net(write_eagle(tmp_path / "eagle", 3), backend)

    def failing(_: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(found.trail, "_fuse", failing)
    eagle = Eagle(reading(found), leaves=4)
    answer = Loop(backend).answer(words(9), [eagle], max_tokens=5)
    assert len(answer.tokens) == 5
    assert not answer.stats.drafted


def test_closed_it_listens_no_more(target: Any, words: Any, tmp_path: Path) -> None:
    from agentspec.backends.torch_eagle import pass_seconds

    backend = target()
    found = net(write_eagle(tmp_path / "eagle", 1), backend)
    assert 0 < pass_seconds(found) < 5
    one = reading(found)
    found.close()
    feed(backend, backend.open(), words(9))
    one.begin(words(9))
    assert one.read() is None
    assert not backend._listeners
    one.close()


def test_the_model_that_a_file_names_counts(target: Any, tmp_path: Path) -> None:
    backend = target()
    identity = backend.identity
    told: list[tuple[dict[str, Any], str]] = [
        ({"base_model_name_or_path": "some/Other-7B"}, "trained for some/Other-7B"),
        ({"speculators_config": {"verifier": {"name_or_path": "a/other"}}}, "trained for a/other"),
        ({"base_model_name_or_path": "some/llama", "rope_scaling": None}, ""),
        ({"base_model_name_or_path": "other", "base_identity": identity}, ""),
    ]
    for number, (config, said) in enumerate(told):
        folder = write_eagle(tmp_path / str(number), 1, config=config)
        if said:
            with pytest.raises(PairMismatchError, match=said):
                net(folder, backend)
        else:
            assert net(folder, backend).version == 1


COPIED = (
    "SELECT name, age FROM people WHERE city = 'London' ORDER BY age;\n",
    "The cat sat on the mat. The dog lay on the rug. The bird sang in the tree.\n",
    '{"name": "Ada", "age": 36, "city": "London"},\n',
    "1. Mix the flour with water.\n2. Let the dough rest.\n3. Bake it.\n",
)


@pytest.mark.weights
def test_smollm2_says_with_its_drafts_what_it_says_without(weights: Any, tmp_path: Path) -> None:
    """The checkpoint is a random one, but for a head that knows the prompts by heart."""
    from agentspec.backends.torch import TorchBackend, TorchSettings
    from agentspec.backends.torch_eagle import EagleReading

    backend = TorchBackend(weights("smollm2-135m"), TorchSettings(n_ctx=1024, n_threads=1))
    try:
        prompts = [backend.tokenizer.encode(text * 5) for text in COPIED]
        ids = sorted({token for prompt in prompts for token in prompt})
        folder = write_eagle(
            tmp_path / "eagle", 3, width=576, theirs=576, vocab=backend.vocab_size, drafted=len(ids)
        )
        by_heart(folder, backend, prompts, ids)
        found = net(folder, backend)
        said = accepted = drafted = branched = 0
        for prompt in prompts:
            eagle = Eagle(EagleReading(found), leaves=8, width=3, depth=4, total=10, floor=0.05)
            loop = Loop(backend)
            answer = loop.answer(prompt, [eagle], max_tokens=270)
            assert not answer.stats.notes
            loop.sequence.close()
            # plain decoding takes the arg-max of every row, and a row follows from its text
            text = [*prompt, *answer.tokens]
            seq = backend.open()
            for at in range(0, len(text) - 1, 256):
                rows = backend.forward([Rows(seq, text[at : at + 256], logits_from=0)])
                for i in range(max(0, len(prompt) - 1 - at), min(256, len(text) - 1 - at)):
                    if rows.argmax(i) != text[at + i + 1]:
                        row = rows.logits(i)
                        assert row.max() - row[text[at + i + 1]] < 1e-3
            backend.drop(seq)
            said += len(answer.tokens)
            accepted += answer.stats.accepted
            drafted += answer.stats.drafted
            branched += sum(v.draft.parents is not None for v in answer.verdicts)
        assert said >= 1000
        assert 100 < accepted < drafted
        assert branched > 10
    finally:
        backend.close()


def by_heart(folder: Path, backend: Any, texts: Sequence[Any], ids: Sequence[int]) -> None:
    """Give a checkpoint a head that knows these texts, and their tokens as vocabulary."""
    from safetensors.torch import load_file, save_file

    number = {token: i for i, token in enumerate(ids)}
    weights = load_file(folder / "model.safetensors")
    weights["d2t"] = torch.tensor(ids) - torch.arange(len(ids))
    weights.pop("t2d", None)
    save_file(weights, folder / "model.safetensors")
    found = net(folder, backend)
    given, wanted = [], []
    for text in texts:
        seq, n = backend.open(), len(text) - 4
        feed(backend, seq, text, 256)
        with torch.inference_mode():
            ((_, _, kept),) = found.trail.since(text, 0)
            features, seen = kept.between(0, n), torch.ones(n, n, dtype=torch.bool).tril()
            own, caches = torch.eye(n, dtype=torch.bool), found.caches()
            # drafts of three tokens from every place at once, each behind its own text
            for depth in range(3):
                tokens, places = text[1 + depth : n + 1 + depth], range(depth, n + depth)
                features = found.run(features, tokens, places, seen, caches)
                given.append(found._norm(features).double().clone())
                wanted += [number[token] for token in text[2 + depth : n + 2 + depth]]
                seen = torch.cat([seen, own], dim=1)
        backend.drop(seq)
    found.close()
    hot = 20.0 * torch.nn.functional.one_hot(torch.tensor(wanted), len(ids)).double()
    rows = torch.cat(given)
    # a little ridge: rows of a copied text are nearly, not quite, the same
    squared = rows.T @ rows + 3.0 * torch.eye(rows.shape[1]).double()
    weights["lm_head.weight"] = torch.linalg.solve(squared, rows.T @ hot).T.float().contiguous()
    save_file(weights, folder / "model.safetensors")
