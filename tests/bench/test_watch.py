"""What is kept of passes: times, counts, text; and that watching changes nothing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from agentspec.bench.watch import Counts, Pass, Watch, columns
from agentspec.testing.scripted import ScriptedTokenizer
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, Verdict

ASK = [{"role": "user", "content": "one and two"}]
REPLY = "one and two and one and two and one and two"


def one(verdict: Verdict, at: float, took: float = 0.5, rows: int | None = None) -> Pass:
    n = len(verdict.draft) + 1 if rows is None else rows
    return Pass(at, 0.125, 0.25, at + took, n, 40, verdict)


def chain(tokens: bytes, source: str, classes: tuple[str, ...] = ()) -> Draft:
    return Draft.chain(list(tokens), source, Evidence(classes=classes))


def test_a_watched_answer_is_the_same_and_every_pass_is_kept(chat: Any) -> None:
    engine = chat.engine(chat.writing(REPLY))
    bare = engine.complete(ASK, max_tokens=60).choices[0].message.content
    watch = Watch()
    with engine.drafting_as(watch.seat):
        again = engine.complete(ASK, max_tokens=60).choices[0].message.content
    assert again == bare == REPLY
    passes, stats = watch.take(), engine.last_stats
    assert watch.take() == []
    assert len(passes) == stats.passes
    assert [t for p in passes for t in p.verdict.tokens] == [*REPLY.encode(), chat.eos]
    assert sum(p.verdict.accepted for p in passes) == stats.accepted > 10
    assert sum(p.verifying for p in passes) == pytest.approx(stats.verify_seconds)
    for before, after in pairwise(passes):
        assert before.start + before.drafting + before.verifying <= before.end <= after.start
    assert passes[0].context == stats.prompt_tokens - 1
    engine.complete(ASK, max_tokens=5)
    assert watch.take() == []  # outside the block nothing is watched


def test_plain_answers_are_watched_too(chat: Any) -> None:
    engine = chat.engine(chat.writing("plain"))
    watch = Watch()
    with engine.drafting_as(watch.seat):
        engine.complete(ASK, speculation=False)
    assert [p.rows for p in watch.take()] == [1] * 6


def test_the_seats_are_put_back_when_an_answer_fails(chat: Any) -> None:
    engine = chat.engine(chat.writing("x"))
    watch = Watch()
    with pytest.raises(RuntimeError), engine.drafting_as(watch.seat):
        raise RuntimeError
    engine.complete(ASK)
    assert watch.take() == []


def test_columns_say_what_each_pass_did() -> None:
    tokenizer = ScriptedTokenizer(260, eos_ids=frozenset({259}))
    both = Draft((97, 98, 99, 100), ("lookup", "lookup", "edit", "edit"), (None,) * 4)
    passes = [
        one(Verdict(both, (97, 98, 99, 33), 3, 4), 2.0),
        one(Verdict(EMPTY_DRAFT, (0xC3,), 0, 0), 2.5),
        one(Verdict(chain(b"\xa9", "lookup"), (0xA9, 259), 1, 1, "stop"), 3.0, rows=4),
    ]
    table = columns(passes, tokenizer, lead=0.5)
    assert table["start"] == [500.0, 1000.0, 1500.0]
    assert table["end"] == [1000.0, 1500.0, 2000.0]
    assert (table["drafting"][0], table["verifying"][0]) == (125.0, 250.0)
    assert table["rows"] == [5, 1, 4]
    assert table["drafted"] == [4, 0, 1]
    assert table["accepted"] == [3, 0, 1]
    assert table["committed"] == [4, 1, 2]
    assert table["sources"] == [[["lookup", 2, 2], ["edit", 2, 1]], [], [["lookup", 1, 1]]]
    # half a character waits for its other half, and the end of the text is no text
    assert table["text"] == [
        [["ab", "lookup"], ["c", "edit"], ["!", None]],
        [],
        [["é", "lookup"]],
    ]
    assert "text" not in columns(passes[1:2], tokenizer)
    assert columns([], tokenizer)["end"] == []


def test_counts_are_by_source_and_by_class() -> None:
    counts = Counts()
    draft = chain(b"abcd", "lookup", ("word", "word", "indent", "indent", "never used"))
    counts.add([one(Verdict(draft, (97, 98, 120), 2, 3), 0.0)])
    counts.add([one(Verdict(chain(b"a", "draft"), (97, 98), 1, 1), 0.0)])
    assert {n: (c.drafted, c.judged, c.accepted) for n, c in counts.sources.items()} == {
        "lookup": (4, 3, 2),
        "draft": (1, 1, 1),
    }
    assert {n: (c.drafted, c.judged, c.accepted) for n, c in counts.classes.items()} == {
        "word": (2, 2, 2),
        "indent": (2, 1, 0),
    }
