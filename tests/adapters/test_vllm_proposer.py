"""The proposer for vLLM on arrays as vLLM 0.32 gives them: rows that move, end and come back."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.adapters import vllm_texts
from agentspec.adapters.vllm_price import RowPrice
from agentspec.adapters.vllm_proposer import AgentSpecProposer
from agentspec.adapters.vllm_tools import tools_in
from agentspec.control.prior import Prior
from agentspec.control.survival import Survival
from agentspec.errors import ConfigError
from agentspec.propose.lookup import Lookup
from agentspec.types import EMPTY_DRAFT, Draft, SamplingParams, TurnContext, Verdict

K, ROOM, VOCAB, END = 6, 160, 500, 499
PLACES = 12
SONG = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def config(k: int = K, room: int = ROOM, vocab: int = VOCAB) -> Any:
    """What the proposer reads of a VllmConfig."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=k),
        model_config=SimpleNamespace(
            max_model_len=room,
            get_vocab_size=lambda: vocab,
            hf_config=SimpleNamespace(eos_token_id=[END]),
        ),
    )


def make(**options: Any) -> AgentSpecProposer:
    options.setdefault("tokenizer", None)
    options.setdefault("clock", lambda: 0.0)
    return AgentSpecProposer(options.pop("config", config()), **options)


class Batch:
    """The persistent batch of a runner: rows fill the first places, freed ones are filled up.

    A request is a prompt and the tokens that its target will say; a pass accepts what a draft has
    of them and adds one, as greedy rejection does.
    """

    def __init__(self, proposer: AgentSpecProposer, room: int = ROOM) -> None:
        self.proposer = proposer
        self.room = room
        self.tokens = np.full((PLACES, room), -7, dtype=np.int32)
        self.counts = np.zeros(PLACES, dtype=np.int32)
        self.rows: list[str] = []
        self.says: dict[str, list[int]] = {}
        self.text: dict[str, list[int]] = {}
        self.drafts: dict[str, list[int]] = {}
        self.away: list[str] = []
        self.passes = 0

    def add(self, name: str, prompt: Sequence[int], says: Sequence[int]) -> None:
        self.says[name] = list(says)
        self.text[name] = list(prompt)
        self.drafts[name] = []
        self._place(name)

    def _place(self, name: str) -> None:
        self.rows.append(name)
        self._write(len(self.rows) - 1)

    def _write(self, at: int) -> None:
        text = self.text[self.rows[at]]
        self.tokens[at] = -7
        self.tokens[at, : len(text)] = text
        self.counts[at] = len(text)

    def remove(self, name: str) -> None:
        """The last row takes the place that became free."""
        at = self.rows.index(name)
        last = self.rows.pop()
        if last != name:
            self.rows[at] = last
            self._write(at)
        self.drafts[name] = []

    def preempt(self, name: str) -> None:
        self.remove(name)
        self.away.append(name)

    def resume(self) -> None:
        self._place(self.away.pop(0))

    def swap(self, i: int, j: int) -> None:
        self.rows[i], self.rows[j] = self.rows[j], self.rows[i]
        self._write(i)
        self._write(j)

    def step(self, reading: Sequence[str] = ()) -> list[list[int]]:
        """One pass; rows of `reading` have not read all of their prompt yet."""
        self.passes += 1
        sampled: list[list[int]] = []
        for at, name in enumerate(self.rows):
            run = [] if name in reading else self._accepted(name)
            self.text[name] += run
            self._write(at)
            # verified tokens that were rejected stay behind the text
            end = len(self.text[name])
            self.tokens[at, end : end + 3] = 3
            sampled.append(run)
        drafts = self.proposer.propose(sampled, self.counts, self.tokens, slot_mappings={})
        self.drafts.update(zip(self.rows, drafts, strict=True))
        return drafts

    def _accepted(self, name: str) -> list[int]:
        left, run = self.says[name], []
        for token in self.drafts[name]:
            if not left or token != left[0]:
                break
            run.append(left.pop(0))
        run.append(left.pop(0) if left else END)
        return run[: self.room - len(self.text[name])]


class Naive:
    """A lookup for each request by its name: what rows with names would get."""

    def __init__(self) -> None:
        self.survival = Survival(Prior.shipped("plain"))
        self.lookups: dict[str, Lookup] = {}
        self.seen: dict[str, int] = {}
        self.drafts: dict[str, Draft] = {}

    def draft(self, name: str, text: Sequence[int], sampled: int) -> list[int]:
        if name not in self.lookups:
            self.lookups[name] = Lookup(
                self.survival.chance, least=lambda: 0.1, ends=frozenset({END})
            )
            self.seen[name] = len(text) - sampled
            chance: Any = None
            turn = TurnContext(text[: self.seen[name]], SamplingParams(), chance)
            self.lookups[name].begin(turn)
        new = text[self.seen[name] :]
        before = self.drafts.get(name, EMPTY_DRAFT)
        right = 0
        while right < min(len(new), len(before)) and new[right] == before.tokens[right]:
            right += 1
        verdict = Verdict.of(before, new, range(right), None)
        self.lookups[name].observe(new, verdict)
        self.survival.observe(before, right, verdict.judged)
        self.seen[name] = len(text)
        made = self.lookups[name].propose(min(K, ROOM - len(text)))
        self.drafts[name] = made
        if not made.tokens or self.survival.of(made, 0) < 0.1:
            return []
        return list(made.tokens)


def song(n: int, at: int = 0) -> list[int]:
    return [SONG[i % len(SONG)] for i in range(at, at + n)]


def test_what_followed_earlier_is_drafted_up_to_k_tokens() -> None:
    batch = Batch(make())
    batch.add("a", [1, *song(23)], song(60, 23))
    assert batch.step() == [song(K, 24)]
    for _ in range(5):
        assert batch.step() == [song(K, len(batch.text["a"]) - 1)]
    assert batch.text["a"] == [1, *song(len(batch.text["a"]) - 1)]
    # all drafts stood: K + 1 tokens a pass
    assert len(batch.text["a"]) == 24 + 1 + 5 * (K + 1)


def test_no_draft_reaches_behind_the_models_length() -> None:
    batch = Batch(make(config=config(room=38)), room=38)
    batch.add("a", [1, *song(32)], song(60, 32))
    assert batch.step() == [song(38 - 34, 33)]
    assert batch.step() == [[]]
    assert batch.counts[0] == 38


def test_rows_without_names_keep_their_lookups_when_they_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = counted(monkeypatch)
    batch = Batch(make())
    for number, name in enumerate("abcd"):
        batch.add(name, [number + 1, *song(12, number)], song(60, 12 + number))
    batch.step()
    batch.swap(0, 3)
    batch.step()
    batch.swap(1, 2)
    batch.remove("a")
    batch.step()
    batch.step()
    assert len(begun) == 4
    for text in batch.proposer.texts:
        assert text.tokens.tolist() in batch.text.values()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the prompts with which lookups begin."""
    begun: list[int] = []
    begin = Lookup.begin

    def count(self: Lookup, turn: TurnContext) -> None:
        begun.append(len(turn.tokens))
        begin(self, turn)

    monkeypatch.setattr(Lookup, "begin", count)
    return begun


def test_a_request_that_was_preempted_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = counted(monkeypatch)
    batch = Batch(make())
    batch.add("a", [1, *song(20)], song(60, 20))
    batch.add("b", [2, *song(20)], song(60, 20))
    batch.step()
    batch.preempt("a")
    batch.step()
    batch.step()
    batch.resume()
    drafts = batch.step()
    assert drafts[1] == song(K, len(batch.text["a"]) - 1)
    assert len(begun) == 2


def test_steps_that_were_missed_are_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near the end of another row vLLM asks nobody for drafts."""
    begun = counted(monkeypatch)
    batch = Batch(make())
    batch.add("a", [1, *song(80)], song(60, 80))
    batch.step()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch.proposer, "propose", lambda sampled, *_, **__: [[] for _ in sampled])
        batch.step()
        batch.step()
    assert batch.step() == [song(K, len(batch.text["a"]) - 1)]
    assert begun == [81, len(batch.text["a"]) - 1]
    assert len(batch.proposer.texts) == 1


def test_the_next_turn_takes_over_the_text_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = counted(monkeypatch)
    loaded: list[int] = []
    begin = vllm_texts.Text.begin

    def shared(self: vllm_texts.Text, row: vllm_texts.Row, tools: Any) -> None:
        loaded.append(self.shared(row.tokens))
        begin(self, row, tools)

    monkeypatch.setattr(vllm_texts.Text, "begin", shared)
    batch = Batch(make())
    history = [1, *range(30, 110)]
    batch.add("turn 1", history, [200, 201, 202])
    for _ in range(3):
        batch.step()
    batch.remove("turn 1")
    batch.add("turn 2", [*history, 200, 201, 202, *song(30)], [7, 8, 9])
    batch.step()
    batch.add("another", [2, *range(40, 120)], [7, 8, 9])
    batch.step()
    assert begun == [81, 114, 81]
    assert loaded == [0, len(history) + 3, 0]
    assert len(batch.proposer.texts) == 2


def test_a_prompt_is_no_answer_though_it_goes_on_behind_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = counted(monkeypatch)
    batch = Batch(make())
    batch.add("turn 1", [1, *range(30, 110)], [200])
    batch.step()
    batch.remove("turn 1")
    batch.add("turn 2", [1, *range(30, 110), 200, 5], [7, 8, 9])
    batch.step()
    assert begun == [81, 83]


def test_rows_whose_prompt_is_still_read_get_nothing() -> None:
    batch = Batch(make())
    batch.add("a", [1, *song(23)], song(60, 23))
    batch.add("b", [2, *song(23)], song(60, 23))
    assert batch.step(reading=["a"]) == [[], song(K, 24)]
    assert batch.step()[0] == song(K, 24)


def test_a_row_that_does_not_end_with_its_sampled_tokens_gets_nothing() -> None:
    """Placeholders of asynchronous scheduling, or another interface than is known."""
    proposer = make()
    tokens = np.asarray([[1, *song(23), 12]], dtype=np.int32)
    counts = np.asarray([25], dtype=np.int32)
    assert proposer.propose([[-1]], counts, tokens) == [[]]
    assert proposer.propose([[12]], counts, tokens) != [[]]


def test_a_row_that_fails_is_left_without_a_draft_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []
    propose = Lookup.propose

    def fail(self: Lookup, most: int) -> Draft:
        if self._tail[:1] == [1]:
            tried.append(1)
            raise RuntimeError("a fault")
        return propose(self, most)

    monkeypatch.setattr(Lookup, "propose", fail)
    batch = Batch(make())
    batch.add("a", [1, *song(23)], song(60, 23))
    batch.add("b", [2, *song(23)], song(60, 23))
    for _ in range(2):
        drafts = batch.step()
        assert not drafts[0]
        assert drafts[1] == song(K, len(batch.text["b"]) - 1)
    assert caplog.text.count("without drafts: a fault") == 1
    assert len(tried) == 1


def test_a_text_that_failed_is_known_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def fail(self: Lookup, turn: TurnContext) -> None:
        tried.append(len(turn.tokens))
        raise RuntimeError("a fault")

    monkeypatch.setattr(Lookup, "begin", fail)
    batch = Batch(make())
    batch.add("a", [1, *song(80)], song(60, 80))
    for _ in range(3):
        assert batch.step() == [[]]
        (text,) = batch.proposer.texts
        assert text.tokens.tolist() == batch.text["a"]
    assert tried == [81]
    batch.remove("a")
    batch.add("the next turn", batch.text["a"] + [5], song(60))
    batch.step()
    assert tried == [81, 85], "what failed is taken over by nobody"
    assert len(batch.proposer.texts) == 2


def test_ids_outside_the_vocabulary_are_cut_off() -> None:
    """Placeholders of images stand in prompts, and no target could verify them."""
    batch = Batch(make(config=config(vocab=16)))
    batch.add("a", [1, *song(23)], song(60, 23))
    assert batch.step() == [[15]]
    batch.step()
    assert batch.text["a"][-1] == 16
    assert batch.step() == [[]]


def test_nothing_is_drafted_behind_the_end_of_an_answer() -> None:
    batch = Batch(make())
    verse = [21, 22, 23, 24, END, 25, 26]
    batch.add("a", [1, *verse, *verse, 21], [22, 23, 24, END])
    assert batch.step() == [[23, 24, END]]


def test_an_unlikely_draft_is_not_sent_but_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[tuple[int, int]] = []
    observe = Survival.observe

    def count(self: Survival, draft: Draft, accepted: int, judged: int) -> None:
        learned.append((accepted, judged))
        observe(self, draft, accepted, judged)

    monkeypatch.setattr(Survival, "observe", count)
    monkeypatch.setattr(RowPrice, "least", lambda self: 1.5)
    batch = Batch(make())
    batch.add("a", [1, *song(23)], song(60, 23))
    assert batch.step() == [[]]
    assert batch.step() == [[]]
    assert learned == [(1, 1)]
    (text,) = batch.proposer.texts
    assert text.gain < 1.0, "it gave nothing"


def test_rows_whose_drafts_give_less_than_they_take_are_seldom_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a large batch the time of a draft is worth tokens of all the others."""
    asked: list[int] = []
    propose = Lookup.propose

    def count(self: Lookup, most: int) -> Draft:
        asked.append(self._tail[-1])
        return propose(self, most)

    monkeypatch.setattr(Lookup, "propose", count)
    monkeypatch.setattr(RowPrice, "worth", lambda self, seconds: 0.8)
    batch = Batch(make(config=config(room=400)), room=400)
    batch.add("sings", [1, *song(23)], song(360, 23))
    other = [101, 102, 103, *range(30, 60)] * 2
    batch.add("misleads", [*other, 101, 102], [103, *range(200, 340)])
    for _ in range(32):
        batch.step()
    of_song = sum(token in SONG for token in asked)
    assert of_song == 32
    assert 5 <= len(asked) - of_song <= 8


def test_a_new_row_is_judged_by_its_own_drafts_from_the_first_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a large batch a draft costs the time of several tokens."""
    monkeypatch.setattr(RowPrice, "worth", lambda self, seconds: K - 0.5)
    batch = Batch(make(config=config(room=400)), room=400)
    batch.add("sings", [1, *song(23)], song(360, 23))
    for _ in range(40):
        assert batch.step() == [song(K, len(batch.text["sings"]) - 1)]
    (text,) = batch.proposer.texts
    assert text.gain == K
    batch.remove("sings")
    other = [101, 102, 103, *range(30, 60)] * 2
    batch.add("misleads", [*other, 101, 102], [103, *range(200, 340)])
    for _ in range(40):
        batch.step()
    late = [text for text in batch.proposer.texts if text.tokens[0] == 101]
    assert [text.asks for text in late] == [6], "4 at first, then every 16th step"


def test_a_row_that_is_not_asked_is_only_known_until_it_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []
    observe = Lookup.observe

    def count(self: Lookup, accepted: Sequence[int], verdict: Verdict) -> None:
        told.append(len(accepted))
        observe(self, accepted, verdict)

    batch = Batch(make(config=config(room=400)), room=400)
    batch.add("a", [1, *range(30, 60)], [*range(100, 170), *song(12), *song(200)])
    batch.step()
    (text,) = batch.proposer.texts
    text.gain, text.asks = 0.5, 99
    monkeypatch.setattr(RowPrice, "worth", lambda self, seconds: 0.9)
    monkeypatch.setattr(Lookup, "observe", count)
    for _ in range(5):
        batch.step()
    # what was drafted before is judged, the rest waits
    assert told == [1]
    assert text.tokens.tolist() == batch.text["a"]
    while batch.says["a"][0] != SONG[0] or len(batch.says["a"]) > 205:
        batch.step()
    monkeypatch.setattr(RowPrice, "worth", lambda self, seconds: 0.0)
    (draft,) = batch.step()
    assert draft
    assert draft == song(len(draft), 1), "it was told of what was said meanwhile"
    assert sum(told) == len(batch.text["a"]) - 32


def test_no_draft_is_longer_than_the_runner_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rejection sampler asserts that, and the whole server would end."""
    asked: list[int] = []
    propose = Lookup.propose

    def count(self: Lookup, most: int) -> Draft:
        asked.append(most)
        return propose(self, most)

    monkeypatch.setattr(Lookup, "propose", count)
    batch = Batch(make(config=config(k=500, room=2000)), room=2000)
    batch.add("a", [1, *song(900)], song(900, 900))
    (draft,) = batch.step()
    assert asked == [128]
    assert len(draft) <= 128


def test_a_step_that_fails_ends_no_answer_and_many_end_the_drafts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = Batch(make(config=config(room=400)), room=400)
    batch.add("a", [1, *song(23)], song(300, 23))
    assert batch.step() != [[]]
    tried: list[int] = []

    def fail(self: vllm_texts.Texts, rows: Any) -> Any:
        tried.append(len(rows))
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(vllm_texts.Texts, "known", fail)
        assert batch.step() == [[]]
        assert len(batch.proposer.texts) == 0
    assert batch.step() != [[]], "one fault is no end"
    monkeypatch.setattr(vllm_texts.Texts, "known", fail)
    for _ in range(12):
        assert batch.step() == [[]]
    assert len(tried) == 8
    assert caplog.text.count("without drafts: no room") == 1
    assert caplog.text.count("no more drafts") == 1


def test_a_tokenizer_that_fails_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        eos_ids = frozenset({END})

        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    odd: Any = Odd()
    batch = Batch(make(tokenizer=odd))
    batch.add("a", [1, *song(23)], song(60, 23))
    assert batch.step() == [song(K, 24)]
    assert "drafts come from earlier text alone" in caplog.text


class TestParts:
    """Edit and skeleton, from the text alone."""

    TOOL: ClassVar[dict[str, Any]] = {
        "type": "function",
        "function": {
            "name": "write_the_file",
            "description": "Writes.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "body": {"type": "string"}},
                "required": ["path", "body"],
            },
        },
    }

    def run(self, chat: Any, prompt: str, said: str) -> tuple[str, set[str]]:
        """What is drafted behind what an answer said so far, and the sources of that."""
        tokenizer = chat.tokenizer()
        proposer = AgentSpecProposer(
            config(k=24, room=4096, vocab=chat.vocab), tokenizer=tokenizer, clock=lambda: 0.0
        )
        proposer.load_model(object())
        tokens = tokenizer.encode_special(prompt)
        row = np.zeros((1, 4096), dtype=np.int32)
        row[0, : len(tokens)] = tokens
        drafts: list[list[int]] = []
        for token in tokenizer.encode_special(said):
            row[0, len(tokens)] = token
            tokens.append(token)
            drafts = proposer.propose([[token]], np.asarray([len(tokens)], dtype=np.int32), row)
        (text,) = proposer.texts
        return tokenizer.decode(drafts[0]).decode(), set(text.drafted.sources)

    def test_the_fixed_parts_of_calls_come_from_the_tools_in_the_prompt(self, chat: Any) -> None:
        prompt = f"<|im_start|>system\n<tools>\n{json.dumps(self.TOOL, separators=(',', ':'))}"
        prompt += "\n</tools><|im_end|>"
        prompt += "<|im_start|>assistant\n"
        said = '<tool_call>\n{"name": "write_the_file", '
        assert self.run(chat, prompt, said) == ('"arguments": {"path": "', {"skeleton"})

    def test_what_a_tool_returned_is_drafted_as_a_call_quotes_it(self, chat: Any) -> None:
        lines = ["def area(w, h):", '    return "w" * h', "", "def rest():", "    pass"]
        shown = "\n".join(f"{n}: {line}" for n, line in enumerate(lines, 1))
        prompt = f"<|im_start|>tool\n{shown}<|im_end|><|im_start|>assistant\n"
        said = '{"old": "def area(w, h):\\n    ret'
        drafted, sources = self.run(chat, prompt, said)
        assert drafted.startswith('urn \\"w\\" * h\\n\\ndef')
        assert sources == {"edit"}


def test_tools_are_found_in_a_text_whatever_stands_around_them() -> None:
    tool = TestParts.TOOL
    plain = tool["function"]
    text = f'{{"name": broken {{"type": "x"}} <tools>{json.dumps(tool)}\n{json.dumps(plain)}'
    assert list(tools_in(text)) == [tool, plain]
    assert list(tools_in('{"name": "a", "arguments": {"parameters": 1}}')) == []


def test_hostile_prompts_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    decode = json.JSONDecoder.raw_decode

    def count(self: json.JSONDecoder, text: str, at: int = 0) -> Any:
        tried.append(at)
        return decode(self, text, at)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", count)
    nested = '{"name":' * 10_000
    assert list(tools_in(nested)) == []
    assert len(tried) <= 512
    assert list(tools_in('{"function": 3}{"type": {"function": []}}')) == []


class TestBounds:
    def rows(self, *texts: Sequence[int]) -> dict[int, vllm_texts.Row]:
        return {
            i: vllm_texts.Row(np.asarray(text, dtype=np.int32), 1) for i, text in enumerate(texts)
        }

    def texts(self, **limits: int) -> vllm_texts.Texts:
        return vllm_texts.Texts(lambda: Lookup(lambda slots: 0.5), lambda tokens: (), **limits)

    def seen(self, texts: vllm_texts.Texts, *rows: Sequence[int]) -> list[bool]:
        """Which of these rows have a text after a step with them."""
        given = self.rows(*rows)
        found = texts.known(given)
        got = []
        for i, row in given.items():
            text = found.get(i)
            if text is None:
                text = texts.begin(i, row)
            else:
                text.follow(row)
            got.append(text is not None)
        texts.trim()
        return got

    def test_the_text_seen_longest_ago_gives_way(self) -> None:
        texts = self.texts(room=100, most=9)
        assert self.seen(texts, range(40)) == [True]
        assert self.seen(texts, range(100, 140)) == [True]
        assert texts.held == 80
        assert self.seen(texts, range(200, 230)) == [True]
        assert sorted(int(text.tokens[0]) for text in texts) == [100, 200]

    def test_a_row_for_which_there_is_no_room_has_no_text(self) -> None:
        texts = self.texts(room=100, most=9)
        assert self.seen(texts, range(60), range(100, 160)) == [True, False]
        assert self.seen(texts, range(61), range(100, 161)) == [True, False]
        assert texts.held == 61

    def test_nothing_gives_way_for_a_row_that_has_no_room_even_so(self) -> None:
        texts = self.texts(room=100, most=9)
        self.seen(texts, range(30))
        assert self.seen(texts, range(500, 560), range(200, 250)) == [True, False]
        assert sorted(int(text.tokens[0]) for text in texts) == [0, 500]
        # a smaller one may still have room
        assert self.seen(texts, range(500, 561), range(200, 250), range(300, 330)) == [
            True, False, True,
        ]  # fmt: skip
        assert sorted(int(text.tokens[0]) for text in texts) == [300, 500]

    def test_live_texts_that_outgrow_the_room_give_way_too(self) -> None:
        texts = self.texts(room=100, most=9)
        assert self.seen(texts, range(50), range(100, 150)) == [True, True]
        self.seen(texts, range(51), range(100, 151))
        assert texts.held <= 100
        assert len(texts) == 1

    def test_their_number_is_bounded(self) -> None:
        texts = self.texts(room=10_000, most=2)
        for start in range(5):
            self.seen(texts, range(100 * start, 100 * start + 5))
        assert len(texts) == 2

    def test_rows_that_stay_are_compared_with_their_own_text_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        texts = self.texts()
        rows = [[n, 1, 2, 3] for n in range(50)]
        self.seen(texts, *rows)
        compared: list[int] = []
        begins = vllm_texts.Text.begins

        def count(text: vllm_texts.Text, row: vllm_texts.Row) -> bool:
            compared.append(1)
            return begins(text, row)

        monkeypatch.setattr(vllm_texts.Text, "begins", count)
        texts.known(self.rows(*([*row, 4] for row in rows)))
        assert len(compared) == 50

    def test_two_rows_that_say_the_same_have_a_text_each(self) -> None:
        texts = self.texts()
        self.seen(texts, range(90), range(90))
        found = texts.known(self.rows([9, 9], [9, 9, 9], range(91), range(91)))
        assert len({id(text) for text in found.values()}) == 2

    def test_rows_that_differ_far_back_alone_are_told_apart(self) -> None:
        texts = self.texts()
        self.seen(texts, [1, 5, 6, 7], [2, 5, 6, 7])
        found = texts.known(self.rows([2, 5, 6, 7, 8], [1, 5, 6, 7, 8]))
        assert {i: text.tokens[0] for i, text in found.items()} == {0: 2, 1: 1}

    def test_a_text_of_which_half_was_said_again_is_kept(self) -> None:
        texts = self.texts()
        self.seen(texts, range(200))
        self.seen(texts, [*range(100), *range(500, 600)])
        assert len(texts) == 2
        self.seen(texts, [*range(190), *range(700, 720)])
        assert sorted(int(text.tokens[-1]) for text in texts) == [599, 719]

    def test_a_row_is_a_text_and_what_was_sampled(self) -> None:
        texts = self.texts()
        self.seen(texts, [1, 2, 3], [1, 2, 3, 4])
        found = texts.known(self.rows([9, 9], [9, 9, 9], [1, 2, 3, 4, 5], [1, 2, 3, 4]))
        assert {i: len(text) for i, text in found.items()} == {2: 4, 3: 3}


class TestPrice:
    def after(self, seconds: Any, rows: Sequence[int], tokens: int = 2) -> RowPrice:
        price = RowPrice()
        for _ in range(20):
            for n in rows:
                price.observe(n, seconds(n), tokens)
        return price

    def test_rows_that_cost_nothing_are_drafted_for_the_least_chance(self) -> None:
        assert self.after(lambda n: 0.01, [1, 5, 9]).least() == 0.02
        assert self.after(lambda n: 0.02 if n == 1 else 0.01, [1, 5, 9]).least() == 0.02

    def test_a_row_costs_its_seconds_at_the_pace_of_the_batch(self) -> None:
        # 1 s and 0.1 s a row: the mean pass of 5 rows takes 1.5 s and gives 2 tokens
        price = self.after(lambda n: 1.0 + 0.1 * n, [1, 5, 9])
        assert price.least() == pytest.approx(0.1 * 2 / 1.5, rel=0.05)
        # and nothing pays where a row costs what it can give at best
        assert self.after(lambda n: float(n), [1, 2, 3]).least() >= 0.95

    def test_passes_that_are_all_alike_say_nothing(self) -> None:
        assert self.after(lambda n: 0.01, [4]).least() == RowPrice(first=0.1).least() == 0.1

    def test_time_is_worth_the_tokens_that_the_batch_gives_in_it(self) -> None:
        assert self.after(lambda n: 0.5, [4]).worth(0.1) == pytest.approx(0.1 * 2 / 0.5)
        assert RowPrice().worth(0.1) == 0.0

    def test_drafting_is_time_of_the_batch_too(self) -> None:
        """Else rows whose drafts all stand would not be asked as soon as many of them are."""
        price = RowPrice()
        for _ in range(20):
            price.spent(1.5)
            price.observe(4, 0.5, 2)
        assert price.worth(0.1) == pytest.approx(0.1 * 2 / 2.0)
        # that of a new conversation is no measure for those that follow
        price.spent(1e6)
        price.observe(4, 0.5, 2)
        assert price.worth(0.1) > 0.5 * 0.1 * 2 / 2.0

    def test_drafts_that_all_stand_are_asked_for_however_long_they_take(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [0.0]
        propose = Lookup.propose

        def slow(self: Lookup, most: int) -> Draft:
            now[0] += 0.01
            return propose(self, most)

        monkeypatch.setattr(Lookup, "propose", slow)
        batch = Batch(make(config=config(room=400), clock=lambda: now[0]), room=400)
        for n, name in enumerate("abcdefgh"):
            batch.add(name, [100 + n, *song(23)], song(360, 23))
        drafted = []
        for _ in range(40):
            now[0] += 0.005 + 0.0005 * sum(1 + len(d) for d in batch.drafts.values())
            drafted.append(sum(map(len, batch.step())))
        # alone a pass is 9 ms for 8 tokens; with drafts, 33 ms and 80 ms of drafting for 56
        assert min(drafted) == 8 * K

    def test_what_was_learned_is_forgotten(self) -> None:
        price = self.after(lambda n: float(n), [1, 2, 3])
        for _ in range(50):
            for n in (1, 2, 3):
                price.observe(n, 2.0, 2)
        assert price.least() < 0.1

    def test_a_pause_of_the_machine_is_no_cost_of_a_row(self) -> None:
        price, usual = (self.after(lambda n: 1.0 + 0.1 * n, [1, 5, 9]) for _ in range(2))
        price.observe(9, 1000.0, 2)
        assert price.least() < 3 * usual.least()

    def test_it_is_learned_from_passes_whose_rows_are_known(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[tuple[int, float, int]] = []
        monkeypatch.setattr(RowPrice, "observe", lambda self, *what: seen.append(what))
        now = [0.0]
        batch = Batch(make(clock=lambda: now[0]))

        def step(seconds: float, **options: Any) -> None:
            now[0] += seconds
            batch.step(**options)

        batch.add("a", [1, *song(23)], song(90, 23))
        step(5.0)  # a prompt was read
        step(0.5)
        batch.add("b", [2, *song(23)], song(90, 23))
        step(3.0, reading=["b"])
        step(4.0)
        batch.preempt("b")
        step(0.75)
        batch.resume()
        step(4.0)  # what was computed for it is computed again
        step(0.25)
        alone, both = 1 + K, 2 * (1 + K)
        assert seen == [(alone, 0.5, alone), (alone, 0.75, alone), (both, 0.25, both)]


class TestInterface:
    RUNNER = """
class GPUModelRunner:
    def propose_draft_token_ids(self, sampled_token_ids, slot_mappings):
        if spec_config.method == "ngram":
            draft_token_ids = self.drafter.propose(8, sampled_token_ids)
        elif spec_config.method == "custom_class":
            assert isinstance(sampled_token_ids, list)
            draft_token_ids = cast(Any, self.drafter).propose({})
        return draft_token_ids
"""
    CALL = (
        "sampled_token_ids, self.input_batch.num_tokens_no_spec, "
        "self.input_batch.token_ids_cpu, slot_mappings=slot_mappings"
    )

    def install(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, version: str, call: str
    ) -> None:
        path = folder / f"runner_{abs(hash(call))}.py"
        path.write_text(self.RUNNER.format(call), "utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        runner = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, runner)
        spec.loader.exec_module(runner)
        vllm: Any = SimpleNamespace(__version__=version)
        monkeypatch.setitem(sys.modules, "vllm", vllm)
        monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu_model_runner", runner)

    def test_the_interface_of_0_32_is_taken(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.install(monkeypatch, tmp_path, "0.32.1", self.CALL)
        make()
        assert not caplog.text

    def test_another_version_with_the_same_call_is_said_to_be_untried(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.install(monkeypatch, tmp_path, "0.40.0", self.CALL)
        make()
        assert "vLLM 0.40.0" in caplog.text

    @pytest.mark.parametrize(
        "call",
        ["8, sampled_token_ids", CALL.replace(", slot_mappings=slot_mappings", ""), "request_ids"],
    )
    def test_another_call_is_refused_with_both_versions(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str
    ) -> None:
        self.install(monkeypatch, tmp_path, "0.40.0", call)
        with pytest.raises(ConfigError, match=r"made for vLLM 0\.32\.0; vLLM 0\.40\.0 calls"):
            make()

    def test_a_runner_that_is_not_there_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        vllm: Any = SimpleNamespace(__version__="0.40.0")
        monkeypatch.setitem(sys.modules, "vllm", vllm)
        monkeypatch.delitem(sys.modules, "vllm.v1.worker.gpu_model_runner", raising=False)
        with pytest.raises(ConfigError, match="nowhere that could be found"):
            make()

    def test_vllm_builds_it_from_its_configuration_alone(self) -> None:
        assert "vllm" not in sys.modules
        proposer = AgentSpecProposer(config())
        proposer.load_model(object())
        assert proposer.propose([], np.zeros(4, np.int32), np.zeros((4, 8), np.int32)) == []


CALLS = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 0)),
    *(
        st.tuples(st.just(kind), st.integers(0, 7))
        for kind in ("add", "step", "step", "remove", "preempt", "resume", "swap", "reading")
    ),
)


@settings(max_examples=60)
@given(
    st.lists(CALLS, min_size=4, max_size=40),
    st.lists(st.lists(st.integers(4, 9), min_size=1, max_size=14), min_size=4, max_size=8),
    st.data(),
)
def test_rows_get_what_they_would_with_names(
    calls: list[tuple[str, int]], pieces: list[list[int]], data: st.DataObject
) -> None:
    batch, naive = Batch(make()), Naive()
    added = 0
    for what, number in calls:
        rows = len(batch.rows)
        if what == "add" and rows + len(batch.away) < PLACES:
            added += 1
            body = [token for piece in pieces[number % len(pieces) :] for token in piece]
            batch.add(f"r{added}", [100 + added, *body], (body + pieces[0]) * 2)
        elif what == "remove" and rows:
            batch.remove(batch.rows[number % rows])
        elif what == "preempt" and rows:
            batch.preempt(batch.rows[number % rows])
        elif what == "resume" and batch.away and rows < PLACES:
            batch.resume()
        elif what == "swap" and rows > 1:
            batch.swap(number % rows, (number + 1) % rows)
        else:
            fresh = [name for name in batch.rows if name not in naive.seen]
            reading = fresh[: number % 2] if what == "reading" else []
            before = {name: len(batch.text[name]) for name in batch.rows}
            drafts = batch.step(reading=reading)
            assert len(drafts) == rows
            for name, draft in zip(batch.rows, drafts, strict=True):
                text = batch.text[name]
                expected: list[int] = []
                if len(text) > before[name] and len(text) < ROOM:
                    expected = naive.draft(name, text, len(text) - before[name])
                assert draft == expected
