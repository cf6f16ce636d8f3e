"""Peers in the engine's own loop: the same text, their drafts, and why others are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentspec.bench.live import COLD, Way, compare
from agentspec.bench.peer_ways import RULES, peer_ways
from agentspec.bench.sessions import BenchSession
from agentspec.errors import BackendError

TEXT = "one and two and one and two and one and two"
SESSIONS = [
    BenchSession(name, "", [{"role": "user", "content": f"{name}: one and two and one"}])
    for name in ("a", "b")
]


def test_peers_draft_in_the_loop_and_the_text_is_the_targets(chat: Any) -> None:
    engine = chat.engine(chat.writing(TEXT))
    with peer_ways(engine) as plan:
        reports = compare(engine, SESSIONS, [COLD, *plan.ways], max_tokens=80, repeat=2,
                          details=True)  # fmt: skip
    assert list(reports) == ["cold", *RULES]
    most = {"prompt-lookup": 10, "suffix-1": 12, "ngram-simple": 48}
    for name, source in (("prompt-lookup", "prompt_lookup"), ("suffix-1", "suffix_decoding")):
        for result in reports[name].results:
            assert result.same_text
            assert set(result.sources) == {source}
            assert result.sources[source]["accepted"] > 5
            lengths = {len(p.verdict.draft) for run in result.fast for p in run.record}
            assert max(lengths) == most[name]
        assert reports[name].ratio > 0
        assert reports[name].outside is not None
    # all ways stand beside the same plain runs
    assert len({id(report.results[0].plain) for report in reports.values()}) == 1
    assert {id(r) for r in reports["cold"].results[0].plain} == {
        id(r) for r in reports["suffix-1"].results[0].plain
    }
    # and the engine drafts as itself again
    engine.complete(SESSIONS[0].messages)
    assert not {"prompt_lookup", "suffix_decoding"} & set(engine.last_stats.sources)


def test_a_session_starts_with_peers_that_have_seen_nothing(chat: Any) -> None:
    engine = chat.engine(chat.writing(TEXT))
    with peer_ways(engine) as plan:
        (way,) = (way for way in plan.ways if way.name == "prompt-lookup")
        assert way.seat is not None
        changes = [way.seat(session) for session in SESSIONS]
        seats = [change(engine._seats[0]) for change in changes]
        again = changes[0](engine._seats[0])
    first, second = (seat.proposers() for seat in seats)
    assert first[0] is not second[0]
    assert again.proposers()[0] is first[0]  # within a session they are kept
    assert seats[0].controller(first).choose([], 5).tokens == ()


def test_every_peer_that_is_not_there_says_why(chat: Any) -> None:
    with peer_ways(chat.engine(chat.writing("x"))) as plan:
        assert {way.name for way in plan.ways} == set(RULES)
        assert set(plan.unmeasured) == {
            "llama-server", "llama-server ngram-simple", "transformers", "vLLM",
        }  # fmt: skip
        assert set(plan.rules) == set(RULES) | set(plan.unmeasured)
    assert "no llama-server on PATH" in plan.unmeasured["llama-server"]
    assert "GGUF" in plan.unmeasured["vLLM"]


def test_a_target_without_a_file_has_no_server(chat: Any, tmp_path: Path) -> None:
    with peer_ways(chat.engine(chat.writing("x")), tmp_path / "llama-server") as plan:
        assert plan.unmeasured["llama-server"] == "the target is no GGUF file"


def test_a_way_that_fails_is_left_out_and_says_why(chat: Any) -> None:
    engine, asked = chat.engine(chat.writing(TEXT)), []

    def ask(session: BenchSession, options: Any) -> Any:
        asked.append(session.id)
        raise BackendError("it went away")

    reports = compare(engine, SESSIONS, [COLD, Way("other", ask=ask)], max_tokens=20, repeat=2)
    assert asked == ["a"]
    assert (reports["other"].failed, reports["other"].results) == ("it went away", [])
    assert len(reports["cold"].results) == 2
    assert reports["cold"].failed is None


@pytest.mark.parametrize("ways", [1, 3])
def test_the_order_is_turned_each_time(chat: Any, ways: int) -> None:
    engine, order = chat.engine(chat.writing("x")), []

    def way(number: int) -> Way:
        def seat(session: BenchSession) -> Any:
            def change(seat: Any) -> Any:
                order.append(number)
                return seat

            return change

        return Way(str(number), seat=seat)

    compare(engine, SESSIONS[:1], [way(i) for i in range(ways)], max_tokens=5, repeat=2)
    assert order == [*range(ways), *reversed(range(ways))]
