"""Real models of several vocabularies draft for one another: the text is the target's own."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.control.controller import FixedController
from agentspec.errors import PairMismatchError
from agentspec.propose._transcript import Transcript
from agentspec.propose.longest import LongestMatch
from agentspec.propose.reencoded import ReencodedModel
from agentspec.testing.loop import Answer, Loop
from agentspec.types import Proposer

pytestmark = [pytest.mark.weights, pytest.mark.timeout(1800)]

SMALL = {"n_ctx": 1024, "chunk": 128}
# one class of row counts, so that no near tie is decided by how many rows a pass has
EXACT = {**SMALL, "type_k": "q8_0", "repack": False}
CODE = '''import json


def load(path: str) -> dict[str, object]:
    """Read a JSON file; a missing one is empty."""
    try:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle)
    except FileNotFoundError:
        return {}


def save(path: str, data: dict[str, object]) -> None:
'''


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_it_drafts_for_a_target_of_another_vocabulary(load: Any, weights: Any, name: str) -> None:
    target = load(weights("qwen2.5-coder-0.5b"), **EXACT)
    small = load(weights(name), **SMALL)
    prompt, loop = target.tokenizer.encode(CODE), Loop(target)
    plain = loop.answer(prompt, max_tokens=200)
    model = ReencodedModel(small, target.tokenizer, k=6)
    model.ends = target.tokenizer.eos_ids
    lookup = LongestMatch(min_match=3)
    both: list[list[Proposer]] = [[model], [lookup, model]]
    for proposers in both:
        controller = FixedController(6, match_factor=0.0)
        fast = loop.answer(prompt, proposers, max_tokens=200, controller=controller)
        assert fast.tokens == plain.tokens
        assert not fast.stats.notes
        drafted, accepted = _of(fast, "draft_model")
        print(f"\n{name}: {accepted} of {drafted} accepted, {len(fast.verdicts)} passes")
        assert accepted > 20
        assert accepted > 0.25 * drafted


def _of(answer: Answer, source: str) -> tuple[int, int]:
    drafted = sum(v.draft.sources[: v.judged].count(source) for v in answer.verdicts)
    return drafted, sum(v.sources.count(source) for v in answer.verdicts)


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_a_history_that_grows_is_told_as_it_would_be_at_once(
    load: Any, weights: Any, name: str
) -> None:
    target = load(weights("qwen2.5-coder-0.5b"), n_ctx=64, chunk=8).tokenizer
    own = load(weights(name), n_ctx=64, chunk=8).tokenizer
    text = CODE + "    # Größe: 3 €, 😀 und so weiter\n    data = {'a': [1, 22, 333]}\n\n\n"
    tokens = [*target.encode_special("<|im_start|>user\n"), *target.encode(text * 3)]
    grown = Transcript(target, own)
    for at in range(0, len(tokens), 3):
        grown.add(tokens[at : at + 3])
        grown.follow()
        assert not any(map(own.is_special, grown.own[1:]))
    whole = "<|im_start|>user\n" + text * 3
    assert b"".join(map(own.piece, grown.own[own.adds_bos :])) == whole.encode()
    bos = [own.bos_id] if own.adds_bos else []
    assert grown.own == [*bos, *own.encode(whole)]


def test_the_engine_loads_such_a_pair_when_told(
    weights: Any, monkeypatch: Any, tmp_path: Any
) -> None:
    from agentspec.loading import load_engine

    monkeypatch.setattr("agentspec.control.cost_store._default_folder", lambda: tmp_path)
    told: dict[str, Any] = {"draft": str(weights("smollm2-135m")), "n_ctx": 512, "n_gpu_layers": 0}
    with pytest.raises(PairMismatchError, match="set draft_reencode"):
        load_engine(weights("qwen2.5-coder-0.5b"), **told)
    with load_engine(weights("qwen2.5-coder-0.5b"), draft_reencode=True, **told) as engine:
        answer = engine.complete([{"role": "user", "content": "Say hello."}], max_tokens=24)
    assert answer.speculation is not None
    assert not answer.speculation.notes
