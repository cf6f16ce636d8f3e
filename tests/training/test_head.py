"""The frozen head, and a loss over a part of the vocabulary."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.errors import UnsupportedError

torch = pytest.importorskip("torch")


def test_the_head_is_that_of_the_target(target: Any) -> None:
    from agentspec.training.head import FrozenHead

    head = FrozenHead(target.inner)
    assert (head.vocab, head.width) == (target.vocab_size, 64)
    states = torch.randn(5, 64)
    logits = target.head(states)
    assert torch.allclose(head(states), logits, atol=1e-4)
    assert torch.allclose(head(states, torch.tensor([7, 3])), logits[:, [7, 3]], atol=1e-4)
    assert head.best(states).tolist() == logits.argmax(-1).tolist()
    with pytest.raises(UnsupportedError, match="no matrix"):
        FrozenHead(SimpleNamespace(get_output_embeddings=lambda: None, config=target.inner.config))


def test_scale_and_cap_of_the_logits_count() -> None:
    from agentspec.training.head import FrozenHead

    layer = torch.nn.Linear(4, 6, bias=True)
    told = SimpleNamespace(logits_scaling=2.0, final_logit_softcapping=3.0)
    config = SimpleNamespace(get_text_config=lambda decoder: told, model_type="x")
    head = FrozenHead(SimpleNamespace(get_output_embeddings=lambda: layer, config=config))
    states = torch.randn(3, 4)
    expected = torch.tanh(layer(states) / 2 / 3) * 3
    assert torch.allclose(head(states), expected, atol=1e-6)


def test_a_small_vocabulary_is_asked_whole() -> None:
    from agentspec.training.head import Vocabulary

    asked = Vocabulary(300, [1, 2], "cpu").ask(torch.tensor([5]), 0)
    assert asked.ids is None


def test_a_large_one_in_part_with_the_expectation_of_the_whole() -> None:
    """The corrected sum over a sample is that over all tokens, on average."""
    from agentspec.training.head import Vocabulary

    size, seen = 20_000, list(range(0, 600, 3))
    vocabulary = Vocabulary(size, seen, "cpu")
    labels = torch.tensor([[7, 19_999], [3, 3]])
    logits = torch.linspace(-1.0, 1.0, size, dtype=torch.float64)[torch.randperm(size)]
    sums = []
    for seed in range(40):
        asked = vocabulary.ask(labels, seed)
        assert set(seen) | {7, 19_999} <= set(asked.ids.tolist())
        assert torch.equal(asked.ids, asked.ids.unique())
        assert len(asked.ids) < 3_000
        sums.append(float((logits[asked.ids] + asked.shift).exp().sum()))
        again = vocabulary.ask(labels, seed)
        assert torch.equal(asked.ids, again.ids)
    assert sum(sums) / len(sums) == pytest.approx(float(logits.exp().sum()), rel=0.01)


def test_the_loss_over_all_is_the_cross_entropy(target: Any) -> None:
    from agentspec.training.head import Asked, FrozenHead

    head = FrozenHead(target.inner)
    states, labels = torch.randn(4, 64), torch.tensor([0, 9, 200, 263])
    expected = torch.nn.functional.cross_entropy(head(states), labels, reduction="none")
    assert torch.allclose(Asked(None, None).loss(head, states, labels), expected, atol=1e-5)
    every = Asked(torch.arange(head.vocab), torch.zeros(head.vocab))
    assert torch.allclose(every.loss(head, states, labels), expected, atol=1e-5)
