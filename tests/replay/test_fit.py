"""Priors fitted on a handful of sessions: what they hold, whom they are fitted on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Tokenizer
from agentspec.context import evidence
from agentspec.control.prior import Prior, session_digest
from agentspec.replay import fit, inputs
from agentspec.replay.chatml import ChatEncoder, Tokens
from agentspec.replay.fit import Rows
from agentspec.replay.inputs import Vocabulary
from agentspec.testing.scripted import ScriptedProposer, ScriptedTokenizer
from agentspec.types import Draft, Evidence
from tests.replay.conftest import Talk, recording

MARKS = {256: "<|im_start|>", 257: "<|im_end|>"}
BYTES: Callable[[], Tokenizer] = partial(
    ScriptedTokenizer, 262, special=MARKS, eos_ids=frozenset({257})
)


class InProcess:
    """A pool of one process, this one."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    map = staticmethod(map)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "ProcessPoolExecutor", InProcess)


def rows(*given: tuple[Sequence[int], bool]) -> Rows:
    table = np.zeros((len(given), 28), dtype=np.int16)
    for row, (slots, _) in zip(table, given, strict=True):
        row[: len(slots)] = slots
    sizes = np.asarray([len(slots) for slots, _ in given], dtype=np.int8)
    return Rows(table, sizes, np.asarray([right for _, right in given]), [])


def chance(weights: Sequence[float], *slots: int) -> float:
    return 1 / (1 + math.exp(-sum(weights[slot] for slot in slots)))


def test_weights_learn_how_often_each_slot_was_right() -> None:
    always, never, often = [((1, 2), True)] * 300, [((3, 2), False)] * 300, []
    for n in range(400):
        often.append(((5,), n % 4 > 0))
    weights = fit.fit([rows(*always, *often), rows(*never)])
    assert len(weights) == evidence.SLOTS
    assert chance(weights, 1, 2) > 0.9
    assert chance(weights, 3, 2) < 0.1
    assert chance(weights, 5) == pytest.approx(0.75, abs=0.07)
    # of slots without an example what is known without examples
    assert tuple(weights[6:]) == evidence.unfitted()[6:]
    assert weights == fit.fit([rows(*always, *often), rows(*never)])


def test_candidates_of_a_lower_rank_teach_their_rank_only() -> None:
    rank = evidence.rank_slot(1, 0.5, 4)
    first = [((1,), True)] * 300
    weights = fit.fit([rows(*first)])
    both = fit.fit([rows(*first, *[((1, rank), False)] * 300)])
    assert both[1] == pytest.approx(weights[1], rel=0.05)
    assert chance(both, 1) > 0.9
    assert chance(both, 1, rank) < 0.35


def test_without_examples_nothing_is_fitted() -> None:
    assert tuple(fit.fit([])) == evidence.unfitted()
    assert tuple(fit.fit([rows()])) == evidence.unfitted()


def test_examples_are_judged_by_what_was_recorded(talk: Talk) -> None:
    session = talk("abcdefghij klmnop", "abcdefghij xlmnop")
    found = fit.examples(session, BYTES(), Prior.none(), frozenset())
    assert len(found.right) == len(found.sizes) == len(found.slots)
    assert found.right.any()
    assert not found.right.all()
    width = found.slots.shape[1]
    assert ((found.sizes > 0) & (found.sizes <= width)).all()
    assert (found.slots < evidence.SLOTS).all()
    assert (found.slots >= 0).all()
    for slots, size in zip(found.slots.tolist(), found.sizes.tolist(), strict=True):
        assert not any(slots[size:])
    # without syntax every example knows less
    plain = fit.examples(session, BYTES(), Prior.none(), frozenset({"syntax"}))
    assert plain.sizes.max() < found.sizes.max()


def test_of_a_draft_what_agrees_so_far_is_judged(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = b"ab"
    draft = Draft.chain([b, a], "x", Evidence(features=((1,), (2, 3))))

    class Always:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def proposers(self) -> list[ScriptedProposer]:
            return [ScriptedProposer(lambda tokens, room: draft)]

    monkeypatch.setattr(fit, "Drafting", Always)
    found = fit.examples(talk("abab"), BYTES(), Prior.none(), frozenset())
    assert found.slots[:, 0].tolist() == [1, 1, 2, 1, 1, 2, 1]
    assert found.sizes.tolist() == [1, 1, 2, 1, 1, 2, 1]
    assert found.right.tolist() == [False, True, True, False, True, False, False]


def test_a_repeated_answer_is_right_and_what_never_was_said_gives_nothing(talk: Talk) -> None:
    same = "the quick brown fox jumps over the lazy dog 0123456789 " * 2
    repeated = fit.examples(talk(same, same), BYTES(), Prior.none(), frozenset())
    other = fit.examples(talk("abcdefgh", "12345678", asks="?"), BYTES(), Prior.none(), frozenset())
    assert repeated.right.mean() > 2 * other.right.mean()
    assert repeated.right.sum() > len(same)


def test_habits_are_what_more_than_one_source_says(talk: Talk) -> None:
    sessions = [
        talk("Let me", id="1", source="a"),
        talk("so Let me!", id="2", source="b"),
        talk("only here, only here", id="3", source="c"),
        talk("only here", id="4", source="c"),
    ]
    found = fit.habits(sessions, BYTES())
    assert "Let me" in found
    assert not any("only" in text for text in found)
    # a part of a longer one is no habit of its own
    assert "Let m" not in found
    assert "et me" not in found
    assert fit.habits(sessions[2:], BYTES()) == []
    assert fit.habits(sessions, BYTES(), sources=4) == []


def test_numbers_and_marks_are_no_habits(talk: Talk) -> None:
    sessions = [talk("12, 3.", id="1", source="a"), talk("12, 3.", id="2", source="b")]
    assert fit.habits(sessions, BYTES()) == []


def test_requests_are_no_habits(talk: Talk) -> None:
    said = {"asks": "please do it"}
    sessions = [talk("ab", id="1", source="a", **said), talk("cd", id="2", source="b", **said)]
    assert fit.habits(sessions, BYTES()) == []


def test_the_widest_spread_habit_comes_last(talk: Talk) -> None:
    answers = [("xy", "qr"), ("xy", "qr"), ("qr", "")]
    sessions = [talk(*said, id=str(n), source=str(n)) for n, said in enumerate(answers)]
    assert fit.habits(sessions, BYTES()) == ["xy", "qr"]


def test_fitted_priors_are_read_back(sessions: list[Tokens], here: None) -> None:
    start = {"full": evidence.unfitted(), "plain": evidence.unfitted()}
    data = json.loads(json.dumps(fit.fitted(sessions, BYTES, start)))
    full, plain = Prior.from_json(data, "full"), Prior.from_json(data, "plain")
    assert len(full.weights) == len(plain.weights) == evidence.SLOTS
    assert any(full.weights)
    assert any(plain.weights)
    assert full.weights != plain.weights
    assert full.chains
    assert any(full.chains)
    assert all(0 <= p <= 1 for chain in full.chains for p in chain)
    assert full.sessions == {session_digest(s.source, s.id) for s in sessions}
    assert full.habits == ()  # they are of one source
    # slots of the syntax are learned where it is looked at
    syntax = slice(evidence._CLASS, evidence._ORIGIN)
    assert any(full.weights[syntax])
    assert not any(plain.weights[syntax])


def test_each_round_starts_from_the_last(
    sessions: list[Tokens], here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, ...]] = []
    real = fit.examples

    def examples(session: Tokens, tokenizer: Any, prior: Prior, without: Any) -> Rows:
        asked.append(prior.weights)
        return real(session, tokenizer, prior, without)

    monkeypatch.setattr(fit, "examples", examples)
    fit.fitted(sessions[:1], BYTES, {"full": evidence.unfitted()}, rounds=2)
    assert asked[0] == evidence.unfitted()
    assert len(asked) == 2
    assert asked[1] != asked[0]


def test_processes_give_what_one_gives(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = [talk("abc abc", id="1"), talk("abd abd", id="2")]
    start = {"full": evidence.unfitted()}
    many = fit.fitted(sessions, BYTES, start, jobs=1)
    monkeypatch.setattr(fit, "ProcessPoolExecutor", InProcess)
    assert many == fit.fitted(sessions, BYTES, start)


def test_every_source_is_held_out_once() -> None:
    sources = [f"s{n}" for n in range(12)] * 2
    groups = list(fit.folds(sources))
    assert len(groups) == 5
    assert sorted(name for group in groups for name in group) == sorted(set(sources))
    assert list(fit.folds(["b", "a"])) == [{"a"}, {"b"}]
    assert list(fit.folds([])) == []


class Bytes(Vocabulary):
    def __call__(self) -> Tokenizer:
        return BYTES()

    def identity(self) -> str:
        return "bytes"


@pytest.fixture
def folder(tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of two sessions, and a vocabulary of bytes for the command."""
    from agentspec.replay.store import ArrayStore

    monkeypatch.setattr(inputs, "vocabulary_of", lambda model: Bytes(Path("unused")))
    monkeypatch.setattr(ArrayStore, "default", classmethod(lambda cls, kind: cls(None)))
    (tmp_path / "traces").mkdir()
    for source in ("one", "two"):
        lines = []
        for id in ("a", "b"):
            said = [{"role": "user", "content": "go"},
                    {"role": "assistant", "content": f"Let us go, {source} {id}"}]  # fmt: skip
            lines.append(json.dumps({"id": id, "messages": said}))
        (tmp_path / "traces" / f"{source}.jsonl").write_text("\n".join(lines))
    return tmp_path


def written(path: Path) -> dict[str, Any]:
    data = json.loads(path.read_text("utf-8"))
    assert isinstance(data, dict)
    return data


def test_the_command_fits_on_all_that_is_not_left(folder: Path) -> None:
    out, leave = folder / "out.json", folder / "leave.list"
    argv = [str(folder / "traces"), "--out", str(out), "--rounds", "1"]
    assert fit.main(argv) == 0
    data = written(out)
    assert set(data["sessions"]) == {
        session_digest(source, id) for source in ("one", "two") for id in ("a", "b")
    }
    assert {"full", "plain"} < set(data)
    assert any("Let us" in phrase or "et us" in phrase for phrase in data["habits"])
    leave.write_text(json.dumps([["one.jsonl", "a"], ["two.jsonl", "b"]]))
    assert fit.main([*argv, "--leave", str(leave), "--full-only"]) == 0
    left = written(out)
    assert set(left["sessions"]) == {session_digest("one", "b"), session_digest("two", "a")}
    assert "plain" not in left
    assert Prior.from_json(left, "full").weights != Prior.from_json(data, "full").weights


def test_what_is_held_out_is_not_fitted_on(folder: Path) -> None:
    held = folder / "held"
    argv = [str(folder / "traces"), "--held-out", str(held), "--full-only", "--rounds", "1"]
    assert fit.main(argv) == 0
    assert sorted(path.name for path in held.iterdir()) == ["one.json", "two.json"]
    for source, other in (("one", "two"), ("two", "one")):
        data = written(held / f"{source}.json")
        assert set(data["sessions"]) == {session_digest(other, id) for id in ("a", "b")}
        assert data["habits"] == []  # one source is left


def test_the_first_candidates_are_chosen_by_the_given_priors(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = folder / "start.json"
    argv = [str(folder / "traces"), "--out", str(start), "--rounds", "1", "--full-only"]
    fit.main(argv)
    known = Prior.from_json(written(start), "full").weights
    assert known != evidence.unfitted()
    seen: list[tuple[float, ...]] = []
    real = fit.fitted

    def fitted(sessions: Any, vocabulary: Any, start: Any, **more: Any) -> Any:
        seen.append(tuple(start["full"]))
        return real(sessions, vocabulary, start, **more)

    monkeypatch.setattr(fit, "fitted", fitted)
    assert fit.main([*argv, "--start", str(start)]) == 0
    assert seen == [known]


def test_a_mark_in_an_answer_ends_no_phrase() -> None:
    """Phrases over special ids would be drafted as ids that text never has."""
    encoder = ChatEncoder(BYTES())
    made = [
        encoder.encode(recording("ab", "ab", id=source, source=source)) for source in ("a", "b")
    ]
    assert fit.habits(made, BYTES()) == ["ab"]
