"""Whole trainings of a tiny target: what falls, what is the same again, what the folder holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rows
from agentspec.errors import ConfigError, InvalidRequestError, ModelFileError, UnsupportedError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

KINDS = ("medusa", "eagle", "exit")


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


@pytest.fixture(scope="module")
def trained(
    train: Any, plan: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, dict[str, Any]]]:
    done: dict[str, tuple[Path, dict[str, Any]]] = {}
    root = tmp_path_factory.mktemp("trained")

    def find(kind: str) -> tuple[Path, dict[str, Any]]:
        if kind not in done:
            done[kind] = root / kind, train(plan(kind), root / kind)
        return done[kind]

    return find


class Killed(Exception):
    pass


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_and_the_folder_says_how_it_was_made(
    trained: Any, target: Any, kind: str
) -> None:
    folder, report = trained(kind)
    losses = report["training"]["held_out_loss"]
    assert min(loss for _, loss in losses) < losses[0][1]
    config = told(folder)
    assert config["base_model_name_or_path"] == "tiny-target"
    assert config["base_identity"] == target.identity
    assert config["dtype"] == "float32"
    ours = config["agentspec"]
    found = weights(folder)
    assert ours["shapes"] == {name: list(tensor.shape) for name, tensor in found.items()}
    assert ours["training"]["steps"] == report["training"]["of_steps"] == 39
    assert ours["training"]["ended"] == "all steps made"
    assert ours["plan"]["seed"] == 0
    assert {"trained", "chance"} < set(ours["held_out"])
    assert not (folder / "unfinished").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_broken_off_and_continued_is_the_same(
    trained: Any, train: Any, plan: Any, tmp_path: Path, kind: str
) -> None:
    """Nothing is written when it ends: what is on disk is what a kill would leave."""
    whole, _ = trained(kind)
    for at in (5, 14):

        def bar(label: str, at: int = at) -> Callable[[int, int], None]:
            def tell(done: int, total: int) -> None:
                if label == "train" and done == at:
                    raise Killed

            return tell

        with pytest.raises(Killed):
            train(plan(kind), tmp_path / "out", bar=bar, save_every=0.0)
        assert not (tmp_path / "out" / "model.safetensors").exists()
    train(plan(kind), tmp_path / "out")
    again, expected = weights(tmp_path / "out"), weights(whole)
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())


def test_the_target_speaks_once(
    target: Any, plan: Any, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentspec.training.shards import Continuations

    train(plan("exit", epochs=1), tmp_path / "a")
    monkeypatch.setattr(Continuations, "_say", None)
    train(plan("medusa", epochs=1), tmp_path / "b")


def test_continuations_are_greedy(target: Any, windows: Any, tmp_path: Path) -> None:
    from agentspec.replay.store import ArrayStore
    from agentspec.training.shards import Continuations

    tokens, ends = Continuations(target, 12, ArrayStore(tmp_path)).of(windows[:3])
    assert tokens.shape == (3, 44)
    for row, end in zip(tokens.tolist(), ends.tolist(), strict=True):
        seq = target.open()
        output = target.forward([Rows(seq, row[:-1], logits_from=31)])
        best = [output.argmax(i) for i in range(12)]
        target.drop(seq)
        assert row[32:end] == best[: end - 32]
        eos = target.tokenizer.eos_ids
        assert not set(row[32 : end - 1]) & eos
        assert end == 44 or row[end - 1] in eos


def test_it_stops_when_the_held_out_loss_does_not_fall(
    train: Any, plan: Any, tmp_path: Path
) -> None:
    """At this rate the loss leaps, and the best are the weights that were there at first."""
    report = train(plan("exit", rate=0.9, epochs=50, patience=2), tmp_path / "out")
    training = report["training"]
    assert training["steps"] < training["of_steps"]
    assert training["ended"] == "no better for 2 rounds"
    rounds = [step for step, _ in training["held_out_loss"]]
    assert training["steps"] - training["best_step"] == 2 * (rounds[1] - rounds[0])


def test_time_that_is_up_leaves_the_best_and_can_go_on(
    trained: Any, train: Any, plan: Any, tmp_path: Path
) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    report = train(plan("exit", seconds=60.0), tmp_path / "out", clock=clock)
    assert report["training"]["ended"] == "the time was up"
    assert 0 < report["training"]["steps"] < 39
    assert weights(tmp_path / "out")
    train(plan("exit"), tmp_path / "out")
    again, expected = weights(tmp_path / "out"), weights(trained("exit")[0])
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())
    with pytest.raises(ConfigError, match="trained already"):
        train(plan("exit"), tmp_path / "out")


def test_states_on_disk_are_those_of_the_target(target: Any, windows: Any, tmp_path: Path) -> None:
    from agentspec.replay.store import ArrayStore
    from agentspec.training.shards import Continuations, Shards

    said = Continuations(target, 8, ArrayStore(None))
    first = Shards(target, [windows[:2], windows[2:4]], said, tmp_path)
    batch = first[1]
    path = tmp_path / "states-00001.safetensors"
    assert path.exists()
    text = batch.tokens[0].tolist()
    seq = target.open()
    states = target.forward([Rows(seq, text, hidden=True)]).features().last
    assert torch.allclose(batch.states[0], states, atol=1e-5)
    target.drop(seq)
    path.write_bytes(path.read_bytes()[:-9])
    again = Shards(target, [windows[:2], windows[2:4]], said, tmp_path)[1]
    assert torch.equal(again.states, batch.states)


def test_medusa_guesses_are_those_of_the_loaded_heads(trained: Any, target: Any) -> None:
    folder, _ = trained("medusa")
    medusa = pytest.importorskip("agentspec.backends.torch_medusa")
    heads = medusa.MedusaHeads(folder, target)
    try:
        assert (heads.count, heads.layers) == (3, 1)
        found = weights(folder)
        state = torch.randn(4, 64)
        moved = torch.nn.functional.linear(
            state, found["blocks.1.layers.0.weight"], found["blocks.1.layers.0.bias"]
        )
        expected = target.head(state + moved * torch.sigmoid(moved))
        assert torch.allclose(heads.logits(state)[1], expected, atol=1e-4)
    finally:
        heads.close()


def test_own_heads_are_written_one_by_one(
    train: Any, plan: Any, target: Any, tmp_path: Path
) -> None:
    train(plan("medusa", epochs=1, own_heads=True, blocks=2), tmp_path / "out")
    medusa = pytest.importorskip("agentspec.backends.torch_medusa")
    heads = medusa.MedusaHeads(tmp_path / "out", target)
    heads.close()
    found = weights(tmp_path / "out")
    assert found["lm_heads.2.weight"].shape == (target.vocab_size, 64)
    assert heads.layers == 2
    assert told(tmp_path / "out")["original_lm_head"] is False


def test_an_exit_is_loaded(trained: Any, target: Any) -> None:
    folder, report = trained("exit")
    exits = pytest.importorskip("agentspec.backends.torch_exit")
    adapter = exits.load_exit(folder, target)
    assert (adapter.layer, adapter.rank, adapter.width) == (1, 0, 64)
    rows = report["held_out"]
    plain = rows["untrained exit behind 1 of 3 layers"]
    assert rows["trained"]["acceptance_length"] > plain["acceptance_length"]
    assert rows["trained"]["acceptance_length"] > rows["chance"]["acceptance_length"]


def test_an_untrained_adapter_is_the_plain_exit(target: Any) -> None:
    from agentspec.training.exit import norm_weight

    target.tap([1])
    seq = target.open()
    try:
        rows = Rows(seq, list(range(60, 100)), hidden=True, exit_layer=1)
        found = target.forward([rows]).features()
        norm = norm_weight(found.taps[0], found.last)
    finally:
        target.drop(seq)
        target.tap([])
    assert torch.allclose(norm, target.inner.model.norm.weight, atol=1e-4)


def test_eagle_drafts_step_by_step_as_the_loaded_layer_does(
    trained: Any, target: Any, windows: Any
) -> None:
    """All origins at once in training; one origin, with a cache, where it is used."""
    folder, _ = trained("eagle")
    net_of = pytest.importorskip("agentspec.backends.torch_eagle_net")
    from agentspec.replay.store import ArrayStore
    from agentspec.training.eagle import EagleLayer, LayerShape
    from agentspec.training.head import FrozenHead
    from agentspec.training.shards import Continuations, Shards

    said = Continuations(target, 8, ArrayStore(None))
    batch = Shards(target, [windows[:1]], said, folder / "states")[0]
    inner = target.inner
    ours = EagleLayer(
        FrozenHead(inner), inner.get_input_embeddings(), LayerShape.of(inner.config),
        depth=3, steps=2,
    )  # fmt: skip
    ours.module.load_state_dict(weights(folder))
    with torch.no_grad():
        steps = list(ours._unrolled(batch, 3))
    net = net_of.EagleNet(folder, target)
    try:
        with torch.inference_mode():
            text, origin = batch.tokens[0].tolist(), 20
            caches = net.caches()
            seen = torch.tril(torch.ones(origin + 1, origin + 1, dtype=torch.bool))
            rows = net.run(
                batch.states[0, : origin + 1], text[1 : origin + 2], range(origin + 1), seen, caches
            )
            assert np.allclose(rows[-1], steps[0][0, origin], atol=1e-4)
            for s in (1, 2):
                rows = net.run(rows[-1:], [text[origin + 1 + s]], [origin + s], None, caches)
                assert np.allclose(rows[-1], steps[s][0, origin], atol=1e-4)
    finally:
        net.close()
        target.tap([])


# what is refused


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "draft"},
        {"kind": "medusa", "depth": 0},
        {"kind": "medusa", "tokens": 4, "depth": 4},
        {"kind": "medusa", "seconds": 0.0},
        {"kind": "medusa", "seconds": float("nan")},
        {"kind": "medusa", "rate": -1.0},
        {"kind": "medusa", "layer": 3},
        {"kind": "exit", "own_heads": True},
        {"kind": "exit", "rank": -1},
        {"kind": "eagle", "window": 3},
    ],
)
def test_wrong_options(options: dict[str, Any]) -> None:
    from agentspec.training.plan import Plan

    with pytest.raises(ConfigError) as caught:
        Plan(**options)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_trained(target: Any, train: Any, plan: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        train(plan("medusa", window=128), tmp_path / "a")
    with pytest.raises(ConfigError, match="behind 1 to 2 layers"):
        train(plan("exit", layer=3), tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        train(plan("exit"), tmp_path / "file" / "out")


def test_too_little_text(target: Any, plan: Any, tmp_path: Path) -> None:
    from agentspec.replay.store import ArrayStore
    from agentspec.training.run import train_heads

    with pytest.raises(InvalidRequestError, match="too few"):
        train_heads(target, [], plan("exit"), tmp_path / "out", store=ArrayStore(None))


def test_a_continued_training_keeps_its_settings(train: Any, plan: Any, tmp_path: Path) -> None:
    def bar(label: str) -> Callable[[int, int], None]:
        def tell(done: int, total: int) -> None:
            if label == "train" and done == 3:
                raise Killed

        return tell

    out = tmp_path / "out"
    with pytest.raises(Killed):
        train(plan("exit"), out, bar=bar, save_every=0.0)
    with pytest.raises(ConfigError, match=r"begun with rate 0\.005, not 0\.01"):
        train(plan("exit", rate=0.01), out)
    path = out / "unfinished" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelFileError, match="damaged"):
        train(plan("exit"), out)


def test_a_recurrent_target_is_refused(
    windows: Any, plan: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from agentspec.backends.torch import TorchBackend, TorchSettings
    from agentspec.replay.store import ArrayStore
    from agentspec.training.run import train_heads
    from tests.torch_models import write_tiny

    folder = write_tiny(tmp_path / "model", "mamba")
    backend = TorchBackend(folder, TorchSettings(n_ctx=128, n_threads=1, device="cpu"))
    try:
        with pytest.raises(UnsupportedError, match="recurrent"):
            train_heads(backend, windows, plan("medusa"), tmp_path / "o", store=ArrayStore(None))
    finally:
        backend.close()


def test_what_is_measured_is_what_an_independent_count_finds(
    trained: Any, model: Path, windows: Any
) -> None:
    """Greedy continuations, hidden states and heads from transformers and the file alone."""
    import transformers

    from agentspec.training.windows import held_out

    folder, report = trained("medusa")
    found = weights(folder)
    plain = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
    origins, agree, accepted = 0, [0, 0, 0], 0
    for window in held_out(windows)[1]:
        text = list(window.ids)
        with torch.no_grad():
            while len(text) < len(window.ids) + 24 and text[-1] != 258:
                text.append(int(plain(torch.tensor([text])).logits[0, -1].argmax()))
            states = plain(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0]
            for t in range(len(window.ids) - 1, len(text) - 4):
                right = []
                for i in range(3):
                    moved = torch.nn.functional.linear(
                        states[t],
                        found[f"blocks.{i}.layers.0.weight"],
                        found[f"blocks.{i}.layers.0.bias"],
                    )
                    best = plain.lm_head(states[t] + torch.nn.functional.silu(moved)).argmax()
                    right.append(int(best) == text[t + 2 + i])
                origins += 1
                agree = [a + b for a, b in zip(agree, right, strict=True)]
                accepted += right.index(False) if False in right else 3
    measured = report["held_out"]["trained"]
    assert measured["origins"] == origins > 0
    assert measured["agreement"] == pytest.approx([n / origins for n in agree], abs=0.02)
    assert measured["acceptance_length"] == pytest.approx(1 + accepted / origins, abs=0.03)
