"""SmolLM2 with drafts from its inside says what it says without them, over a thousand tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentspec.backends.base import Rows
from agentspec.control.controller import FixedController
from agentspec.engine.session import LiveSequence
from agentspec.propose.draft_model import DraftModel
from agentspec.propose.early_exit import ExitReading
from agentspec.propose.medusa import Medusa
from agentspec.testing.loop import Loop
from agentspec.types import Proposer

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.head_files import as_vllm, write_heads  # noqa: E402

# a minute each where nothing else runs, many where the cores are shared
pytestmark = [pytest.mark.weights, pytest.mark.timeout(1800)]

CHUNK, LAYER, EACH = 256, 27, 260
PROMPTS = (
    "def area(width: int, height: int) -> int:\n    return width * height\n\n\n" * 4,
    "The cat sat on the mat. The dog lay on the rug. The bird sang in the tree.\n" * 4,
    '{"name": "Ada", "age": 36, "city": "London"},\n' * 4,
    "The history of the city begins with a small harbour at the mouth of the river, where",
)


@pytest.fixture(scope="module")
def smollm2(weights: Any) -> Iterator[Any]:
    from agentspec.backends.torch import TorchBackend, TorchSettings

    settings = TorchSettings(n_ctx=1024, n_threads=2, dtype="float32", chunk=CHUNK)
    backend = TorchBackend(weights("smollm2-135m"), settings)
    try:
        yield backend
    finally:
        backend.close()


def states_of(backend: Any, text: Sequence[int]) -> Any:
    """The hidden state of every token, [tokens, width], in double precision."""
    seq, found = backend.open(), []
    for at in range(0, len(text), CHUNK):
        output = backend.forward([Rows(seq, text[at : at + CHUNK], hidden=True)])
        found.append(output.features().last.double().clone())
    backend.drop(seq)
    return torch.cat(found)


def assert_greedy(backend: Any, prompt: Sequence[int], answer: Sequence[int]) -> None:
    """Every token is the arg-max of its row, which follows from the text alone."""
    text, seq = [*prompt, *answer], backend.open()
    for at in range(0, len(text) - 1, CHUNK):
        rows = backend.forward([Rows(seq, text[at : at + CHUNK], logits_from=0)])
        for i in range(max(0, len(prompt) - 1 - at), min(CHUNK, len(text) - 1 - at)):
            if rows.argmax(i) != text[at + i + 1]:
                row = rows.logits(i)
                assert row.max() - row[text[at + i + 1]] < 1e-3, "no tie, another token"
    backend.drop(seq)


def run(backend: Any, make: Callable[[LiveSequence], Proposer]) -> tuple[int, int, int, int]:
    """Tokens said, accepted and drafted, and trees among the passes."""
    said = accepted = drafted = trees = 0
    for text in PROMPTS:
        prompt = backend.tokenizer.encode(text)
        loop = Loop(backend)
        # few rows: each costs, in float32 on a CPU
        answer = loop.answer(
            prompt,
            [make(loop.sequence)],
            controller=FixedController(3, match_factor=0.0),
            max_tokens=EACH,
        )
        loop.sequence.close()
        assert not answer.stats.notes
        assert_greedy(backend, prompt, answer.tokens)
        said, accepted = said + len(answer.tokens), accepted + answer.stats.accepted
        drafted += answer.stats.drafted
        trees += sum(verdict.draft.parents is not None for verdict in answer.verdicts)
    return said, accepted, drafted, trees


def test_with_an_early_exit(smollm2: Any) -> None:
    def make(sequence: LiveSequence) -> Proposer:
        reading = ExitReading(smollm2, lambda: sequence, lambda: LAYER)
        return DraftModel(
            target_vocab=smollm2.vocab_size, k=2, p_min=0.6, reading=reading, name="early_exit"
        )

    said, accepted, drafted, _ = run(smollm2, make)
    assert said >= 1000
    assert 20 < accepted < drafted


def test_with_medusa_heads(smollm2: Any, tmp_path: Path) -> None:
    """The heads are fitted to what the prompts say, so that some of their guesses stand."""
    from agentspec.backends.torch_medusa import MedusaHeads

    texts = [smollm2.tokenizer.encode(text * 2) for text in PROMPTS]
    ids = sorted({token for text in texts for token in text})
    number = {token: i for i, token in enumerate(ids)}
    seen = [states_of(smollm2, text) for text in texts]
    width = seen[0].shape[-1]
    tensors: dict[str, Any] = {}
    for head in range(3):
        given = torch.cat([s[: len(s) - head - 2] for s in seen])
        wanted = [number[token] for text in texts for token in text[head + 2 :]]
        goal = torch.nn.functional.one_hot(torch.tensor(wanted), len(ids)).double()
        eye = 1e-2 * torch.eye(width, dtype=torch.double)
        solved = torch.linalg.solve(given.T @ given + eye, given.T @ goal).T
        tensors[f"{head}.0.linear.weight"] = torch.zeros(width, width)
        tensors[f"{head}.0.linear.bias"] = torch.zeros(width)
        tensors[f"{head}.1.weight"] = 12.0 * solved.float()
    path = write_heads(
        tmp_path / "medusa.safetensors",
        {**as_vllm(tensors), "token_map": torch.tensor(ids)},
        base_identity=smollm2.identity,
    )
    heads = MedusaHeads(path, smollm2)

    def make(sequence: LiveSequence) -> Proposer:
        return Medusa(heads, lambda: sequence, leaves=3)

    said, accepted, drafted, trees = run(smollm2, make)
    assert said >= 1000
    assert 100 < accepted < drafted
    assert trees > 20
