"""Under a grammar the law of the text is the masked target's, whatever was drafted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from agentspec.propose.draft_model import DraftModel
from agentspec.propose.longest import LongestMatch
from agentspec.testing.chance import EnumeratedChance, Law, distance, enumerate_law
from agentspec.testing.loop import Loop
from agentspec.testing.scripted import ScriptedBackend, ScriptedProposer, hashed_law
from agentspec.types import Constraint, Draft, Proposer, SamplingParams

pytest.importorskip("llguidance")

PIECES = (b"a", b"b", b"ab", b"</th", b"ink>", b"\n", b"c", b"")
VOCAB, EOS = len(PIECES), 7
PROMPT = [0, 1, 0]
EXACT = 1e-12
LANGUAGE = ("abab", "aabc", "cab", "aaa")
GRAMMAR = "start: " + " | ".join(f'"{text}"' for text in LANGUAGE)


class Pieces:
    """Eight pieces that overlap, encoded longest first."""

    vocab_size, eos_ids = VOCAB, frozenset({EOS})

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        rest = text.encode()
        while rest:
            found = [i for i, piece in enumerate(PIECES) if piece and rest.startswith(piece)]
            if not found:
                return ids
            ids.append(max(found, key=lambda i: len(PIECES[i])))
            rest = rest[len(PIECES[ids[-1]]) :]
        return ids

    encode_special = encode

    def decode(self, ids: Iterable[int]) -> bytes:
        return b"".join(PIECES[i] for i in ids)

    def piece(self, token: int) -> bytes:
        return PIECES[token]

    def is_special(self, token: int) -> bool:
        return token == EOS


@pytest.fixture(scope="module")
def pieces() -> Pieces:
    return Pieces()


def target(pieces: Any, *, leaves: int = 1, noise: float = 0.0) -> ScriptedBackend:
    """Prone to end its thinking: else the answer would hardly begin within a few tokens."""
    hashed, other = hashed_law(VOCAB, 3, scale=1.0), hashed_law(VOCAB, 1003, scale=noise)

    def law(cached: Sequence[int]) -> npt.NDArray[np.float32]:
        logits = hashed(cached) + other(cached)
        logits[4 if cached[-1] == 3 else 3] += 2.0
        return logits

    return ScriptedBackend(law, VOCAB, tokenizer=pieces, max_leaves=leaves)


def grammar(pieces: Any, thinking: bool | None) -> Constraint:
    from agentspec.chat import constraint

    one = constraint.grammar(GRAMMAR, pieces)
    if thinking is None:
        return one
    return constraint.AfterThinking(one, pieces, VOCAB, opened=thinking)


def law_of(
    backend: ScriptedBackend,
    proposers: Callable[[], list[Proposer]],
    constraint: Callable[[], Constraint],
    params: SamplingParams,
    n: int,
    sources: Counter[str] | None = None,
) -> Law:
    def run(chance: EnumeratedChance) -> tuple[int, ...]:
        loop = Loop(backend)
        try:
            answer = loop.answer(
                PROMPT, proposers(), params=params, chance=chance, max_tokens=n,
                constraint=constraint(),
            )  # fmt: skip
        finally:
            loop.sequence.close()
        if sources is not None:
            for source, count in answer.stats.sources.items():
                sources[f"{source} accepted"] += count.accepted
                sources[f"{source} rejected"] += count.judged - count.accepted
        return tuple(answer.tokens)

    return enumerate_law(run)


def reference(
    backend: ScriptedBackend, constraint: Callable[[], Constraint], top_k: int, n: int
) -> Law:
    """The masked target's law, every row masked by a constraint that is led there anew."""
    law: Law = {}

    def walk(text: tuple[int, ...], weight: float) -> None:
        if len(text) == n or EOS in text:
            law[text] = law.get(text, 0.0) + weight
            return
        one = constraint()
        for token in text:
            one.advance(token)
        logits = backend.law([*PROMPT, *text]).astype(np.float64)
        logits[~one.mask()] = -np.inf
        order = np.argsort(-logits, kind="stable")[:top_k]
        weights = np.exp(logits[order] - logits[order[0]])
        for token, part in zip(order, weights / weights.sum(), strict=True):
            if part > 0.0:
                walk((*text, int(token)), weight * float(part))

    walk((), 1.0)
    return law


def spread(tokens: Sequence[int], room: int) -> Draft:
    """A tree through the end of the thinking into the answer, by two ways."""
    chain = (3, 4, 0, 2)
    draft = Draft((*chain, 6), ("tree",) * 5, (None,) * 5, (-1, 0, 1, 2, 1))
    return draft.truncate(room)


def chained(tokens: Sequence[int], room: int) -> list[int]:
    """Through the closing mark, in the middle of the draft."""
    return [4, 0, 0, 1][:room] if tokens[-1] == 3 else [3, 4, 2, 2, 7][:room]


@pytest.mark.parametrize("thinking", [None, False, True], ids=["none", "before", "open"])
@pytest.mark.parametrize("drafts", ["chain", "tree", "sampled", "mixed"])
def test_the_law_is_the_masked_targets(pieces: Any, thinking: bool | None, drafts: str) -> None:
    params = SamplingParams(temperature=1.0, top_k=3 if thinking is None else 2)
    n = 4
    backend = target(pieces, leaves=4)
    small = target(pieces, noise=0.7)

    def model() -> Proposer:
        small.caches.clear()
        return DraftModel(small, target_vocab=VOCAB, k=2 if thinking is None else 3, p_min=0.0)

    made: dict[str, Callable[[], list[Proposer]]] = {
        "chain": lambda: [ScriptedProposer(chained, name="chain")],
        "tree": lambda: [ScriptedProposer(spread, name="tree")],
        "sampled": lambda: [model()],
        "mixed": lambda: [LongestMatch(min_match=1), model()],
    }
    seen: Counter[str] = Counter()

    def held() -> Constraint:
        return grammar(pieces, thinking)

    plain = law_of(backend, list, held, params, n)
    fast = law_of(backend, made[drafts], held, params, n, seen)
    assert distance(fast, plain) < EXACT
    # float32 exponentials
    assert distance(plain, reference(backend, held, params.top_k, n)) < 1e-6
    assert sum(count for name, count in seen.items() if name.endswith("accepted"))
    if drafts == "sampled" and not thinking:
        assert seen["draft_model rejected"], "the mask forbade no sampled token"
        assert seen["forced accepted"]
    assert not seen["forced rejected"]


def test_the_text_is_of_the_language_from_the_end_of_the_thinking_on(pieces: Any) -> None:
    backend = target(pieces, leaves=4)
    loop = Loop(backend)
    closed = through = 0
    for seed in range(60):
        params = SamplingParams(temperature=1.0, seed=seed)
        answer = loop.answer(
            PROMPT,
            [ScriptedProposer(chained, name="chain"), ScriptedProposer(spread, name="tree")],
            params=params,
            constraint=grammar(pieces, True),
        )
        text = pieces.decode(answer.tokens).decode()
        _, mark, after = text.partition("</think>")
        if not mark:
            assert answer.finish == "length"
            continue
        closed += 1
        assert after.strip() in LANGUAGE if answer.finish == "stop" else True
        assert any(whole.startswith(after.strip()) for whole in LANGUAGE)
        through += any({3, 4} <= set(v.tokens[: v.accepted]) for v in answer.verdicts)
    assert closed > 30
    assert through > 3, "no draft went through the end of the thinking"


def test_masks_are_those_of_the_language(pieces: Any) -> None:
    def walk(text: bytes, one: Constraint) -> None:
        rest = {
            whole.encode()[len(text) :] for whole in LANGUAGE if whole.encode()[: len(text)] == text
        }
        fits = {
            i for i, piece in enumerate(PIECES)
            if (piece and any(r.startswith(piece) for r in rest)) or (i == EOS and b"" in rest)
        }  # fmt: skip
        mask = {int(i) for i in np.flatnonzero(one.mask())}
        assert mask
        assert mask <= fits
        if len({r[:1] for r in rest}) > 1:
            assert mask == fits  # else the bytes are forced, and so may be the way to write them
        assert one.only() == (next(iter(mask)) if len(mask) == 1 else None)
        run = one.forced(16)
        probe = one.fork()
        for token in run:
            assert {int(i) for i in np.flatnonzero(probe.mask())} == {token}
            probe.advance(token)
        assert bool(run) == (len(mask) == 1)
        if EOS in run:
            assert probe.forced(4) == ()
        else:
            assert len(run) == 16 or probe.only() is None or not run
        for token in fits:
            assert one.valid_prefix([token]) == 1
        for token in mask - {EOS}:
            copy = one.fork()
            copy.advance(token)
            walk(text + PIECES[token], copy)

    walk(b"", grammar(pieces, None))


# -- forced tokens ---------------------------------------------------------------------------------


def test_forced_tokens_need_no_logits_and_few_passes(pieces: Any) -> None:
    from agentspec.chat import constraint

    forced = "cabcabcab"
    read: list[tuple[int, ...]] = []

    def law(cached: Sequence[int]) -> npt.NDArray[np.float32]:
        read.append(tuple(cached[len(PROMPT) :]))
        logits = np.zeros(VOCAB, dtype=np.float32)
        logits[6] = 5.0  # would rather write something else
        return logits

    def held() -> Constraint:
        return constraint.grammar(f'start: "{forced}" ("a" | "b") "{forced}"', pieces)

    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=1)
        backend = ScriptedBackend(law, VOCAB, tokenizer=pieces)
        off = Loop(backend).answer(PROMPT, params=params, constraint=held())
        read.clear()
        on = Loop(backend).answer(
            PROMPT, [ScriptedProposer(lambda t, room: [])], params=params, constraint=held()
        )
        assert on.tokens == off.tokens
        assert off.stats.passes == len(off.tokens) == 14
        # the first run and the choice behind it; the second run and the end
        assert on.stats.passes == 2
        assert on.stats.sources["forced"].accepted == on.stats.sources["forced"].drafted == 13
        assert set(read) == {tuple(on.tokens[:6])}


def test_drafts_go_on_behind_forced_tokens(pieces: Any) -> None:
    from agentspec.chat import constraint

    lark = 'start: "cab" ("a" | "b") ("c" | "a")'
    backend = ScriptedBackend(lambda cached: np.zeros(VOCAB, np.float32), VOCAB, tokenizer=pieces)

    def sources(guess: Sequence[int], room: int = 32) -> tuple[str, ...]:
        answer = Loop(backend).answer(
            PROMPT, [ScriptedProposer(lambda t, n: guess[:n] if len(t) == 3 else [])],
            constraint=constraint.grammar(lark, pieces), max_tokens=room,
        )  # fmt: skip
        return answer.verdicts[0].draft.sources

    assert sources([6, 2, 0, 6]) == ("forced", "forced", "scripted", "scripted")
    assert sources([6]) == ("forced", "forced")
    assert sources([5]) == ("forced", "forced")
    assert sources([]) == ("forced", "forced")
    assert sources([6, 2, 0, 6], room=2) == ("forced",)


def test_a_bias_against_the_only_token_is_still_the_callers_error(pieces: Any) -> None:
    from agentspec.errors import InvalidRequestError

    params = SamplingParams(logit_bias={6: float("-inf")})
    from agentspec.chat import constraint

    with pytest.raises(InvalidRequestError, match="forbids"):
        Loop(target(pieces)).answer(
            PROMPT, params=params, constraint=constraint.grammar('start: "c"', pieces)
        )
