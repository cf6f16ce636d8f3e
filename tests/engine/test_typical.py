"""Typical acceptance: the rule as its paper has it, what it leaves exact, and that it is lossy."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentspec.backends.base import Capabilities
from agentspec.engine.sampling import Distribution, Sampler, SeededChance
from agentspec.engine.typical import Typical, lossy_rule
from agentspec.engine.verify import Rule
from agentspec.errors import ConfigError
from agentspec.testing.chance import EnumeratedChance, Law, distance, enumerate_law
from agentspec.testing.loop import Answer, Loop
from agentspec.testing.scripted import ScriptedBackend, ScriptedProposer, hashed_law
from agentspec.types import Draft, SamplingParams

VOCAB = 8
PROMPT = [1, 2, 1]
WARM = SamplingParams(temperature=0.8, seed=3)
Probs = npt.NDArray[np.float64]


class Table:
    """The rows of a pass, given."""

    def __init__(self, rows: npt.NDArray[np.float32]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def argmax(self, i: int) -> int:
        return int(self.rows[i].argmax())

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self.rows[i]
        return row

    def hidden(self, i: int) -> npt.NDArray[np.float32]:
        raise AssertionError("no rule needs hidden states")


class Reference:
    """The rule again, from its definition: every path is tried, nothing is remembered."""

    def __init__(
        self,
        draft: Draft,
        rows: npt.NDArray[np.float32],
        params: SamplingParams,
        rule: Typical,
        masked: bool,
    ) -> None:
        self.draft, self.rows, self.params, self.masked = draft, rows, params, masked
        self.epsilon = rule.epsilon
        self.delta = np.sqrt(rule.epsilon) if rule.delta is None else rule.delta
        parents = draft.parents or tuple(range(-1, len(draft) - 1))
        self.behind = {n: [j for j, p in enumerate(parents) if p == n] for n in (-1, *range(99))}

    def p(self, node: int, text: Sequence[int]) -> Probs:
        logits = self.rows[node + 1].astype(np.float64)
        for token in range(VOCAB):
            seen = list(text).count(token)
            logits[token] -= self.params.presence_penalty * (seen > 0)
            logits[token] -= self.params.frequency_penalty * seen
            if self.masked and (token + len(text)) % 3 == 0:
                logits[token] = -np.inf
        weights = np.exp((logits - logits.max()) / self.params.temperature)
        probs: Probs = weights / weights.sum()
        return probs

    def least(self, p: Probs) -> float:
        entropy = -sum(x * np.log(x) for x in p if x > 0)
        return min(self.epsilon, float(self.delta * np.exp(-entropy)))

    def paths(self, node: int, text: Sequence[int]) -> list[tuple[tuple[int, ...], float]]:
        """Every accepted path from a node on, with its log-probability."""
        found: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        p = self.p(node, text)
        for j in self.behind[node]:
            chance = p[self.draft.tokens[j]]
            assume(abs(chance - self.least(p)) > 1e-5)  # float32 may fall on either side
            if chance > self.least(p):
                for rest, more in self.paths(j, [*text, self.draft.tokens[j]]):
                    found.append(((j, *rest), float(np.log(chance)) + more))
        return found

    def step(self, chance: SeededChance) -> list[tuple[int, int | None]]:
        """Longest accepted path, the target's draw, and on from there if that was drafted."""
        said: list[tuple[int, int | None]] = []
        node: int | None = -1
        while node is not None:
            text = [token for token, _ in said]
            paths = self.paths(node, text)
            length = max(len(path) for path, _ in paths)
            best = sorted((more, path) for path, more in paths if len(path) == length)[::-1]
            if len(best) > 1 and length:
                assume(best[0][0] - best[1][0] > 1e-5)
            for j in best[0][1]:
                said.append((self.draft.tokens[j], j))
                node = j
            assert node is not None
            text = [token for token, _ in said]
            p = self.p(node, text)
            bounds, u = np.cumsum(p), chance.uniform(len(said), 0)
            assume(np.abs(bounds - u).min() > 1e-5)
            drawn = int(np.searchsorted(bounds, u, side="right"))
            node = next((j for j in self.behind[node] if self.draft.tokens[j] == drawn), None)
            said.append((drawn, node))
        return said


@st.composite
def passes(draw: Any) -> tuple[Draft, npt.NDArray[np.float32]]:
    """A chain or tree of up to eight tokens, and rows from sure to diffuse."""
    n = draw(st.integers(0, 8))
    chain = draw(st.booleans())
    parents = tuple(j - 1 if chain else draw(st.integers(max(-1, j - 3), j - 1)) for j in range(n))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = rng.normal(0.0, draw(st.sampled_from([0.3, 1.0, 3.0])), (n + 1, VOCAB))
    # tokens among the likelier ones, so that runs grow long
    tokens = [int(np.argsort(-rows[p + 1])[rng.integers(0, 4)]) for p in parents]
    return Draft(tuple(tokens), ("a",) * n, (None,) * n, parents), rows.astype(np.float32)


RULES = st.builds(
    Typical,
    epsilon=st.sampled_from([0.01, 0.09, 0.3]),
    delta=st.sampled_from([None, 0.1, 0.6, 2.0]),
)


@settings(max_examples=300)
@given(
    told=passes(),
    rule=RULES,
    temperature=st.sampled_from([0.3, 0.8, 1.5]),
    penalty=st.sampled_from([0.0, 0.9]),
    masked=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_step_is_that_of_the_definition(
    world: Any,
    told: Any,
    rule: Typical,
    temperature: float,
    penalty: float,
    masked: bool,
    seed: int,
) -> None:
    draft, rows = told
    params = SamplingParams(
        temperature=temperature, presence_penalty=penalty, frequency_penalty=penalty / 2
    )
    expected = Reference(draft, rows, params, rule, masked).step(SeededChance(seed))
    constraint = world.Parity(VOCAB) if masked else None
    sampler = Sampler(params, SeededChance(seed), constraint=constraint)
    assert list(rule(draft, Table(rows), sampler, 0)) == expected
    if constraint is not None:  # looking ahead has not moved it
        assert constraint.done == tuple(token for token, _ in expected)


def test_the_longest_run_wins_and_of_equal_ones_the_likelier() -> None:
    even = np.zeros(VOCAB)  # one in eight: above 0.3 / 8
    tokens, parents = (0, 1, 2, 3), (-1, -1, 1, -1)
    draft = Draft(tokens, ("a",) * 4, (None,) * 4, parents)

    def path(rows: Sequence[Any]) -> list[int | None]:
        sampler = Sampler(SamplingParams(temperature=1.0), SeededChance(5))
        said = list(Typical()(draft, Table(np.array(rows, dtype=np.float32)), sampler, 0))
        return [node for _, node in said]

    assert path([even] * 5)[:2] == [1, 2]
    # a likelier first token does not make up for a run that ends behind it
    likely = even.copy()
    likely[0] = 2.0
    assert path([likely, *[even] * 4])[:2] == [1, 2]
    # behind token 1 its child is not typical: three runs of one token
    sure = np.full(VOCAB, -30.0)
    sure[7] = 0.0
    last = even.copy()
    last[3] = 1.0
    assert path([last, even, sure, even, even])[0] == 3
    assert path([likely, even, sure, even, even])[0] == 0


def test_what_stands_behind_a_token_counts_with_its_own_best_run() -> None:
    even = np.zeros(VOCAB)
    likely = even.copy()
    likely[0] = 2.0
    # 0 leads to one more, 1 by its first child to one more and by its second to two
    tokens, parents = (0, 1, 2, 2, 3, 4), (-1, -1, 0, 1, 1, 4)
    draft = Draft(tokens, ("a",) * 6, (None,) * 6, parents)
    rows = np.array([likely, *[even] * 6], dtype=np.float32)
    sampler = Sampler(SamplingParams(temperature=1.0), SeededChance(5))
    said = [node for _, node in Typical()(draft, Table(rows), sampler, 0)]
    assert said[:3] == [1, 4, 5]


def test_greedily_a_typical_token_is_no_more_than_another() -> None:
    class Shut(Table):
        def logits(self, i: int) -> npt.NDArray[np.float32]:
            raise AssertionError("a greedy row was read")

    tied = np.zeros((3, VOCAB), dtype=np.float32)
    draft = Draft.chain((1, 0), "a")
    sampler = Sampler(SamplingParams(), SeededChance(5))
    assert list(Typical()(draft, Shut(tied), sampler, 0)) == [(0, None)]


def test_what_looks_ahead_leaves_no_trace() -> None:
    table = Table(np.zeros((1, VOCAB), dtype=np.float32))
    params = SamplingParams(temperature=1.0, repetition_penalty=1.5, logprobs=0)
    sampler = Sampler(params, SeededChance(5), prompt=[1])
    before = sampler.law(table, 0)
    ahead = sampler.fork()
    ahead.commit(2, table, 0)
    assert not sampler.logprobs
    assert sampler.law(table, 0).probs.tolist() == before.probs.tolist()
    sampler.commit(1)
    sampler.commit(2, table, 0)
    assert len(sampler.logprobs) == len(ahead.logprobs) == 1


def test_the_threshold() -> None:
    even, sure = Distribution(np.ones(VOCAB), VOCAB), Distribution(np.eye(VOCAB)[0], 1.0)
    assert Typical().threshold(even) == pytest.approx(0.3 / VOCAB)
    assert Typical().threshold(sure) == 0.09
    assert Typical(0.25, 0.1).threshold(sure) == 0.1
    assert Typical(0.25).threshold(even) == pytest.approx(0.5 / VOCAB)


# In the loop.


def diffuse(world: Any, *, tree: bool = False) -> ScriptedBackend:
    target: ScriptedBackend = world.target(law=hashed_law(VOCAB, 3, scale=1.0), vocab=VOCAB)
    if tree:
        target.capabilities = Capabilities(
            rollback=target.capabilities.rollback, tree=True, max_leaves=16, max_seqs=8
        )
    return target


def ranked(target: ScriptedBackend, rank: int, n: int, *, tree: bool = False) -> ScriptedProposer:
    """Drafts the token of that rank n times, in a tree the one behind it in rank beside each."""

    def guess(text: Sequence[int], room: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        at = -1
        text = list(text)
        for _ in range(n):
            order = np.argsort(-target.law(text))
            for token in order[rank : rank + 1 + tree]:
                tokens.append(int(token))
                parents.append(at)
            at = len(tokens) - 1
            text.append(tokens[-1])
        whole = Draft(tuple(tokens), ("a",) * len(tokens), (None,) * len(tokens), tuple(parents))
        return whole.truncate(room)

    return ScriptedProposer(guess)


def answer(
    target: ScriptedBackend,
    drafts: ScriptedProposer | None,
    rule: Rule | None,
    params: SamplingParams = WARM,
    **more: Any,
) -> Answer:
    loop = Loop(target)
    try:
        return loop.answer(PROMPT, [drafts] if drafts else [], params=params, accept=rule, **more)
    finally:
        loop.sequence.close()


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_more_is_accepted_of_a_diffuse_target(world: Any, tree: bool) -> None:
    target = diffuse(world, tree=tree)
    length: dict[bool, float] = {}
    for lossy in (False, True):
        told = [
            answer(
                target, ranked(target, 1, 4, tree=tree), Typical() if lossy else None,
                SamplingParams(temperature=1.0, seed=seed), max_tokens=60,
            ).stats
            for seed in range(20)
        ]  # fmt: skip
        length[lossy] = sum(s.tokens for s in told) / sum(s.passes for s in told)
    assert length[True] > 1.5 * length[False]


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_greedy_text_is_that_of_plain_decoding(world: Any, tree: bool) -> None:
    target = diffuse(world, tree=tree)
    greedy = SamplingParams()
    plain = answer(target, None, None, greedy)
    for rank in (0, 1):
        fast = answer(target, ranked(target, rank, 4, tree=tree), Typical(), greedy)
        exact = answer(target, ranked(target, rank, 4, tree=tree), None, greedy)
        assert fast.tokens == exact.tokens == plain.tokens
        assert fast.verdicts == exact.verdicts


def law(target: ScriptedBackend, drafts: int | None, rule: Rule | None) -> Law:
    def run(chance: EnumeratedChance) -> tuple[int, ...]:
        proposer = None if drafts is None else ranked(target, drafts, 2)
        return tuple(answer(target, proposer, rule, chance=chance, max_tokens=3).tokens)

    return enumerate_law(run)


def test_the_law_is_the_targets_where_no_draft_is_typical(world: Any) -> None:
    target = diffuse(world)
    plain = law(target, None, None)
    assert distance(law(target, None, Typical()), plain) < 1e-12
    # with these a token must have a probability of 0.9, and the last in rank has not
    assert distance(law(target, VOCAB - 1, Typical(0.9, 10.0)), plain) < 1e-12


def test_the_law_is_another_where_one_is(world: Any) -> None:
    target = diffuse(world)
    plain, typical = law(target, None, None), law(target, 1, Typical())
    assert distance(law(target, 1, None), plain) < 1e-12
    assert distance(typical, plain) > 0.1
    assert len(typical) < len(plain)  # what it leaves out cannot come at all


def test_a_seed_gives_one_text_and_a_mask_holds(world: Any) -> None:
    target = diffuse(world, tree=True)

    def told() -> list[int]:
        return answer(
            target, ranked(target, 1, 3, tree=True), Typical(), constraint=world.Parity(VOCAB)
        ).tokens

    assert told() == told()
    # world.Parity refuses what it forbids when it is told of it
    assert all((token + n) % 3 for n, token in enumerate(told()))


def test_values_without_meaning_are_refused() -> None:
    for epsilon in (0.0, 1.0, -0.1, nan):
        with pytest.raises(ConfigError, match="epsilon must lie between 0 and 1"):
            Typical(epsilon)
    for delta in (0.0, -1.0, nan, float("inf")):
        with pytest.raises(ConfigError, match="delta must be a finite number above 0"):
            Typical(delta=delta)
    assert lossy_rule(None, exact=True) is None
    assert lossy_rule("typical", exact=False) == Typical()
    assert lossy_rule(Typical(0.2), exact=False) == Typical(0.2)
    for value in ("", "Typical", True, 1):
        with pytest.raises(ConfigError, match="lossy must be 'typical'"):
            lossy_rule(value, exact=False)
    with pytest.raises(ConfigError, match="lossy and exact contradict each other"):
        lossy_rule("typical", exact=True)
