"""A draft model of another vocabulary: its cache follows the text, its drafts are the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentspec.backends.base import Output, Rollback, Rows
from agentspec.context import evidence
from agentspec.engine.sampling import SeededChance
from agentspec.errors import CancelledError, DecodeError
from agentspec.propose.reencoded import ReencodedModel
from agentspec.testing.scripted import ScriptedBackend
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, SamplingParams, TurnContext, Verdict
from tests.vocabularies import Vocabulary, writing

LETTERS = [bytes([n]) for n in b"abcdefgh (=)<>|nt"]
ODD = [bytes([n]) for n in "é😀".encode()]
TARGET = Vocabulary(
    [*LETTERS, *ODD, b"ab", b" ab", b"cd", b"abcd", "é".encode()],
    special={28: b"<end>", 29: b"<start>", 30: b"<t>"},
    eos_ids=frozenset({28}),
)
OWN = Vocabulary(
    [*LETTERS, *ODD, b" a", b"bc", b"gh"],
    special={26: b"<end>", 27: b"<s>", 28: b"<t>", 29: b"<other>"},
    eos_ids=frozenset({26}),
    bos=27,
)
assert TARGET.piece(28) == OWN.piece(26) == b"<end>"

TEXT = b"ab ab(cd) = abcd abcd ef ab gh " * 8


def model(text: bytes = TEXT, **more: Any) -> ScriptedBackend:
    end = more.pop("end", -1)
    peak = more.pop("peak", 9.0)
    law = writing(OWN, text, peak=peak, end=end)
    return ScriptedBackend(law, OWN.vocab_size, tokenizer=OWN, **more)


def turn(
    text: str | Sequence[int], params: SamplingParams | None = None, **more: Any
) -> TurnContext:
    tokens = TARGET.encode_special(text) if isinstance(text, str) else text
    return replace(TurnContext(tokens, params or SamplingParams(), SeededChance(0)), **more)


def observe(draft: ReencodedModel, text: str | Sequence[int]) -> None:
    tokens = TARGET.encode_special(text) if isinstance(text, str) else text
    draft.observe(tokens, Verdict(EMPTY_DRAFT, tuple(tokens), 0, 0))


def pieces(draft: Draft) -> list[str]:
    return [TARGET.piece(token).decode("utf-8", "backslashreplace") for token in draft.tokens]


def check(draft: ReencodedModel, backend: ScriptedBackend) -> bytes:
    """The text that its cache holds, which must be that of the tokens it counts as there."""
    cache = backend.caches[draft.sequence.seq]
    assert cache == draft.sequence.tokens[: len(cache)]
    assert cache[:1] in ([], [OWN.bos_id])
    return OWN.text(cache)


def behind(text: str) -> Draft:
    return Draft.chain(TARGET.encode(text), "lookup", Evidence(4))


# drafts


def test_nothing_is_computed_before_a_draft_is_asked_for() -> None:
    backend = model()
    draft = ReencodedModel(backend, TARGET, k=5)
    draft.begin(turn("ab"))
    observe(draft, " ab")
    assert backend.passes == []
    found = draft.propose(9)
    # ( c d ) and a space, in the tokens of the target
    assert pieces(found) == ["(", "cd", ")", " "]
    assert found.sources == ("draft_model",) * 4
    assert found.deterministic
    assert found.evidence.passes == (5, 1, 1, 1, 1)
    assert backend.passes[0] == (OWN.bos_id, *OWN.encode("ab ab"))


def test_what_it_writes_joins_what_is_committed_where_the_target_does() -> None:
    draft = ReencodedModel(model(), TARGET, k=3)
    # the target has " ab", which begins behind the committed "=": a space is written, then "ab"
    draft.begin(turn("ab ab(cd) ="))
    assert pieces(draft.propose(9)) == [" ab", "cd"]


def test_the_draft_is_the_arg_max_also_under_sampling() -> None:
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=2.0, seed=4)):
        draft = ReencodedModel(model(peak=3.0), TARGET, k=4, p_min=0.0)
        draft.begin(turn("ab", params))
        found = draft.propose(9)
        assert pieces(found) == [" ab", "(", "c"]
        assert found.deterministic


def test_it_is_as_sure_of_a_token_as_of_its_own_that_begin_in_it() -> None:
    backend = model()
    whole = backend.law
    backend.law = lambda cached: whole(cached) * (0.5 if OWN.text(cached)[-1:] == b"c" else 1.0)
    draft = ReencodedModel(backend, TARGET, k=4, p_min=0.0)
    draft.begin(turn("ab ab"))
    found = draft.propose(9)
    assert pieces(found) == ["(", "cd", ")"]
    nine, half = (np.exp(x) / (np.exp(x) + OWN.vocab_size - 1) for x in (9.0, 4.5))
    assert found.evidence.confidence == pytest.approx([nine, nine * half, nine], rel=1e-4)
    assert found.evidence.features[1] == evidence.model_slots(nine * half, 1, evidence.NO_CLASS)


def test_it_stops_where_it_is_not_sure() -> None:
    backend = model()
    whole = backend.law
    backend.law = lambda cached: whole(cached) * (0.1 if OWN.text(cached)[-1:] == b"c" else 1.0)
    draft = ReencodedModel(backend, TARGET, p_min=0.5)
    draft.begin(turn("ab ab"))
    assert pieces(draft.propose(9)) == ["(", "c"]


def test_the_plan_says_how_much_and_below_which_chance() -> None:
    draft = ReencodedModel(model(), TARGET, plan=lambda: (3, 0.0))
    draft.begin(turn("ab ab"))
    assert pieces(draft.propose(9)) == ["(", "cd"]
    draft.plan = lambda: (0, 0.0)
    assert draft.propose(9) == EMPTY_DRAFT
    draft.plan = lambda: (9, 0.5)
    draft.chance = lambda slots: 0.75
    # 0.75 ** 3 is less
    assert pieces(draft.propose(9)) == ["(", "c"]


def test_respects_its_length_the_room_and_its_own_context() -> None:
    for k, room, n_ctx, expected in (
        (3, 9, 99, "(cd"), (9, 2, 99, "(c"), (9, 9, 8, "(cd"), (9, 9, 7, "(c"), (9, 9, 6, "("),
        (9, 9, 5, ""), (9, 9, 3, ""),
    ):  # fmt: skip
        draft = ReencodedModel(model(n_ctx=n_ctx), TARGET, k=k)
        draft.begin(turn("ab ab"))
        assert "".join(pieces(draft.propose(room))) == expected
        assert draft.propose(0) == EMPTY_DRAFT
        # and again behind another proposer's
        assert len(draft.go_on(behind("(cd)"), 9)) <= 9


# ends and special tokens


def test_its_end_is_the_targets_end_and_nothing_is_drafted_behind_it() -> None:
    backend = model(b"ab cd", end=26)
    draft = ReencodedModel(backend, TARGET)
    draft.ends = TARGET.eos_ids
    draft.begin(turn("ab"))
    found = draft.propose(9)
    assert pieces(found) == [" ", "cd", "<end>"]
    assert found.tokens[-1] in TARGET.eos_ids
    assert len(backend.passes) == 4


def test_an_end_that_it_spells_is_an_end() -> None:
    backend = model(b"ab<end>ab ab ab")
    draft = ReencodedModel(backend, TARGET)
    draft.ends = TARGET.eos_ids
    draft.begin(turn("ab"))
    assert pieces(draft.propose(9)) == ["<end>"]
    assert len(backend.passes) == 5


def test_what_is_special_to_it_alone_ends_the_draft() -> None:
    for token, expected in ((29, ["(", "c"]), (28, ["(", "c", "<t>"]), (27, ["(", "c"])):
        draft = ReencodedModel(model(b"ab(c", end=token), TARGET, k=3)
        draft.begin(turn("ab"))
        assert pieces(draft.propose(9)) == expected


def test_special_tokens_of_the_history_are_plain_text_to_it() -> None:
    backend = model()
    draft = ReencodedModel(backend, TARGET, k=1)
    draft.begin(turn("<start>ab<end><start>"))
    draft.propose(1)
    (read,) = backend.passes
    assert read[0] == OWN.bos_id
    assert not any(map(OWN.is_special, read[1:]))
    # it has no r: what it cannot tell is left out
    assert OWN.text(read) == b"<start>ab<end><start>".replace(b"r", b"").replace(b"s", b"")


def test_no_bos_where_none_is_expected() -> None:
    bare = Vocabulary([*LETTERS, *ODD, b" a", b"bc", b"gh"])
    backend = ScriptedBackend(writing(bare, TEXT), bare.vocab_size, tokenizer=bare)
    draft = ReencodedModel(backend, TARGET, k=2)
    draft.begin(turn("ab"))
    assert pieces(draft.propose(9)) == [" ab"]
    assert backend.passes[0] == tuple(bare.encode("ab"))
    # of no text it says nothing
    draft.begin(turn([]))
    assert draft.propose(9) == EMPTY_DRAFT


# characters of several bytes


def test_a_character_that_a_token_splits() -> None:
    text = "ab é😀é ab".encode()
    draft = ReencodedModel(model(text, peak=12.0), TARGET, k=6)
    draft.begin(turn("ab "))
    observe(draft, [TARGET.encode("é")[0]])
    smile = TARGET.encode("😀")
    assert len(smile) == 4
    for cut in range(4):
        found = draft.propose(9)
        expected = smile[cut:]
        assert list(found.tokens[: len(expected)]) == expected
        observe(draft, smile[cut : cut + 1])
    assert pieces(draft.propose(9)) == ["é", " ab"]


def test_what_is_written_otherwise_than_the_character_began_is_no_draft() -> None:
    backend = model(b"ab ab ab")
    draft = ReencodedModel(backend, TARGET)
    draft.begin(turn("ab"))
    observe(draft, [TARGET.encode("😀")[0]])
    assert draft.propose(9).tokens == ()
    assert len(backend.passes) == 1


def test_half_a_character_is_not_drafted() -> None:
    draft = ReencodedModel(model("ab😀".encode()), TARGET, k=3)
    draft.begin(turn("ab"))
    assert draft.propose(9).tokens == ()


# its cache


@pytest.mark.parametrize(
    ("accepted", "rows"),
    [
        ("(cd) =", 3),  # all, and more
        ("(cd", 1),  # some
        ("(ce", 1),  # another one
        ("ef", 2),  # none
    ],
)
def test_catches_up_in_the_pass_that_drafts(accepted: str, rows: int) -> None:
    backend = model()
    draft = ReencodedModel(backend, TARGET, k=4)
    draft.begin(turn("ab ab"))
    assert pieces(draft.propose(9)) == ["(", "cd", ")"]
    backend.passes.clear()
    observe(draft, accepted)
    assert backend.passes == []
    draft.propose(9)
    assert len(backend.passes[0]) == rows
    assert check(draft, backend).startswith(b"ab ab" + accepted.encode())


@pytest.mark.parametrize("rollback", [Rollback.TRIM, Rollback.CHECKPOINT])
def test_a_rejection_does_not_cost_the_whole_cache(rollback: Rollback) -> None:
    backend = model(rollback=rollback)
    draft = ReencodedModel(backend, TARGET, k=4)
    committed = "ab (" * 50
    draft.begin(turn(committed))
    draft.propose(4)
    for accepted in ("ab a", "(", "cdcd", "h", "ab ab"):
        backend.passes.clear()
        observe(draft, accepted)
        committed += accepted
        draft.propose(4)
        assert sum(map(len, backend.passes)) <= 4 + 6 + 2
        assert check(draft, backend)[: len(committed)].startswith(committed.encode()[:-1])


def test_the_cache_is_kept_from_turn_to_turn() -> None:
    backend = model()
    draft = ReencodedModel(backend, TARGET, k=2)
    draft.begin(turn("ab (" * 50))
    draft.propose(4)
    observe(draft, "cd")
    draft.end()
    assert len(backend.caches[draft.sequence.seq]) == len(draft.sequence.tokens) - 1
    backend.passes.clear()
    draft.begin(turn("ab (" * 50 + "cd) ab"))
    draft.propose(4)
    assert sum(map(len, backend.passes)) < 12
    draft.close()
    assert backend.caches == {}


def test_a_turn_in_which_it_is_not_asked_changes_nothing() -> None:
    backend = model()
    draft = ReencodedModel(backend, TARGET, k=2)
    draft.begin(turn("ab ab"))
    draft.propose(4)
    draft.end()
    for text in ("cd cd cd cd", "ab ab(cd"):
        draft.begin(turn(text))
        observe(draft, "ab")
        draft.end()
    backend.passes.clear()
    draft.begin(turn("ab ab(cd"))
    assert pieces(draft.propose(9)) == [")", " "]
    assert OWN.text(backend.passes[0]) == b"b(cd"


@pytest.mark.parametrize("rollback", [Rollback.TRIM, Rollback.CHECKPOINT])
def test_a_cancel_is_heard_between_the_chunks_of_a_long_prompt(rollback: Rollback) -> None:
    text = b"ab cd " * 20
    backend = model(text, rollback=rollback, max_rows=16)
    draft = ReencodedModel(backend, TARGET, k=3)
    draft.begin(turn(text[:100].decode(), cancelled=lambda: len(backend.passes) >= 2))
    with pytest.raises(CancelledError):
        draft.propose(3)
    assert [len(rows) for rows in backend.passes] == [16, 16]
    draft.end()
    check(draft, backend)
    draft.begin(turn(text[:100].decode()))
    assert "".join(pieces(draft.propose(3))) == text[100:104].decode()
    assert max(map(len, backend.passes)) <= 16


def test_it_tells_what_its_passes_took() -> None:
    told: list[tuple[float, int]] = []
    draft = ReencodedModel(model(), TARGET, k=3)
    draft.on_pass(lambda seconds, rows: told.append((seconds, rows)))
    draft.begin(turn("ab ab"))
    assert draft.pending == 2  # as many as the target's tokens
    found = draft.propose(9)
    assert draft.pending == 1
    observe(draft, "ab(cd)")
    assert draft.pending == len(TARGET.encode_special("ab(cd)"))
    assert tuple(rows for _, rows in told) == found.evidence.passes == (5, 1, 1)
    assert all(seconds > 0 for seconds, _ in told)


class Failing(ScriptedBackend):
    """Fails in passes over one token alone."""

    def forward(self, rows: Sequence[Rows]) -> Output:
        if len(rows[0].tokens) == 1 and rows[0].tokens[0] == OWN.encode("d")[0]:
            raise DecodeError("this token is not liked")
        return super().forward(rows)


def test_what_was_written_before_a_failure_stands() -> None:
    backend = Failing(model().law, OWN.vocab_size, tokenizer=OWN)
    draft = ReencodedModel(backend, TARGET)
    draft.begin(turn("ab ab"))
    assert pieces(draft.propose(9)) == ["(", "cd"]
    observe(draft, "(cd)")
    assert draft.propose(9).tokens
    check(draft, backend)


# behind another proposer's draft


def test_it_goes_on_behind_a_draft_that_it_agrees_with_and_reads_it_in_one_pass() -> None:
    backend = model()
    draft = ReencodedModel(backend, TARGET, k=3)
    draft.begin(turn("ab ab"))
    found = draft.go_on(behind("(cd)"), 9)
    assert pieces(found) == ["(", "cd", ")", " ", "=", " ", "a"]
    assert found.sources == ("lookup",) * 3 + ("draft_model",) * 4
    assert [OWN.text(rows) for rows in backend.passes] == [b"ab ab(cd)", b" ", b"="]
    assert (found.evidence.taken, found.evidence.passes) == (3, (9, 1, 1))
    observe(draft, "(cd)")
    backend.passes.clear()
    assert pieces(draft.go_on(behind(" = a"), 5)) == [" ", "=", " ", "a", "b"]
    assert check(draft, backend).startswith(b"ab ab(cd) =")


@pytest.mark.parametrize(
    ("lookup", "kept", "own"),
    [("e", "", "(cd"), ("(e", "(", "cd)"), ("(cde", "(cd", ") "), ("(cd) =e", "(cd) =", " ab")],
)
def test_it_takes_its_own_token_where_it_disagrees(lookup: str, kept: str, own: str) -> None:
    backend = model()
    draft = ReencodedModel(backend, TARGET, k=3)
    draft.begin(turn("ab ab"))
    found = draft.go_on(behind(lookup), 20)
    n = found.sources.count("lookup")
    assert found.sources[n:] == ("draft_model",) * (len(found) - n)
    assert "".join(pieces(found)[:n]) == kept
    assert "".join(pieces(found)[n:]).startswith(own)
    # what it did not take is not in its cache
    cache = check(draft, backend)
    assert (b"ab ab" + kept.encode() + own.encode()).startswith(cache) or cache.startswith(
        b"ab ab" + kept.encode()
    )


def test_the_learned_chance_says_whom_to_trust_where_they_disagree() -> None:
    for trusted, expected in (("lookup", "efab"), ("draft_model", "(cd")):

        def chance(slots: Sequence[int], trusted: str = trusted) -> float:
            own = evidence.model_slots(0.99901, 0, evidence.NO_CLASS)[0]
            return 0.9 if (own in slots) == (trusted == "draft_model") else 0.2

        draft = ReencodedModel(model(), TARGET, k=3)
        draft.chance = chance
        draft.begin(turn("ab ab"))
        assert "".join(pieces(draft.go_on(behind("efab"), 9))).startswith(expected)


def test_a_draft_that_ends_inside_one_of_its_tokens_is_gone_on_behind() -> None:
    """ "gh" is one token of its own and two of the target's."""
    text = b"ab gh gh ab"
    draft = ReencodedModel(model(text), TARGET, k=2)
    draft.begin(turn("ab"))
    found = draft.go_on(behind(" g"), 9)
    assert "".join(pieces(found))[:2] == " g"
    # committed inside it: what it reads and writes fits again behind it
    observe(draft, " g")
    assert "".join(pieces(draft.propose(9))).startswith("h") or not draft.propose(9).tokens
    observe(draft, "h")
    assert pieces(draft.propose(9))[:2] == [" ", "g"]


def test_nothing_is_drafted_behind_an_end_that_another_drafts() -> None:
    backend = model()
    draft = ReencodedModel(backend, TARGET)
    draft.ends = TARGET.eos_ids
    draft.begin(turn("ab ab"))
    ended = Draft.chain([*TARGET.encode("(cd"), 28], "lookup", Evidence(4))
    draft.chance = lambda slots: 0.9
    assert pieces(draft.go_on(ended, 9))[:2] == ["(", "cd"]
    assert len(backend.passes) <= 2


def test_a_draft_longer_than_a_pass_or_the_context_is_read_as_far_as_it_fits() -> None:
    limits: list[dict[str, Any]] = [{"max_rows": 4}, {"n_ctx": 9}]
    for more in limits:
        backend = model(**more)
        draft = ReencodedModel(backend, TARGET, k=2)
        draft.begin(turn("ab ab"))
        found = draft.go_on(behind("(cd) = abcd"), 12)
        assert "(cd) = abcd".startswith("".join(pieces(found)))
        assert found.tokens
        assert max(map(len, backend.passes)) <= backend.max_rows
        observe(draft, "(cd")
        if "max_rows" in more:
            assert pieces(draft.propose(9)) == [")", " "]


def test_bytes_of_a_character_in_a_lookups_draft() -> None:
    text = "ab é😀é ab".encode()
    smile = TARGET.encode("😀")
    draft = ReencodedModel(model(text, peak=12.0), TARGET, k=4)
    draft.begin(turn("ab é"))
    for cut in range(1, 5):
        ahead = Draft.chain(smile[:cut], "lookup", Evidence(4))
        found = draft.go_on(ahead, 9)
        assert list(found.tokens[:4]) == smile[: len(found)]
        assert found.tokens
    observe(draft, smile[:2])
    found = draft.go_on(Draft.chain(smile[2:], "lookup", Evidence(4)), 9)
    assert list(found.tokens[:2]) == smile[2:]


class Case(NamedTuple):
    """A text, its division into a target's tokens, and what is drafted and committed of it."""

    text: bytes
    target_words: list[bytes]
    own_words: list[bytes]
    pieces: list[bytes]
    committed: int
    k: int
    steps: list[tuple[int, bool, int, int]]
    """Tokens of a lookup's draft, whether its last is wrong, the most to draft, then committed."""


JOINED = [b"aa", b"ab", b" a", b"b ", "é".encode(), "aé".encode(), "😀".encode(), b"\xf0\x9f"]
SINGLE = [bytes([n]) for n in sorted(set("ab é😀".encode()))]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    text = draw(st.text("ab é😀", min_size=1, max_size=30)).encode()
    words = st.lists(st.sampled_from(JOINED), unique=True)
    target, own = draw(words), draw(words)
    pieces: list[bytes] = []
    while rest := text[len(b"".join(pieces)) :]:
        fits = [piece for piece in [*SINGLE, *target] if rest.startswith(piece)]
        pieces.append(draw(st.sampled_from(fits)))
    at = draw(st.integers(1, len(pieces)))
    step = st.tuples(st.integers(0, 5), st.booleans(), st.integers(1, 9), st.integers(1, 4))
    # one draft at the end of the text too, as many as may be needed up to there
    steps = draw(st.lists(step, min_size=1, max_size=len(pieces) - at + 1))
    return Case(text, target, own, pieces, at, draw(st.integers(1, 6)), steps)


@settings(max_examples=300, deadline=None)
@given(case=cases())
@example(
    # what it read for the lookup's draft joined a committed space to the "a" behind it
    Case(
        "éba😀 aab".encode(),
        [b"aa", b"ab", "é".encode(), b"\xf0\x9f"],
        [b"aa", b"ab", b" a", "aé".encode(), "😀".encode(), b"\xf0\x9f"],
        ["é".encode(), b"b", b"a", b"\xf0\x9f", b"\x98", b"\x80", b" ", b"aa", b"b"],
        3,
        4,
        [(3, False, 7, 4), (5, False, 1, 1)],
    )
)
def test_whatever_is_committed_and_drafted_the_text_goes_on_as_it_writes_it(case: Case) -> None:
    """Tokens of any division, of a lookup that is right, and a draft model that knows the text."""
    text, at = case.text, case.committed
    target, own = Vocabulary([*SINGLE, *case.target_words]), Vocabulary([*SINGLE, *case.own_words])
    ids = {target.piece(i): i for i in range(target.vocab_size)}
    tokens = [ids[piece] for piece in case.pieces]
    backend = ScriptedBackend(writing(own, text, peak=30.0), own.vocab_size, tokenizer=own)
    draft = ReencodedModel(backend, target, k=case.k, p_min=0.5)
    draft.begin(turn(tokens[:at]))
    for length, wrong, most, step in case.steps:
        ahead = tokens[at : at + length]
        if ahead and wrong:
            ahead = [*ahead[:-1], 0]
        found = draft.go_on(Draft.chain(ahead, "lookup", Evidence(4)), most)
        right = found.sources.count("lookup") and ahead[-1:] == [0]
        so_far = target.text([*tokens[:at], *found.tokens])
        assert text.startswith(so_far) or right
        cache = backend.caches[draft.sequence.seq]
        assert cache == draft.sequence.tokens[: len(cache)]
        draft.observe(
            tokens[at : at + step], Verdict(EMPTY_DRAFT, tuple(tokens[at : at + step]), 0, 0)
        )
        at += step
        if at >= len(tokens):
            break
    draft.end()
