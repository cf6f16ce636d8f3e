"""A draft model of another vocabulary: the law of the text, and its cache, are the target's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.backends.base import Rollback
from agentspec.control.controller import Controller, CostAwareController, FixedController
from agentspec.control.cost import CostCurve
from agentspec.control.cost_draft import DraftCost
from agentspec.errors import CancelledError, DecodeError, SequenceLostError
from agentspec.propose.longest import LongestMatch
from agentspec.propose.reencoded import ReencodedModel
from agentspec.testing.chance import EnumeratedChance, Law, distance, enumerate_law
from agentspec.testing.loop import Loop
from agentspec.testing.scripted import ScriptedBackend, hashed_law
from agentspec.types import Proposer, SamplingParams
from tests.engine.test_interrupted import Bomb, Fragile
from tests.vocabularies import Vocabulary

# é and ü share their first byte; "abé" has three encodings in the one, five in the other
TARGET = Vocabulary(
    [b"a", b"b", b"ab", b"\xc3", b"\xa9", "é".encode(), b" "],
    special={7: b"</s>"},
    eos_ids=frozenset({7}),
)
OWN = Vocabulary(
    [b" ", b"b", b"a", b"ba", b"\xc3", b"\xa9", b"\xbc", b" a", b"bb"],
    special={9: b"<s>", 10: b"</s>"},
    bos=9,
    eos_ids=frozenset({10}),
)
PROMPT = [0, 1, 6]
EXACT = 1e-12
LAW = hashed_law(8, 3, scale=1.0)
CURVE = CostCurve.from_points({1: 1.0, 2: 1.1, 4: 1.4, 16: 2.0})

PARAMS = {
    "temperature": (SamplingParams(temperature=0.8), 3),
    "top-k": (SamplingParams(temperature=1.3, top_k=3), 5),
    "all": (SamplingParams(temperature=1.2, top_k=4, top_p=0.9, min_p=0.1), 4),
    "penalties": (
        SamplingParams(temperature=1.0, top_k=3, repetition_penalty=1.5, presence_penalty=0.7),
        5,
    ),
    "seed": (SamplingParams(temperature=1.0, top_k=3, seed=5), 5),
}


def target(seed: int = 3, **more: Any) -> ScriptedBackend:
    law = hashed_law(8, seed, scale=1.0)
    return ScriptedBackend(law, 8, tokenizer=TARGET, **more)


def near(seed: int, noise: float = 0.5) -> Callable[[Sequence[int]], Any]:
    """A draft model that has heard of the target: it writes mostly what that would draw next."""
    law, other = hashed_law(8, seed, scale=1.0), hashed_law(OWN.vocab_size, seed, scale=noise)

    def own(cached: Sequence[int]) -> Any:
        text = OWN.text(cached).decode("utf-8", "ignore")
        piece = TARGET.piece(int(law(TARGET.encode(text)).argmax()))
        logits = other(cached).copy()
        for token in range(OWN.vocab_size):
            if piece and OWN.piece(token) and piece.startswith(OWN.piece(token)):
                logits[token] += 3.0 + len(OWN.piece(token))
        return logits

    return own


def small(seed: int = 3, noise: float = 0.5, **more: Any) -> ScriptedBackend:
    return ScriptedBackend(near(seed, noise), OWN.vocab_size, tokenizer=OWN, **more)


def law_of(
    proposers: Callable[[], list[Proposer]],
    params: SamplingParams,
    n: int,
    controller: Callable[[], Controller],
    seen: Counter[str],
) -> Law:
    def run(chance: EnumeratedChance) -> tuple[int, ...]:
        loop = Loop(target())
        answer = loop.answer(
            PROMPT, proposers(), params=params, chance=chance, max_tokens=n, controller=controller()
        )
        assert not answer.stats.notes
        for verdict in answer.verdicts:
            seen["accepted"] += verdict.accepted
            seen["rejected"] += verdict.judged > verdict.accepted
            seen["sampled"] += sum(q is not None for q in verdict.draft.q)
            seen["model"] += verdict.draft.sources.count("draft_model")
        return tuple(answer.tokens)

    return enumerate_law(run)


def fixed() -> Controller:
    return FixedController(16, match_factor=0.0)


def planned() -> Controller:
    curve = CostCurve.from_points({1: 1.0, 2: 1.1, 4: 1.4, 16: 2.0})
    curve.draft = DraftCost(0.05, fixed=True)
    return CostAwareController(curve)


@pytest.mark.parametrize("lookup", [False, True], ids=["alone", "behind lookup"])
@pytest.mark.parametrize("controller", [fixed, planned])
@pytest.mark.parametrize("name", PARAMS)
def test_the_law_is_the_targets(
    name: str, controller: Callable[[], Controller], lookup: bool
) -> None:
    params, n = PARAMS[name]

    def proposers() -> list[Proposer]:
        model = ReencodedModel(small(), TARGET, k=4, p_min=0.2)
        model.ends = TARGET.eos_ids
        return [LongestMatch(min_match=1), model] if lookup else [model]

    plain = law_of(list, params, n, fixed, Counter())
    seen: Counter[str] = Counter()
    law = law_of(proposers, params, n, controller, seen)
    assert distance(law, plain) < EXACT, "the law of the output is not the target's"
    assert seen["accepted"], "no drafted token was accepted in any way"
    assert seen["rejected"], "no drafted token was rejected in any way"
    assert seen["model"], "the draft model drafted nothing"
    assert not seen["sampled"]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_vocabulary_and_any_model_give_the_text_of_plain_decoding(data: st.DataObject) -> None:
    draw = data.draw
    seed = draw(st.integers(0, 50))
    words = draw(
        st.lists(st.sampled_from([b"aa", b"ab", b" b", b"b ", "é".encode(), "é ".encode(), b"a b"]),
                 unique=True)
    )  # fmt: skip
    own = Vocabulary([*(bytes([n]) for n in b"ab </s>\xc3\xa9"), *words])
    noise = draw(st.sampled_from([0.1, 3.0]))
    whole = hashed_law(own.vocab_size, seed, scale=noise)
    backend = ScriptedBackend(
        whole, own.vocab_size, tokenizer=own, rollback=draw(st.sampled_from(list(Rollback))),
        n_ctx=draw(st.sampled_from([9, 1 << 20])), max_rows=draw(st.sampled_from([3, 512])),
    )  # fmt: skip
    model = ReencodedModel(backend, TARGET, k=draw(st.integers(0, 8)), p_min=0.0)
    model.ends = TARGET.eos_ids
    proposers: list[Proposer] = draw(
        st.permutations([LongestMatch(min_match=draw(st.integers(1, 2))), model])
    )
    params = SamplingParams(temperature=draw(st.sampled_from([0.0, 1.0])), seed=seed)
    prompt = draw(st.lists(st.integers(0, 6), min_size=1, max_size=12))
    loop, controller = Loop(target(seed)), FixedController(draw(st.integers(1, 12)))
    for _ in range(2):
        plain = Loop(target(seed)).answer(prompt, params=params, max_tokens=20)
        fast = loop.answer(prompt, proposers, params=params, max_tokens=20, controller=controller)
        assert (fast.tokens, fast.finish) == (plain.tokens, plain.finish)
        assert not fast.stats.notes
        cache = backend.caches[model.sequence.seq]
        assert cache == model.sequence.tokens[: len(cache)]
        prompt = [*prompt, *plain.tokens[: draw(st.integers(0, 8))], 3]


# whatever breaks off, wherever

ERRORS = [
    (DecodeError, False),
    (SequenceLostError, False),
    (CancelledError, True),
    (KeyboardInterrupt, False),
    (KeyboardInterrupt, True),
]


@pytest.mark.parametrize("rollback", [Rollback.TRIM, Rollback.CHECKPOINT])
@pytest.mark.parametrize("where", ["forward", "rollback", "restore"])
@pytest.mark.parametrize(("error", "behind"), ERRORS)
def test_a_failure_in_any_pass_of_the_draft_model(
    rollback: Rollback, where: str, error: type[BaseException], behind: bool
) -> None:
    turns: list[list[int]] = [PROMPT, [0, 1, 6, 2, 5, 0], PROMPT]
    plain = [Loop(target()).answer(prompt, max_tokens=14).tokens for prompt in turns]
    for at in range(100):
        fragile = Fragile(near(3), OWN.vocab_size, rollback=rollback, tokenizer=OWN)
        model = ReencodedModel(fragile, TARGET, k=4, p_min=0.0)
        loop = Loop(target())
        fragile.bomb, fragile.where, fragile.behind = Bomb(at, error), where, behind
        exploded = False
        for prompt, expected in zip(turns, plain, strict=True):
            try:
                answer = loop.answer(prompt, [model], max_tokens=14)
            except (KeyboardInterrupt, CancelledError):
                exploded = True
            else:
                assert answer.tokens == expected
                exploded = exploded or bool(answer.stats.notes)
            if exploded:
                fragile.bomb = None
            cache = fragile.caches[model.sequence.seq]
            assert cache == model.sequence.tokens[: len(cache)]
        if fragile.bomb is not None:
            return
    pytest.fail("the bomb went off in every turn")
