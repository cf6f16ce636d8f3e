"""Defects planted in the production source, each of which a checker of this suite must see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from agentspec.backends.base import Capabilities, Rollback
from agentspec.control import controller as controllers
from agentspec.control import rows as row_classes
from agentspec.control.cost import CostCurve
from agentspec.control.rows import RowClass
from agentspec.engine import decode, sampling, session, stop, verify
from agentspec.engine.sampling import Distribution, SeededChance
from agentspec.errors import BackendError, DecodeError, UnsupportedError
from agentspec.propose import draft_model
from agentspec.propose.draft_model import DraftModel
from agentspec.testing import loop as loops
from agentspec.testing.chance import EnumeratedChance, Law, chi_square, distance, enumerate_law
from agentspec.testing.loop import Loop
from agentspec.testing.scripted import ScriptedBackend, ScriptedProposer, hashed_law
from agentspec.types import (
    EMPTY_DRAFT,
    Chance,
    Draft,
    Evidence,
    Proposer,
    SamplingParams,
    TurnContext,
)

VOCAB = 8
PROMPT = [1, 2, 1]
SAMPLED = SamplingParams(temperature=1.0, top_k=3)
Check = Callable[[Any], None]


# The checkers. Each passes on the production source, which is a test of its own below.


def models(world: Any, scale: float = 1.0) -> tuple[ScriptedBackend, ScriptedBackend]:
    target = world.target(law=hashed_law(VOCAB, 3, scale=scale), vocab=VOCAB)
    return target, world.target(law=world.near(3, vocab=VOCAB, scale=scale), vocab=VOCAB)


def law(world: Any, params: SamplingParams, p_min: float | None, *, seeded: bool = False) -> Law:
    """The law of three tokens; p_min None: without speculation."""
    target, small = models(world)

    def run(chance: EnumeratedChance) -> tuple[int, ...]:
        small.caches.clear()
        loop = Loop(target)
        drafts: list[Proposer] = []
        if p_min is not None:
            drafts = [DraftModel(small, target_vocab=VOCAB, k=2, p_min=p_min)]
        try:
            answer = loop.answer(PROMPT, drafts, params=params, chance=chance, max_tokens=3)
        finally:
            loop.sequence.close()
        return tuple(answer.tokens)

    return enumerate_law(run)


def exact_law(world: Any) -> None:
    """Enumerated law with a draft model = enumerated law without."""
    target, small = models(world)
    surest = sampling.shape(small.law(PROMPT), SAMPLED).largest
    reference = product_law(target)
    for p_min in (0.0, surest):
        assert distance(law(world, SAMPLED, p_min), reference) < 1e-12


def product_law(target: ScriptedBackend) -> Law:
    """The law of three tokens from p alone, without the loop."""
    expected: Law = {}

    def extend(tokens: tuple[int, ...], weight: float) -> None:
        if len(tokens) == 3 or (tokens and tokens[-1] == VOCAB - 1):
            expected[tokens] = weight
            return
        p = sampling.shape(target.law([*PROMPT, *tokens]), SAMPLED)
        for token, probability in enumerate(p.dense(VOCAB).tolist()):
            if probability:
                extend((*tokens, token), weight * probability)

    extend((), 1.0)
    return expected


def law_by_cost(world: Any) -> None:
    """A draft that is flat at first and whose second position tells what the first token is."""

    def q_of(tokens: Sequence[int]) -> npt.NDArray[np.float64]:
        sure = (0.99, 0.01) if tokens[-1] == 0 else (0.5, 0.5)
        return np.array([*sure, *[0.0] * (VOCAB - 2)])

    class Revealing(ScriptedProposer):
        chance: Chance

        def begin(self, turn: TurnContext) -> None:
            super().begin(turn)
            self.chance = turn.chance

        def propose(self, max_tokens: int) -> Draft:
            laws, tokens = [], list(self.tokens)
            for _ in range(min(2, max_tokens)):
                laws.append(q_of(tokens))
                tokens.append(self.chance.draft(laws[-1]))
            confidence = tuple(float(q.max()) for q in laws)
            run = tuple(tokens[len(self.tokens) :])
            names = (self.name,) * len(run)
            return Draft(run, names, tuple(laws), evidence=Evidence(confidence=confidence))

    logits = np.full(VOCAB, -np.inf, dtype=np.float32)
    logits[:2] = 0.0
    target = ScriptedBackend(lambda cached: logits, VOCAB)
    cost = CostCurve.from_points({1: 1.0, 2: 1.9, 3: 1.92})

    def run(chance: EnumeratedChance) -> tuple[int, ...]:
        target.caches.clear()
        answer = Loop(target).answer(
            PROMPT,
            [Revealing(lambda tokens, room: [])],
            params=SamplingParams(temperature=1.0),
            chance=chance,
            controller=controllers.CostAwareController(cost),
            max_tokens=3,
        )
        return tuple(answer.tokens)

    assert distance(enumerate_law(run), dict.fromkeys(np.ndindex(2, 2, 2), 0.125)) < 1e-12


def penalised_law(world: Any) -> None:
    params = SamplingParams(temperature=1.0, top_k=3, presence_penalty=2.0)
    assert distance(law(world, params, 0.0), law(world, params, None)) < 1e-12


def seeded_counts(world: Any) -> None:
    """Chi-square of joint sequences drawn with seeds."""
    target, small = models(world)
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(600):
        small.caches.clear()
        loop = Loop(target)
        drafts = [DraftModel(small, target_vocab=VOCAB, k=2, p_min=0.0)]
        chance = SeededChance(seed)
        answer = loop.answer(PROMPT, drafts, params=SAMPLED, chance=chance, max_tokens=3)
        seen[tuple(answer.tokens)] += 1
        loop.sequence.close()
    assert chi_square(seen, product_law(target)) > 1e-3


def tree_model(rollback: Rollback = Rollback.TRIM) -> ScriptedBackend:
    return ScriptedBackend(hashed_law(VOCAB, 3), VOCAB, rollback=rollback, max_leaves=4)


def branching(target: ScriptedBackend, ranks: Sequence[int], parents: Sequence[int]) -> Any:
    """Drafts the tree whose tokens have these ranks behind their branches."""

    def guess(tokens: Sequence[int], room: int) -> Draft:
        branches: list[list[int]] = []
        for rank, parent in zip(ranks, parents, strict=True):
            branch = branches[parent] if parent >= 0 else list(tokens)
            branches.append([*branch, int(np.argsort(-target.law(branch))[rank])])
        n = len(ranks)
        run = tuple(branch[-1] for branch in branches)
        return Draft(run, ("t",) * n, (None,) * n, tuple(parents)) if room >= n else EMPTY_DRAFT

    return ScriptedProposer(guess)


def tree_text(world: Any) -> None:
    """Greedy text with trees = the law's own, in the passes of the steps alone."""
    for rollback in Rollback:
        for first in range(VOCAB - 1):
            for ranks, parents in (
                ((1, 0, 0, 1, 0), (-1, -1, 1, 1, 2)),  # a branch of three behind a wrong sibling
                ((1, 0, 0), (-1, -1, 0)),  # a right-looking child of the wrong one
                ((0, 1, 1), (-1, -1, 0)),
            ):
                target = tree_model(rollback)
                drafts = [branching(target, ranks, parents)]
                try:
                    answer = Loop(target).answer([first], drafts, max_tokens=20)
                except BackendError as error:
                    raise AssertionError("no path of the tree") from error
                assert not answer.stats.notes
                assert answer.tokens == reference_text(target, [first], 20)
                assert len(target.passes) == len(answer.verdicts), "a pass of repair"


def tree_law(world: Any) -> None:
    """Enumerated law with trees = the law without."""
    target, params = tree_model(), SamplingParams(temperature=1.5, top_k=3, presence_penalty=1.0)

    def law(trees: bool) -> Law:
        def run(chance: EnumeratedChance) -> tuple[int, ...]:
            target.caches.clear()
            drafts = [branching(target, (1, 0, 0, 0), (-1, -1, 0, 1))] if trees else []
            answer = Loop(target).answer([1], drafts, params=params, chance=chance, max_tokens=5)
            return tuple(answer.tokens)

        return enumerate_law(run)

    assert distance(law(True), law(False)) < 1e-12


def trees_are_taken_as_they_are_by_nobody_else(world: Any) -> None:
    target = tree_model()
    target.capabilities = Capabilities(Rollback.TRIM)
    drafts = [branching(target, (1, 0, 0, 1, 0), (-1, -1, 1, 1, 2))]
    try:
        answer = Loop(target).answer([1], drafts, max_tokens=20)
    except UnsupportedError as error:
        raise AssertionError("a tree was sent to a backend without trees") from error
    assert answer.tokens == reference_text(target, [1], 20)


def residual_sums_to_one(world: Any) -> None:
    residual = Distribution(np.array([3.0, 1.0]), 4.0).residual(np.array([0.5, 0.5]))
    assert abs(residual.probs.sum() - 1.0) < 1e-12


def knowing(truth: Sequence[int], right: int) -> ScriptedProposer:
    """Proposes `right` true tokens, then another."""
    return ScriptedProposer(lambda tokens, room: [*truth[len(tokens) :][:right], 5][:room])


def seeded_text(world: Any) -> None:
    """A seed gives the same text with and without deterministic drafts."""
    target, _ = models(world)
    params = SamplingParams(temperature=1.0, seed=11)
    for first in range(VOCAB - 1):
        plain = Loop(target).answer([first], params=params, max_tokens=12)
        truth = [first, *plain.tokens]
        fast = Loop(target).answer([first], [knowing(truth, 2)], params=params, max_tokens=12)
        assert fast.tokens == plain.tokens
        target.caches.clear()


def reference_text(target: ScriptedBackend, prompt: Sequence[int], n: int) -> list[int]:
    """Greedy text from the law alone, without the loop."""
    tokens: list[int] = []
    while len(tokens) < n and (not tokens or tokens[-1] != VOCAB - 1):
        tokens.append(int(target.law([*prompt, *tokens]).argmax()))
    return tokens


def greedy_text(world: Any, **more: Any) -> None:
    """Greedy text = the law's own, for drafts right up to every index; invariants at each step."""
    for rollback in (Rollback.TRIM, Rollback.CHECKPOINT):
        target, small = (
            ScriptedBackend(model.law, VOCAB, rollback=rollback, max_rows=8)
            for model in models(world, 2.0)
        )
        for right in range(5):
            for first in range(VOCAB - 1):
                check_greedy(target, small, [first, 2], right, more)


def check_greedy(
    target: ScriptedBackend,
    small: ScriptedBackend,
    prompt: list[int],
    right: int,
    more: dict[str, Any],
) -> None:
    truth = [*prompt, *reference_text(target, prompt, 12)]

    def guess(tokens: Sequence[int], room: int) -> list[int]:
        if len(tokens) % 3 == 0:
            return []
        return [*truth[len(tokens) :][:right], (truth[-1] + 1) % VOCAB]

    target.caches.clear()
    small.caches.clear()
    model = DraftModel(small, target_vocab=VOCAB, k=3, p_min=0.3)
    drafts: list[Proposer] = [ScriptedProposer(guess), model]
    answer = Loop(target).answer(prompt, drafts, max_tokens=12, **more)
    assert [*prompt, *answer.tokens] == truth, "the text is not that of plain decoding"
    assert not answer.stats.notes
    left = 12
    for verdict in answer.verdicts:
        assert len(verdict.draft) < left, "rows that the limit cuts off"
        left -= len(verdict.tokens)


def ends(world: Any) -> None:
    """EOS at every index of an accepted run is the last token."""
    for at in range(1, 6):
        script = [1, 2, 3, 4, 5, 6, 1, 2, 3]
        script[at] = VOCAB - 1
        target = ScriptedBackend.following(script, VOCAB)
        answer = Loop(target).answer([1], [knowing(script, 8)], max_tokens=8)
        assert answer.tokens == script[1 : at + 1]
        assert answer.finish == "stop"


def padded_rows(world: Any) -> None:
    greedy_text(world, rows=RowClass((2, 4)))
    target, _ = models(world)
    target.max_rows = 6
    drafts = [ScriptedProposer(lambda tokens, room: [1] * 9)]
    try:
        Loop(target).answer([1], drafts, rows=RowClass((2, 4, 8)))
    except DecodeError as error:
        raise AssertionError("a pass carries more rows than it may") from error


def stop_strings(world: Any) -> None:
    target = ScriptedBackend.following([10, 0, 0, 6, 7, 4, 2], world.vocab)
    target.tokenizer = world.target().tokenizer
    drafts = [ScriptedProposer(lambda tokens, room: [10, 0, 0, 6, 7, 4, 2][len(tokens) :])]
    for text, n in (("bab", 2), ("é", 4), ("bé", 4), ("éc", 5), ("ab", 1)):
        target.caches.clear()
        answer = Loop(target).answer([10], drafts, stop=[text], max_tokens=6)
        assert len(answer.tokens) == n


CHECKS: list[Check] = [
    exact_law,
    law_by_cost,
    penalised_law,
    seeded_counts,
    residual_sums_to_one,
    seeded_text,
    greedy_text,
    ends,
    padded_rows,
    stop_strings,
    tree_text,
    tree_law,
    trees_are_taken_as_they_are_by_nobody_else,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_production_source_passes(world: Any, check: Check) -> None:
    check(world)


def mutant(
    name: str, check: Check, module: ModuleType, path: str, old: str, new: str, **used: ModuleType
) -> Any:
    return pytest.param(check, module, path, old, new, used, id=name)


@pytest.mark.parametrize(
    ("check", "module", "path", "old", "new", "used"),
    [
        mutant(
            "u = 0", seeded_counts, sampling, "SeededChance.uniform",
            "return (x >> 11) * 2.0**-53", "return 0.0",
        ),
        mutant(
            "one uniform for both decisions of a position", seeded_counts, sampling,
            "SeededChance.uniform", "2 * position + lane + 1", "2 * position + 1",
        ),
        mutant(
            "one uniform for all positions", seeded_counts, sampling,
            "SeededChance.uniform", "2 * position + lane + 1", "lane + 1",
        ),
        mutant(
            "drafts drawn by the decisions' uniforms", seeded_counts, sampling,
            "SeededChance.draft", "float(self._drafts.random())", "self.uniform(0, 1)",
        ),
        mutant(
            "p and q swapped", exact_law, verify, "_accept_or_recover",
            "p.of(token) / float(q[token])", "float(q[token]) / max(p.of(token), 1e-300)",
        ),
        mutant(
            "accepted always", exact_law, verify, "_accept_or_recover",
            "min(1.0, p.of(token) / float(q[token]))", "1.0",
        ),
        mutant(
            "a rejected token stands", exact_law, verify, "_accept_or_recover",
            "return p.residual(q).sample(sampler.chance, position)", "return token",
        ),
        mutant(
            "recovered from p", exact_law, verify, "_accept_or_recover",
            "p.residual(q)", "p",
        ),
        mutant(
            "residual q - p", exact_law, sampling, "Distribution.residual",
            "np.maximum(rest, 0.0, out=rest)", "np.maximum(-rest, 0.0, out=rest)",
        ),
        mutant(
            "residual not renormalised", residual_sums_to_one, sampling, "Distribution.residual",
            "Distribution(rest, total, self.ids)", "Distribution(rest, 1.0, self.ids)",
        ),
        mutant(
            "residual not cut at 0", exact_law, sampling, "Distribution.residual",
            "np.maximum(rest, 0.0, out=rest)", "np.abs(rest, out=rest)",
        ),
        mutant(
            "bonus from the wrong row", greedy_text, verify, "judge",
            "sampler.draw(output, row, position)",
            "sampler.draw(output, row if children[row] else max(node, 0), position)",
            used_in=decode,
        ),
        mutant(
            "bonus from the wrong row, sampled", exact_law, verify, "judge",
            "sampler.draw(output, row, position)",
            "sampler.draw(output, row if children[row] else max(node, 0), position)",
            used_in=decode,
        ),
        mutant(
            "a draft row too late", greedy_text, verify, "judge",
            "sampler.draw(output, row, position)",
            "sampler.draw(output, row + bool(children[row]), position)", used_in=decode,
        ),
        mutant(
            "the bonus from a position used before", seeded_text, verify, "judge",
            "sampler.draw(output, row, position)",
            "sampler.draw(output, row, position - (0 if children[row] else row))", used_in=decode,
        ),
        mutant(
            "position used twice, seeded", seeded_text, verify, "judge",
            "position += 1", "position += 0", used_in=decode,
        ),
        mutant(
            "the run goes on behind a rejection", greedy_text, verify, "judge",
            "== drawn), None)", "== drawn), row if children[row] else None)", used_in=decode,
        ),
        mutant(
            "penalties do not see accepted tokens", penalised_law, verify, "judge",
            "sampler.commit(", "children[row] or sampler.commit(", used_in=decode,
        ),
        mutant(
            "the end inside a run is passed over", ends, decode, "decode",
            "                if finish is not None:\n                    break\n", "",
            used_in=loops,
        ),
        mutant(
            "a pass too long for what is left", greedy_text, decode, "decode",
            "min(stop.left - 1, rows.limit(fits))", "rows.limit(fits)", used_in=loops,
        ),
        mutant(
            "one token too many stays cached", greedy_text, session, "LiveSequence.commit",
            "self._rewind(len(self.tokens) - 1)", "self._rewind(len(self.tokens))",
        ),
        mutant(
            "one token too few stays cached", greedy_text, session, "LiveSequence.commit",
            "self._rewind(len(self.tokens) - 1)", "self._rewind(len(self.tokens) - 2)",
        ),
        mutant(
            "no rollback", greedy_text, session, "LiveSequence.commit",
            "    self._rewind(len(self.tokens) - 1)\n", "",
        ),
        mutant(
            "the draft keeps a rejected token", greedy_text, session, "LiveSequence.correct",
            "cached < self._valid", "cached < self._valid - 1",
        ),
        mutant(
            "the draft cuts nothing", greedy_text, session, "LiveSequence.correct",
            "        self._rewind(cached, refill=False)\n",
            "        pass\n",
        ),
        mutant(
            "an early stop by the sampled token's value", exact_law, draft_model,
            "DraftModel.go_on",
            "q = law.dense(",
            "if sampled and law.of(token) < 0.4:\n"
            "            break\n"
            "        q = law.dense(",
        ),
        mutant(
            "the draft takes one q for another", exact_law, draft_model, "DraftModel.go_on",
            "law.dense(self._vocab) if sampled",
            "law.dense(self._vocab) ** 2 if sampled",
        ),
        mutant(
            "truncated by the sampled token's value", exact_law, controllers,
            "FixedController.choose", "return draft.truncate(k)",
            "q = draft.q[0]\n"
            "        return draft.truncate(k if q is None or q[draft.tokens[0]] > 0.4 else 0)",
        ),
        mutant(
            "a cut that looks past the first token that does not pay", law_by_cost, controllers,
            "CostAwareController._best_length", "elif sampled", "elif False",
        ),
        mutant(
            "padding counts as draft", padded_rows, session, "LiveSequence.commit",
            "self._rewind(len(self.tokens) - 1)", "pass",
        ),
        mutant(
            "a sibling of the token drawn is walked to", tree_text, verify, "judge",
            "== drawn), None)", "== drawn or drawn in "
            "[draft.tokens[k] for k in children[row]]), None)", used_in=decode,
        ),
        mutant(
            "a sibling of the token drawn is walked to, sampled", tree_law, verify, "judge",
            "== drawn), None)", "== drawn or drawn in "
            "[draft.tokens[k] for k in children[row]]), None)", used_in=decode,
        ),
        mutant(
            "a child of any sibling stands", tree_text, verify, "judge",
            "for j in children[row] if", "for j in range(len(draft)) if j > row - 1 and",
            used_in=decode,
        ),
        mutant(
            "the bonus of a tree from its last row", tree_text, verify, "judge",
            "sampler.draw(output, row, position)",
            "sampler.draw(output, row if children[row] else len(draft), position)",
            used_in=decode,
        ),
        mutant(
            "the bonus of a tree from its last row, sampled", tree_law, verify, "judge",
            "sampler.draw(output, row, position)",
            "sampler.draw(output, row if children[row] else len(draft), position)",
            used_in=decode,
        ),
        mutant(
            "penalties do not see the branch", tree_law, verify, "judge",
            "sampler.commit(", "children[row] or sampler.commit(", used_in=decode,
        ),
        mutant(
            "the branch is not committed", tree_text, session, "LiveSequence.commit",
            "self.backend.commit_path(", "(lambda *_: None)(",
        ),
        mutant(
            "the first branch is committed", tree_text, session, "LiveSequence.commit",
            "[0, *(node + 1 for node in path)]", "[0, *(1 for _ in path[:1])]",
        ),
        mutant(
            "the branch lacks its last token", tree_text, session, "LiveSequence.commit",
            "[: len(tokens)]", "[: len(path)]",
        ),
        mutant(
            "trees for all", trees_are_taken_as_they_are_by_nobody_else, session,
            "LiveSequence.verifiable",
            "can.max_leaves if can.tree else 1", "9",
        ),
        mutant(
            "a class beyond what a pass may carry", padded_rows, row_classes, "RowClass.limit",
            "if size <= room + 1", "",
        ),
        mutant(
            "stop strings only inside one token", stop_strings, stop, "StopRule.feed",
            "text = self._tail + self._piece(token)", "text = self._piece(token)",
        ),
        mutant(
            "the tail of a stop string one byte short", stop_strings, stop, "StopRule.feed",
            "text[-self._reach :]", "text[-self._reach + 1 :]",
        ),
    ],
)  # fmt: skip
def test_a_mutant_is_caught(
    world: Any,
    mutate: Any,
    check: Check,
    module: ModuleType,
    path: str,
    old: str,
    new: str,
    used: dict[str, ModuleType],
) -> None:
    mutate(module, path, old, new, **used)
    with pytest.raises(AssertionError):
        check(world)
