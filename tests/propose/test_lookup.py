"""Lookup: what it drafts from each kind of text, under which name, turn after turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.context import evidence
from agentspec.context.growth import MOST
from agentspec.context.habits import habit_index
from agentspec.context.index import SEPARATOR, TokenIndex
from agentspec.context.pool import Corpus
from agentspec.context.shapes import Shapes
from agentspec.context.skeleton import Skeleton
from agentspec.engine.sampling import SeededChance
from agentspec.propose.lookup import Lookup
from agentspec.syntax.cursor import Cursor
from agentspec.testing.scripted import ScriptedTokenizer
from agentspec.types import EMPTY_DRAFT, Draft, SamplingParams, TurnContext, Verdict

Runs = Sequence[tuple[str, Sequence[int]]]
TOKENIZER = ScriptedTokenizer(260, special={256: "<|im_start|>", 257: "<|im_end|>"})
HABITS = habit_index(["Let me look"], TOKENIZER)


def by_length(slots: Sequence[int]) -> float:
    """A chance that rises with the longest match, halved for who is not the likeliest."""
    chance = 0.4 + 0.04 * (slots[0] // 4)
    return chance / 2 if evidence.ranked(slots) else chance


def turn(
    tokens: Sequence[int], context: Runs = (), tools: Sequence[Mapping[str, Any]] = ()
) -> TurnContext:
    return TurnContext(tokens, SamplingParams(), SeededChance(0), context, tools)


def feed(lookup: Lookup, tokens: Sequence[int], draft: Draft = EMPTY_DRAFT) -> None:
    lookup.observe(tokens, Verdict(EMPTY_DRAFT, tuple(tokens), 0, 0))


def plain(**options: Any) -> Lookup:
    options.setdefault("least", lambda: 0.0)
    return Lookup(by_length, **options)


def with_all(leaves: int = 1) -> Lookup:
    return plain(
        leaves=leaves,
        ends=TOKENIZER.eos_ids,
        cursor=Cursor(TOKENIZER.piece),
        shapes=Shapes(TOKENIZER),
        skeleton=Skeleton(TOKENIZER),
        habits=HABITS,
    )


def origins(draft: Draft) -> set[int]:
    """Which kinds of text the tokens of a draft point into."""
    first, width = evidence._ORIGIN, 8 * 3
    slots = [s for f in draft.evidence.features for s in f]
    return {(s - first) // width for s in slots if first <= s < first + 5 * width}


def test_continues_the_longest_earlier_match() -> None:
    lookup = plain()
    lookup.begin(turn([1, 2, 3, 9, 7, 2, 3, 8, 1, 2, 3]))
    draft = lookup.propose(4)
    assert draft.tokens == (9, 7, 2, 3)
    assert draft.sources == ("lookup",) * 4
    assert draft.deterministic
    assert draft.parents is None
    assert draft.evidence.match_length == 3
    assert len(draft.evidence.features) == 4
    feed(lookup, [9, 7])
    assert lookup.propose(2).tokens == (2, 3)
    lookup.begin(turn([1, 2, 3]))
    assert lookup.propose(2) == EMPTY_DRAFT


def test_the_text_goes_on_behind_a_replaced_token() -> None:
    """Nothing matches right behind the edit; the old text is drafted all the same."""
    lookup = plain()
    lookup.begin(turn([*range(20, 40), 1, 2, 3, *range(20, 26)]))
    assert lookup.propose(4).tokens == (26, 27, 28, 29)
    feed(lookup, [26, 27, 5])
    assert lookup.propose(4).tokens == (29, 30, 31, 32)
    slots = lookup.propose(1).evidence.features[0]
    assert evidence.broken_slot(8, 0, 0) in slots


def test_a_period_goes_on() -> None:
    lookup = plain()
    lookup.begin(turn([9, *[1, 2, 3] * 3]))
    assert lookup.propose(8).tokens == (1, 2, 3, 1, 2, 3, 1, 2)


def test_a_draft_ends_where_it_hardly_stands() -> None:
    bound = [0.0]
    lookup = plain(least=lambda: bound[0])
    lookup.begin(turn([*range(40), 1, 2, 3]))
    assert lookup.propose(20).tokens == tuple(range(4, 24))
    assert len(lookup.propose(1000)) == MOST
    bound[0] = 0.25  # asked anew each time
    assert lookup.propose(20).tokens == (4, 5)


def test_drafts_from_context_carry_the_name_of_their_run() -> None:
    context = [("a.py", [1, 2, 3, 4]), ("b.py", [5, 6, 7, 8, 9]), ("expected", [9, 1, 6])]
    lookup = plain()
    lookup.begin(turn([0, 5, 6, 7], context))
    draft = lookup.propose(9)
    assert (draft.tokens, draft.sources) == ((8, 9), ("b.py",) * 2)
    assert origins(draft) == {evidence.ORIGINS.index("given")}
    feed(lookup, [2, 3])
    draft = lookup.propose(9)
    assert (draft.tokens, draft.sources) == ((4,), ("a.py",))
    lookup.begin(turn([0, 9, 1], context[1:]))
    assert lookup.propose(9).sources == ("expected",)
    lookup.begin(turn([0, 9, 1], context[:1]))
    assert "expected" not in lookup.propose(9).sources


def test_what_agrees_in_context_and_text_is_drafted_from_either() -> None:
    lookup = plain()
    lookup.begin(turn([3, 1, 2, 7, 0, 3, 1, 2], [("a.py", [4, 1, 2, 8])]))
    assert lookup.propose(1) == Draft.chain([7], "lookup", lookup.propose(1).evidence)
    lookup.begin(turn([4, 1, 2, 7, 0, 3, 1, 2], [("a.py", [3, 1, 2, 8])]))
    assert lookup.propose(1).sources == ("a.py",)


def test_no_draft_crosses_from_one_run_into_the_next() -> None:
    context = [("a.py", [1, 2]), ("b.py", [3, 4, 5])]
    lookup = plain()
    lookup.begin(turn([0, 1, 2], context))
    assert lookup.propose(4) == EMPTY_DRAFT


def test_the_next_turn_keeps_what_is_the_same() -> None:
    lookup = plain()
    lookup.begin(turn(list(range(5000))))
    feed(lookup, [5000, 5001, 5002])
    part = lookup._live._parts[0]
    # the answer came back in other tokens, then a question was added
    lookup.begin(turn([*range(5001), 7, 8]))
    assert lookup._live.tokens.tolist() == [*range(5001), 7, 8]
    assert lookup._live._parts[0] is part
    assert lookup.propose(2).tokens == (9, 10)
    lookup.begin(turn([3, 4]))
    assert lookup._live.tokens.tolist() == [3, 4]
    assert lookup.propose(2) == EMPTY_DRAFT


def test_answers_are_told_from_prompts() -> None:
    lookup = plain()
    answer, prompt = evidence.ORIGINS.index("answer"), evidence.ORIGINS.index("prompt")
    lookup.begin(turn([1, 2, 3, 4]))
    feed(lookup, [11, 12, 13])
    lookup.end()
    text = [1, 2, 3, 4, 11, 12, 13, 21, 22, 23]
    for place, origin in ((2, prompt), (11, answer), (21, prompt)):
        lookup.begin(turn([*text, place]))
        assert origins(lookup.propose(1)) == {origin}, place
        lookup.end()
    # what is being written is an answer too
    lookup.begin(turn([1, 2]))
    feed(lookup, [31, 32, 33, 31])
    assert lookup.propose(1).tokens == (32,)
    assert origins(lookup.propose(1)) == {answer}
    # an answer that the next prompt leaves out, or has in other tokens, is none
    lookup.end()
    lookup.begin(turn([1, 2, 31, 41, 42, 43, 31]))
    assert lookup.propose(1).tokens == (41,)
    assert origins(lookup.propose(1)) == {prompt}
    lookup.begin(turn([1, 2, 3, 1, 2]))
    assert origins(lookup.propose(1)) == {prompt}


def test_answers_that_nobody_ended_have_an_end() -> None:
    lookup = plain()
    lookup.begin(turn([1, 2]))
    feed(lookup, [11, 12])
    lookup.begin(turn([1, 2, 11, 12, 21, 22, 21]))
    assert lookup.propose(1).tokens == (22,)
    assert origins(lookup.propose(1)) == {evidence.ORIGINS.index("prompt")}


FILE = 'def f(x):\n    return "a"\n\n\ndef g(y):\n    return "b"\n'
NUMBERED = "".join(f"{n:6d}\t{line}\n" for n, line in enumerate(FILE.splitlines(), 1))


def test_given_text_is_drafted_as_a_call_quotes_it() -> None:
    prompt = [*NUMBERED.encode(), 257, *b'{"new": "def f(x):\\n    ']
    lookup = plain(shapes=Shapes(TOKENIZER))
    lookup.begin(turn(prompt))
    draft = lookup.propose(48)
    assert bytes(draft.tokens).startswith(b'return \\"a\\"\\n\\n\\ndef g(y):')
    assert set(draft.sources) == {"edit"}
    assert origins(draft) == {evidence.ORIGINS.index("derived")}
    without = plain()
    without.begin(turn(prompt))
    assert without.propose(10).tokens != draft.tokens[:10]


def test_shapes_follow_the_prompt_of_the_turn() -> None:
    shapes = Shapes(TOKENIZER)
    lookup = plain(shapes=shapes)
    lookup.begin(turn([*b'"a"', 257, *b'"bc"']))
    first = shapes.index.tokens.tolist()
    feed(lookup, [*b'"answer"'])
    lookup.end()
    # what the model wrote itself has its shape already
    lookup.begin(turn([*b'"a"', 257, *b'"bc"', *b'"answer"', 257, *b'"d"']))
    assert shapes.index.tokens.tolist() == [*first, *b'\\"d\\"', SEPARATOR]
    # another conversation: of a text that ends otherwise nothing stays
    lookup.begin(turn([*b'"a"', 257, *b'"bx"']))
    assert bytes(t for t in shapes.index.tokens.tolist() if t >= 0) == b'\\"a\\"\\"bx\\"'


def test_the_fixed_parts_of_calls_are_drafted() -> None:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "read_file", "parameters": parameters}}]
    lookup = plain(skeleton=Skeleton(TOKENIZER))
    lookup.begin(turn([*b"x", *b'\n<tool_call>\n{"name": "read'], (), tools))
    draft = lookup.propose(48)
    assert bytes(draft.tokens) == b'_file", "arguments": {"path": "'
    assert set(draft.sources) == {"skeleton"}
    lookup.begin(turn([*b"x", *b'\n<tool_call>\n{"name": "read']))
    assert not bytes(lookup.propose(48).tokens).startswith(b"_file")


def test_phrases_are_drafted_before_the_session_shows_any() -> None:
    lookup = plain(habits=HABITS)
    lookup.begin(turn([*b"Let "]))
    draft = lookup.propose(48)
    assert bytes(draft.tokens) == b"me look"
    assert set(draft.sources) == {"habit"}
    assert origins(draft) == {evidence.ORIGINS.index("habit")}


def test_more_corpora_are_searched_under_their_own_names() -> None:
    index = TokenIndex()
    index.load([1, 2, 3, 4])
    lookup = plain(more=[Corpus(index, 3, lambda place: f"repo:{place}")])
    lookup.begin(turn([9, 1, 2]))
    assert lookup.propose(9).tokens == (3, 4)
    assert lookup.propose(9).sources == ("repo:2",) * 2


def test_nothing_is_drafted_behind_an_end() -> None:
    lookup = plain(ends=frozenset({7}))
    lookup.begin(turn([1, 2, 3, 7, 5, 6, 1, 2]))
    assert lookup.propose(9).tokens == (3, 7)


def test_a_tree_holds_the_second_guess() -> None:
    tokens = [1, 2, 3, 4, 5, 0, 2, 3, 6, 8, 9, 1, 2, 3]
    lookup = plain(leaves=2)
    lookup.begin(turn([2, 3, 6, 8, 2, 3, 4, 5, 0, 2, 3]))
    draft = lookup.propose(9)
    assert draft.parents is not None
    roots = [draft.tokens[j] for j, parent in enumerate(draft.parents) if parent < 0]
    assert sorted(roots) == [4, 6]
    assert len(draft.evidence.features) == len(draft)
    alone = plain()
    alone.begin(turn(tokens))
    assert alone.propose(9).parents is None


def test_hits_in_a_row_are_evidence_until_a_guess_was_wrong() -> None:
    seen: list[int] = []

    def chance(slots: Sequence[int]) -> float:
        seen.extend(s for s in slots if evidence._RUN <= s < evidence._RUN + 36)
        return 0.9

    def hits() -> int:
        seen.clear()
        lookup.propose(1)
        return (seen[0] - evidence._RUN) // 6

    lookup = Lookup(chance)
    run = list(range(60))
    lookup.begin(turn([*run, *run[:4]]))
    assert hits() == 0
    lookup.propose(3)
    feed(lookup, [4, 5, 6])
    assert hits() == 2  # two or three
    feed(lookup, [7])
    lookup.propose(8)
    feed(lookup, list(range(8, 16)))
    assert hits() == 4  # eight or more
    feed(lookup, [50])
    assert hits() == 0


def test_with_a_cursor_classes_are_told() -> None:
    code = [*b"```python\ndef f(x):\n    return x\n```\n```python\n"]
    lookup = plain(cursor=Cursor(TOKENIZER.piece))
    lookup.begin(turn([*code]))
    draft = lookup.propose(6)
    assert bytes(draft.tokens) == b"def f("
    assert draft.evidence.classes[0] == "identifier"
    assert draft.evidence.classes[3] == "indent"
    feed(lookup, list(b"def f("))
    assert lookup.propose(1).evidence.classes == ("identifier",)
    lookup.begin(turn([*b'```python\ns = "ab"\n```\n```python\n']))
    feed(lookup, list(b's = "'))
    assert bytes(lookup.propose(2).tokens) == b"ab"
    assert lookup.propose(2).evidence.classes == ("string", "string")


TOKENS = st.lists(st.integers(0, 3), max_size=30)
BYTES = st.lists(
    st.one_of(st.sampled_from(list(b'Let"\\ \n<{me')), st.integers(0, 259)), max_size=30
)
CONTEXT = st.lists(st.tuples(st.sampled_from(["a", "b"]), TOKENS), max_size=4)
TURN = st.tuples(st.one_of(TOKENS, BYTES), st.one_of(TOKENS, BYTES), CONTEXT)


@settings(max_examples=100)
@given(
    turns=st.lists(TURN, min_size=1, max_size=4),
    leaves=st.sampled_from([1, 3]),
    ends=st.booleans(),
)
def test_turn_after_turn_is_like_a_fresh_lookup(
    turns: list[tuple[list[int], list[int], list[tuple[str, list[int]]]]], leaves: int, ends: bool
) -> None:
    """What earlier turns left behind changes no draft, but for whose text it was."""

    def made() -> Lookup:
        return plain(leaves=leaves)

    lookup = made()
    history: list[int] = []
    for number, (prompt, answer, context) in enumerate(turns):
        if number % 2:
            prompt = [*history, *prompt]
        fresh = made()
        for one in (lookup, fresh):
            one.begin(turn(prompt, context))
        for token in [None, *answer]:
            if token is not None:
                for one in (lookup, fresh):
                    feed(one, [token])
            drafts = [one.propose(6) for one in (lookup, fresh)]
            assert drafts[0].tokens == drafts[1].tokens
            assert drafts[0].parents == drafts[1].parents
            assert drafts[0].sources == drafts[1].sources
        if ends:
            lookup.end()
        history = [*prompt, *answer]
        joined = [t for _, run in context for t in [*run, SEPARATOR]]
        assert lookup._context.index.tokens.tolist() == joined


@settings(max_examples=60)
@given(
    turns=st.lists(TURN, min_size=1, max_size=4),
    leaves=st.integers(1, 5),
    room=st.integers(0, 60),
    step=st.integers(1, 4),
)
def test_nothing_that_is_written_raises_or_breaks_a_bound(
    turns: list[tuple[list[int], list[int], list[tuple[str, list[int]]]]],
    leaves: int,
    room: int,
    step: int,
) -> None:
    lookup = with_all(leaves)
    history: list[int] = []
    for prompt, answer, context in turns:
        prompt = [*history, *prompt]
        lookup.begin(turn(prompt, context, [{"name": "Let", "parameters": None}]))
        for at in range(0, len(answer) + 1, step):
            draft = lookup.propose(room)
            assert len(draft) <= min(room, MOST)
            n = len(draft)
            assert len(draft.evidence.features) == len(draft.evidence.classes) == n
            parents = draft.parents if draft.parents is not None else range(-1, n - 1)
            assert n - len({p for p in parents if p >= 0}) <= leaves
            assert all(0 <= token < 260 for token in draft.tokens)
            # an end has nothing behind it
            assert not any(draft.tokens[p] in TOKENIZER.eos_ids for p in parents if p >= 0)
            lookup.observe(answer[at : at + step], Verdict(EMPTY_DRAFT, (), 0, 0))
        lookup.end()
        history = [*prompt, *answer]
        assert lookup._live.tokens.tolist() == history


def test_an_answer_made_again_and_again_leaves_nothing_behind() -> None:
    lookup = Lookup(by_length)
    for _ in range(50):
        lookup.begin(turn(list(b"say it again")))
        lookup.observe([65, 66], Verdict.of(EMPTY_DRAFT, [65, 66], [], None))
        lookup.end()
    assert len(lookup._answers) == 2


def test_context_that_broke_off_while_it_was_loaded_is_loaded_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(run: object) -> None:
        raise KeyboardInterrupt

    lookup = Lookup(by_length)
    given = [("file", list(b"a file that is long enough"))]
    with monkeypatch.context() as patch:
        patch.setattr(lookup._context.index, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lookup.begin(turn(list(b"so: "), given))
    lookup.begin(turn(list(b"so: a file that"), given))
    assert bytes(lookup.propose(4).tokens) == b" is "
