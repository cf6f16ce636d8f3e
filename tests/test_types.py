"""Values the engine passes on: drafts are cut without being changed, settings are checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.errors import InvalidRequestError
from agentspec.types import EMPTY_DRAFT, Draft, Evidence, SamplingParams, Verdict


def test_a_cut_draft_keeps_what_was_known() -> None:
    q = np.array([0.5, 0.5])
    evidence = Evidence(4, 2, (0.5, 0.6))
    draft = Draft((0, 1, 1), ("a", "b", "b"), (q, None, None), evidence=evidence)
    cut = draft.truncate(1)
    assert (cut.tokens, cut.sources, cut.evidence) == ((0,), ("a",), evidence)
    assert cut.q[0] is q
    assert not cut.deterministic
    assert draft.truncate(3) is draft
    assert draft.truncate(9) is draft
    assert len(draft.truncate(0)) == 0
    assert EMPTY_DRAFT.deterministic
    assert Draft.chain([3, 4], "x") == Draft((3, 4), ("x", "x"), (None, None))


def test_a_draft_has_a_source_and_a_q_for_each_token() -> None:
    with pytest.raises(AssertionError):
        Draft((1, 2), ("x",), (None, None))
    with pytest.raises(AssertionError):
        Draft((1, 2), ("x", "x"), (None, None), parents=(-1,))
    with pytest.raises(AssertionError):
        Draft((1, 2), ("x", "x"), (None, None), parents=(1, -1))


def tree(parents: Sequence[int]) -> Draft:
    """A tree whose tokens and sources tell the nodes apart."""
    n = len(parents)
    known = tuple(j / 10 for j in range(n))
    evidence = Evidence(
        3, 2, known, tuple((j,) for j in range(n)), tuple(f"c{j}" for j in range(n))
    )
    names = tuple(f"s{j}" for j in range(n))
    return Draft(tuple(range(n)), names, (None,) * n, tuple(parents), evidence)


def branches(draft: Draft) -> set[tuple[int, ...]]:
    """The tokens from the text to each node."""
    found: list[tuple[int, ...]] = []
    for j, parent in enumerate(draft.parents or range(-1, len(draft) - 1)):
        found.append((*(found[parent] if parent >= 0 else ()), draft.tokens[j]))
    return set(found)


#    0 ─ 1 ─ 4
#    │   └ 3
#    2 ─ 5
TREE = (-1, 0, -1, 1, 1, 2)


def test_a_tree_that_does_not_branch_is_a_chain() -> None:
    assert tree((-1, 0, 1)).parents is None
    assert tree(()).parents is None
    assert tree(TREE).parents == TREE
    assert list(tree(TREE).depths) == [0, 1, 0, 2, 2, 1]
    assert list(Draft.chain([7, 8], "x").depths) == [0, 1]
    assert [list(c) for c in tree(TREE).children] == [[0, 2], [1], [3, 4], [5], [], [], []]
    assert [list(c) for c in Draft.chain([7, 8], "x").children] == [[0], [1], []]


def test_a_cut_tree_keeps_its_first_tokens_and_what_is_known_of_them() -> None:
    cut = tree(TREE).truncate(4)
    assert (cut.tokens, cut.parents) == ((0, 1, 2, 3), (-1, 0, -1, 1))
    assert cut.evidence == tree(TREE[:4]).evidence
    assert cut.sources == ("s0", "s1", "s2", "s3")
    assert tree(TREE).truncate(2) == tree((-1, 0))
    assert len(tree(TREE).truncate(0)) == 0
    assert tree(TREE).truncate(6) is not None
    kept = tree(TREE).select([0, 2, 3, 5])
    assert (kept.tokens, kept.parents) == ((0, 2, 5), (-1, -1, 1)), "3 stands behind 1"
    assert kept.evidence.classes == ("c0", "c2", "c5")
    with pytest.raises(AssertionError):
        Draft((1, 2), ("x", "x"), (None, np.ones(2)), (-1, -1)).truncate(1)


def test_fewer_leaves_or_the_first_chain() -> None:
    assert tree(TREE).as_chain() == tree((-1, 0, 1, 1)).select([0, 1, 3])
    assert tree(TREE).as_chain().tokens == (0, 1, 3)
    assert tree(TREE).with_leaves(2).tokens == (0, 1, 2, 3, 5)
    assert tree(TREE).with_leaves(3).tokens == (0, 1, 2, 3, 4, 5)
    chain = Draft((1,), ("x",), (np.ones(2),))
    assert chain.as_chain() is chain


@given(st.integers(0, 12).flatmap(lambda n: st.tuples(*(st.integers(-1, j - 1) for j in range(n)))))
def test_what_is_left_of_a_tree_is_part_of_it(parents: tuple[int, ...]) -> None:
    whole = tree(parents)
    for k in range(len(whole) + 1):
        cut = whole.truncate(k)
        assert cut.tokens == whole.tokens[:k]
        assert branches(cut) <= branches(whole)
    for most in range(1, 6):
        fewer = whole.with_leaves(most)
        leaves = sum(not c for c in fewer.children[1:])
        assert leaves <= most
        assert branches(fewer) <= branches(whole)
        if leaves < most:
            assert fewer == whole
    assert whole.as_chain().parents is None


def test_a_verdict_names_the_path_and_what_was_compared() -> None:
    verdict = Verdict.of(tree(TREE), [2, 5, 9], [2, 5], None)
    assert (verdict.accepted, verdict.judged) == (2, 3)
    assert list(verdict.compared) == [0, 2, 5]
    assert verdict.sources == ("s2", "s5")
    ended = Verdict.of(tree(TREE), [0, 1], [0, 1], "stop")
    assert (ended.accepted, list(ended.compared)) == (2, [0, 1, 2]), "3 and 4 were not looked at"
    chain = Verdict(Draft.chain([4, 5, 6], "x"), (4, 5, 7), 2, 3)
    assert (chain.path, list(chain.compared), chain.sources) == ((0, 1), [0, 1, 2], ("x", "x"))
    assert Verdict.of(chain.draft, [4, 5, 7], [0, 1], None) == chain
    assert Verdict.of(chain.draft, [4], [0], "stop").judged == 1
    with pytest.raises(AssertionError):
        Verdict(tree(TREE), (0, 9), 1, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("temperature", True),
        ("temperature", "1"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("top_k", -1),
        ("top_k", 2.0),
        ("top_k", True),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.nan),
        ("frequency_penalty", "x"),
        ("seed", 1.5),
        ("seed", True),
        ("logprobs", -1),
        ("logprobs", 101),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {"1": 0.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: True}),
    ],
)
def test_a_setting_without_a_meaning_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_settings_switch_on() -> None:
    assert SamplingParams().greedy
    assert not SamplingParams(temperature=0.1).greedy
    assert not SamplingParams(temperature=1.0, top_p=0.5, logprobs=3).reshapes
    for params in (
        SamplingParams(logit_bias={1: -math.inf}),
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=-1.0),
        SamplingParams(frequency_penalty=0.1),
    ):
        assert params.reshapes
