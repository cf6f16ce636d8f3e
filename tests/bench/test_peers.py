"""The peers against their rules, written out plainly, and inside the production loop."""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.backends import peers as called
from agentspec.bench.peers import (
    PEERS,
    Called,
    NgramSimple,
    PromptLookup,
    installed_peers,
    peer,
)
from agentspec.bench.suffix_decoding import SuffixDecoding
from agentspec.cli import replay as command
from agentspec.errors import ConfigError, MissingExtraError
from agentspec.replay import inputs
from agentspec.replay.chatml import Tokens
from agentspec.replay.run import Plan, Variant, replay, replay_session
from agentspec.replay.trace_file import PassTrace
from agentspec.testing.loop import Loop
from agentspec.testing.scripted import ScriptedBackend, ScriptedTokenizer
from agentspec.types import EMPTY_DRAFT, Proposer, SamplingParams, TurnContext, Verdict

LIBRARIES = {"transformers", "llama-cpp-python"}

SMALL = st.lists(st.integers(0, 2), max_size=40)
"""Three different tokens: everything occurs again and again."""


def drafted(proposer: Proposer, text: Sequence[int], room: int, *, prompt: int = 0) -> list[int]:
    """What is proposed after `text`, its first `prompt` tokens given as prompt, the rest seen."""
    begin(proposer, text[:prompt])
    proposer.observe(text[prompt:], Verdict(EMPTY_DRAFT, tuple(text[prompt:]), 0, 0))
    return list(proposer.propose(room).tokens)


def begin(proposer: Proposer, prompt: Sequence[int]) -> None:
    proposer.begin(TurnContext(prompt, SamplingParams(), chance=None))  # type: ignore[arg-type]


def naive_prompt_lookup(text: list[int], n: int, k: int, eos: Set[int], room: int) -> list[int]:
    for size in range(min(n, len(text) - 1), 0, -1):
        for start in range(size, len(text)):
            if text[start - size : start] == text[-size:]:
                run = text[start : start + k]
                ends = [j for j, token in enumerate(run) if token in eos]
                return run[: ends[0] if ends else k][:room]
    return []


@settings(max_examples=200)
@given(text=SMALL, split=st.integers(0, 40), room=st.integers(1, 12), eos=st.booleans())
def test_prompt_lookup_takes_the_first_place_of_the_longest_ngram(
    text: list[int], split: int, room: int, eos: bool
) -> None:
    ends: Set[int] = {2} if eos else set()
    proposer = PromptLookup(max_ngram=3, draft_tokens=5, eos_ids=ends)
    expected = naive_prompt_lookup(text, 3, 5, ends, room)
    assert drafted(proposer, text, room, prompt=split) == expected


def test_prompt_lookup_prefers_early_to_late_and_stops_before_the_end_of_an_answer() -> None:
    text = [1, 2, 7, 9, 1, 2, 8, 1, 2]
    assert drafted(PromptLookup(draft_tokens=2), text, 10) == [7, 9]
    assert drafted(PromptLookup(eos_ids={9}), text, 10) == [7]
    assert drafted(PromptLookup(eos_ids={7}), text, 10) == []


def test_prompt_lookup_is_what_llama_cpp_python_does() -> None:
    pytest.importorskip("llama_cpp")
    ask = called.llama_cpp_prompt_lookup()
    rng = np.random.default_rng(0)
    for size in range(1, 200):
        text = rng.integers(0, 5, size).astype(np.int32)
        assert drafted(PromptLookup(max_ngram=2), text.tolist(), 10) == ask(text)


def test_prompt_lookup_is_what_transformers_does() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    ask = called.transformers_prompt_lookup(eos_ids={4})
    rng = np.random.default_rng(0)
    for size in range(1, 200):
        text = rng.integers(0, 5, size).astype(np.int32)
        assert drafted(PromptLookup(eos_ids={4}), text.tolist(), 10) == ask(text)


def naive_ngram_simple(text: list[int], n: int, m: int, room: int) -> list[int]:
    history, last = text[:-1], text[-1:]
    if len(history) <= n + m + 1:
        return []
    pattern = history[len(history) - n + 1 :] + last
    for at in range(len(history) - n - 1, 0, -1):
        if history[at : at + n] == pattern:
            run = history[at + n :][:m]
            return run[:room] if len(run) >= n else []
    return []


@settings(max_examples=300)
@given(text=SMALL, split=st.integers(0, 40), n=st.integers(1, 4), room=st.integers(1, 9))
def test_ngram_simple_takes_the_latest_place_with_enough_behind_it(
    text: list[int], split: int, n: int, room: int
) -> None:
    proposer = NgramSimple(n=n, m=6)
    assert drafted(proposer, text, room, prompt=split) == naive_ngram_simple(text, n, 6, room)


def naive_suffix(
    text: list[int], factor: float, depth: int, min_prob: float, room: int
) -> tuple[list[int], int]:
    """Draft and match length, by counting every substring anew."""

    def places(run: list[int]) -> list[int]:
        ends = range(len(run), len(text) + 1)
        return [end for end in ends if text[end - len(run) : end] == run]

    best: list[int] = []
    best_score, best_match = 0.0, 0
    for match in range(1, min(depth, len(text) + 1)):
        prefix = text[-match:]
        matches = len(places(prefix))
        run: list[int] = []
        score = 0.0
        while len(run) < min(int(match * factor + 1e-6), depth - match, room):
            seen: Counter[int] = Counter()
            lead = -1
            for end in places(prefix + run):
                if end < len(text):
                    seen[text[end]] += 1
                    if seen[text[end]] >= seen[lead]:
                        lead = text[end]
            if lead < 0 or seen[lead] / matches < min_prob:
                break
            score += seen[lead] / matches
            run.append(lead)
        if run and score >= best_score:
            best, best_score, best_match = run, score, match
    return best, best_match


@settings(max_examples=300)
@given(
    text=SMALL,
    split=st.integers(0, 40),
    factor=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    depth=st.sampled_from([2, 5, 24]),
    min_prob=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    room=st.integers(1, 9),
)
def test_suffix_decoding_counts_every_match(
    text: list[int], split: int, factor: float, depth: int, min_prob: float, room: int
) -> None:
    proposer = SuffixDecoding(factor=factor, depth=depth, min_prob=min_prob)
    run, match = naive_suffix(text, factor, depth, min_prob, room)
    assert drafted(proposer, text, room, prompt=split) == run
    if run:
        assert proposer.propose(room).evidence.match_length == match


def test_suffix_decoding_drafts_in_proportion_to_the_match() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]
    assert drafted(SuffixDecoding(factor=0.5), text, 20) == [5, 6]
    assert drafted(SuffixDecoding(factor=1.0), text, 20) == [5, 6, 7, 8]
    assert drafted(SuffixDecoding(factor=1.0, depth=6), text, 20) == [5, 6, 7]
    assert drafted(SuffixDecoding(factor=1.0), text, 3) == [5, 6, 7]


def test_the_end_of_the_text_is_a_match_without_continuation() -> None:
    text = [1, 2, 3, 1, 2]
    assert drafted(SuffixDecoding(min_prob=0.5), text, 20) == [3, 1]
    assert drafted(SuffixDecoding(min_prob=0.51), text, 20) == []


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ([8, 1, 6, 9, 1, 5, 9, 1, 5, 8, 1], 6),  # after 8, 1 and not after any 1
        ([8, 1, 6, 8, 1, 6, 7, 8, 1, 5, 8, 1], 6),  # twice, though 5 was later
        ([8, 1, 5, 8, 1, 6, 8, 1], 6),  # the latest of equals
    ],
)
def test_suffix_decoding_follows_the_most_frequent_continuation(
    text: list[int], token: int
) -> None:
    assert drafted(SuffixDecoding(factor=0.5), text, 20) == [token]


@pytest.mark.parametrize(
    "make", [PromptLookup, lambda: NgramSimple(n=2, m=4), lambda: SuffixDecoding(factor=2.0)]
)
def test_another_text_is_not_mixed_with_the_one_before(make: Callable[[], Proposer]) -> None:
    proposer, fresh = make(), make()
    drafted(proposer, [1, 2, 9, 9, 9, 9, 9, 9, 1, 2, 9, 9, 1, 2], 8, prompt=4)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 1, 2]
    assert drafted(proposer, text, 8, prompt=16) == drafted(fresh, text, 8, prompt=16) != []
    longer = [*text, 3, 4]
    assert drafted(proposer, longer, 8, prompt=18) == drafted(make(), longer, 8, prompt=18) != []


def test_a_called_policy_sees_all_tokens_and_its_draft_fits_the_room() -> None:
    seen: list[list[int]] = []

    def policy(tokens: npt.NDArray[np.int32]) -> Sequence[int]:
        seen.append(tokens.tolist())
        return [5, 6, 7]

    proposer = Called("some library", policy)
    assert drafted(proposer, [1, 2, 3], 2, prompt=2) == [5, 6]
    assert drafted(proposer, [4], 8, prompt=1) == [5, 6, 7]
    assert seen == [[1, 2, 3], [4]]
    assert proposer.propose(1).sources == ("some library",)


def test_transformers_is_asked_with_the_settings_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    class Generator:
        def __init__(self, **settings: Any) -> None:
            asked.update(settings)

        def get_candidates(self, ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], None]:
            asked["ids"] = ids.tolist()
            return np.concatenate((ids, [[7, 8]]), axis=1), None

    torch = ModuleType("torch")
    torch.from_numpy = lambda array: array  # type: ignore[attr-defined]
    torch.tensor = list  # type: ignore[attr-defined]
    module = ModuleType("transformers.generation.candidate_generator")
    module.PromptLookupCandidateGenerator = Generator  # type: ignore[attr-defined]
    for name in ("transformers", "transformers.generation"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    proposers, controller = peer("transformers")({9, 3})
    assert drafted(proposers[0], [1, 2], 10) == [7, 8]
    assert asked["ids"] == [[1, 2]]
    assert asked["eos_token_id"] == [3, 9]
    assert (asked["max_matching_ngram_size"], asked["num_output_tokens"]) == (3, 10)
    assert asked["max_length"] > 1 << 20
    draft = proposers[0].propose(10)
    assert controller.choose([draft], 10) == draft
    peer("transformers")()
    assert asked["eos_token_id"] is None


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("transformers", "transformers"),
        ("transformers", "torch"),
        ("llama-cpp-python", "llama_cpp"),
    ],
)
def test_a_missing_library_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    for known in [known for known in sys.modules if known.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=name):
        peer(name)()


def test_peers_that_cannot_run_are_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("transformers", "torch", "llama_cpp"):
        for known in [known for known in sys.modules if known.partition(".")[0] == module]:
            monkeypatch.delitem(sys.modules, known)
        monkeypatch.setitem(sys.modules, module, None)
    found, skipped = installed_peers()
    assert found.keys() == PEERS.keys() - LIBRARIES
    assert [line.split()[1] for line in skipped] == ["transformers", "llama-cpp-python"]


def test_an_unknown_peer_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError) as error:
        peer("medusa")
    assert all(name in str(error.value) for name in PEERS)


CYCLE = [int(token) for token in np.random.default_rng(1).integers(1, 30, 40)]


@pytest.mark.parametrize("name", sorted(PEERS))
def test_the_loop_runs_every_peer_and_the_text_stays(name: str) -> None:
    script = (CYCLE * 6)[:200]
    try:
        proposers, controller = peer(name)({31})
    except MissingExtraError as missing:
        pytest.skip(str(missing))
    answer = Loop(ScriptedBackend.following(script, 32)).answer(
        script[:90], proposers, controller=controller, max_tokens=100
    )
    assert answer.tokens == script[90:190]
    assert not answer.stats.notes
    assert len(answer.verdicts) < 60
    assert max(len(verdict.draft) for verdict in answer.verdicts) == LENGTHS[name]


LENGTHS = {
    "prompt-lookup": 10,
    "ngram-simple": 39,
    "longest-4": 4,
    "longest-8": 8,
    "longest-16": 16,
    "suffix-0.5": 8,
    "suffix-1": 12,
    "suffix-2-deep": 42,
    "suffix-4-deep": 44,
    "transformers": 10,
    "llama-cpp-python": 10,
}
"""The longest draft on a text of period 40 whose period has come twice, and a bit."""


def test_peers_start_each_session_anew_in_any_process() -> None:
    for name in sorted(PEERS.keys() - LIBRARIES):
        assert pickle.loads(pickle.dumps(peer(name)))()
        one, other = peer(name)(), peer(name)()
        assert one[0][0] is not other[0][0]
        assert one[1] is not other[1]
        drafted(one[0][0], CYCLE * 3, 4)
        assert drafted(other[0][0], CYCLE[:5], 4, prompt=5) == []


def cycle_session() -> Tokens:
    """Two answers of a text that repeats itself; 31 ends an answer."""
    ids = [*CYCLE, 31, *CYCLE, 31, *CYCLE, 31]
    return Tokens("a", "cycles", ids, [(41, 82), (82, 123)], end=31)


def test_a_replay_runs_a_peer_and_gives_it_no_earlier_session() -> None:
    tokens, tokenizer = cycle_session(), ScriptedTokenizer(32)
    plan = Plan({"flat": {1: 1.0, 64: 1.0}}, [Variant("peer", peer=peer("longest-8"))])
    cold, warm = replay([tokens], lambda: tokenizer, plan)
    assert cold.tally.proposers.keys() == {"lookup"}
    assert cold.tally.tokens == 82
    assert cold.tally.passes < 20
    *_, after_itself = replay([tokens, tokens], lambda: tokenizer, plan)
    assert (after_itself.state, after_itself.tally) == ("warm", warm.tally)


def test_no_peer_that_knows_the_ends_of_answers_drafts_one() -> None:
    def drafts_of_the_end(name: str) -> int:
        tokens, way = cycle_session(), Variant(peer=peer(name))
        trace = PassTrace("a", "cycles")
        replay_session(tokens, ScriptedTokenizer(32), {1: 1.0}, way, trace=trace)
        return sum(31 in json.loads(line)["drafted"] for line in trace.lines)

    assert drafts_of_the_end("prompt-lookup") == 0
    assert drafts_of_the_end("longest-16") > 0


def test_the_command_replays_peers_beside_the_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Vocabulary:
        path = Path("model.gguf")

        def __call__(self) -> ScriptedTokenizer:
            return ScriptedTokenizer(32)

    for module in ("transformers", "torch"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(inputs, "vocabulary_of", lambda model: Vocabulary())
    monkeypatch.setattr(inputs, "read_sessions", lambda *rest, **more: [cycle_session()])
    file = tmp_path / "session.json"
    file.write_text('{"messages": [{"role": "user", "content": "hi"}]}', "utf-8")
    options = [str(file), "--cold", "--peers", "--no-cache", "--json", "--curve", "flat"]
    result = CliRunner().invoke(command.replay, options)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    names = set(report["variants"])
    assert {"full", "peer prompt-lookup", "peer suffix-1", "peer longest-16"} <= names
    assert "peer transformers" not in names
    assert report["settings"]["skipped"][0].startswith("peer transformers skipped")
