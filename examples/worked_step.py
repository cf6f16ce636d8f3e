"""One decode step of the production proposer and controller, with all its numbers.

python examples/worked_step.py: prints what docs/how-it-works.md quotes. No model is needed: the
text is cut into words, and the weights are those that know only match lengths, with one set by
hand, so that the numbers can be checked on paper and stay the same when the priors are fitted anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from agentspec.context import evidence
from agentspec.control.cost import CostCurve
from agentspec.control.pace import Pace
from agentspec.control.prior import Prior
from agentspec.drafting import Drafting
from agentspec.engine.sampling import SeededChance
from agentspec.propose.lookup import Lookup
from agentspec.replay.curves import packaged_curves
from agentspec.testing.scripted import ScriptedTokenizer
from agentspec.types import EMPTY_DRAFT, Draft, SamplingParams, TurnContext, Verdict

FILE = """\
def total(items, rate):
    result = 0
    for item in items:
        result += item.price * item.count
    if rate:
        result += result * rate
    return round(result, 2)
"""
PROMPT = f"Rename result to amount:\n{FILE}\n"
ANSWER = FILE.replace("result", "amount")
WRITTEN = "def total(items, rate):\n    amount = 0\n    for item in items:\n        amount"
"""The answer up to the step that is shown."""

CURVES = ("flat", "linear-cpu")
ROOM = 32
_EDITED = 2.5
END = "‹end›"
_FEW = 10
_SHOWN = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 13, 14, 16, 20)


class Words(ScriptedTokenizer):
    """A vocabulary of the words of these texts, each with the space before it."""

    def __init__(self, *texts: str) -> None:
        both = [shape for text in texts for shape in (text, json.dumps(text))]
        known = dict.fromkeys(word for text in both for word in _cut(text))
        self._ids = {word: 256 + i for i, word in enumerate(known)}
        words = {i: word.encode() for word, i in self._ids.items()}
        super().__init__(257 + len(known), words=words)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in _cut(text):
            ids += [self._ids[word]] if word in self._ids else word.encode()
        return ids


def prior() -> Prior:
    """Weights by match length, and one for alignments that an edit broke."""
    weights = list(Prior.none().weights)
    for agreed in (4, 9, 17):
        for since in range(5):
            weights[evidence.broken_slot(agreed, since, 0)] = _EDITED
    # drafts as passes meet them, for the forecast of the pace: good ones, middling ones, none
    chains = ((0.9,) * 16, (0.7,) * 8, (0.4,) * 4, (0.2,) * 2, (), ())
    return Prior(tuple(weights), chains)


class Step:
    """Proposer and controller on one curve, brought to the end of WRITTEN by plain passes."""

    def __init__(self, curve: str, leaves: int = 1) -> None:
        self.words = Words(PROMPT, ANSWER)
        self.cost = CostCurve.from_points(packaged_curves()[curve])
        self.drafting = Drafting(self.words, cost=self.cost, prior=prior(), leaves=leaves)
        self.rate = Pace(self.cost, prior().chains, most=ROOM).rate
        (lookup,) = self.drafting.proposers()
        assert isinstance(lookup, Lookup)
        self.lookup = lookup
        prompt = [*self.words.encode(PROMPT), *self.words.eos_ids]
        self.text = [*prompt, *self.words.encode(WRITTEN)]
        lookup.begin(TurnContext(prompt, SamplingParams(), SeededChance(0)))
        for token in self.text[len(prompt) :]:
            lookup.propose(ROOM)
            lookup.observe([token], Verdict.of(EMPTY_DRAFT, [token], (), None))
        self.draft = lookup.propose(ROOM)
        self.controller = self.drafting.controller()
        self.chosen = self.controller.choose(iter([self.draft]), ROOM)

    def chance(self, j: int) -> float:
        return self.drafting.survival.of(self.draft, j)

    def worths(self) -> list[tuple[float, float]]:
        """Tokens expected and what they are worth, for K = 0, 1, …"""
        tokens, stands, found = 1.0, [1.0], []
        for k in range(len(self.draft) + 1):
            found.append((tokens, tokens - self.rate * self.cost(k + 1)))
            if k < len(self.draft):
                parent = k - 1 if self.draft.parents is None else self.draft.parents[k]
                stands.append(self.chance(k) * stands[parent + 1])
                tokens += stands[-1]
        return found

    def say(self, ids: Sequence[int]) -> str:
        words = [END if i in self.words.eos_ids else self.words.piece(i).decode() for i in ids]
        return "".join(words).replace("\n", "⏎")


def lines() -> Iterator[str]:
    """What is printed."""
    flat, steep = (Step(curve) for curve in CURVES)
    yield f"text so far ends in   {flat.say(flat.text[-9:])!r}"
    yield from _pointers(flat)
    yield from _candidates()
    yield from _table(flat, steep)
    yield from _tree()
    for curve, step in zip(CURVES, (flat, steep), strict=True):
        yield from _observed(step, curve)


def _pointers(step: Step) -> Iterator[str]:
    yield ""
    yield "pointers          agree  before the edit  misses since  what comes next there"
    pool = step.lookup._pool
    for pointer in sorted(pool, key=lambda p: (-max(p.length, p.broken), p.corpus, p.place)):
        corpus = pool.corpora[pointer.corpus]
        where = f"{corpus.name(pointer.place)}, token {pointer.place}"
        then = step.say(corpus.index.continuation(pointer.place, 4))
        agreed = f"{pointer.length:>5}  {pointer.broken:>15}  {pointer.misses:>12}"
        yield f"{where:<16}  {agreed}  {then!r}"


def _candidates() -> Iterator[str]:
    step = Step("flat", leaves=4)
    yield ""
    yield "candidates for the next token"
    for j, parent in enumerate(step.draft.parents or ()):
        if parent < 0:
            yield f"{step.say([step.draft.tokens[j]])!r:<8} {step.chance(j):.3f}"


def _table(*steps: Step) -> Iterator[str]:
    yield ""
    yield "pace (tokens that a unit of cost is worth): " + ", ".join(
        f"{step.rate:.2f} on {curve}" for curve, step in zip(CURVES, steps, strict=True)
    )
    widest = max(steps, key=lambda step: len(step.draft))
    yield f"{'':>27}{'all stand':>10}{'':>8}" + "".join(f"{curve:>16}" for curve in CURVES)
    yield f"{'K':>2}  {'token':<12} {'chance':>9}  {'so far':>10}{'tokens':>8}" + (
        f"{'cost':>8}{'worth':>8}" * len(steps)
    )
    columns, stands = [step.worths() for step in steps], 1.0
    for k in range(len(widest.draft) + 1):
        stands *= widest.chance(k - 1) if k else 1.0
        if k not in _SHOWN and all(k != len(step.chosen) for step in steps):
            continue
        token = repr(widest.say(widest.draft.tokens[k - 1 : k])) if k else "–"
        chance = f"{widest.chance(k - 1):.3f}" if k else ""
        tokens = widest.worths()[k][0]
        row = f"{k:>2}  {token:<12} {chance:>9}  {stands:>10.3f}{tokens:>8.2f}"
        for step, column in zip(steps, columns, strict=True):
            if k >= len(column):
                row += f"{'–':>8}{'–':>8}"
                continue
            mark = "*" if k == len(step.chosen) else " "
            row += f"{step.cost(k + 1):>8.2f}{column[k][1]:>7.2f}{mark}"
        yield row.rstrip()
    for curve, step in zip(CURVES, steps, strict=True):
        more = " …" if len(step.chosen) > _FEW else ""
        text = step.say(step.chosen.tokens[:_FEW])
        yield f"chosen on {curve}: K = {len(step.chosen)}  {text!r}{more}"


def _tree() -> Iterator[str]:
    yield ""
    for curve in CURVES:
        step = Step(curve, leaves=2)
        tokens = step.chosen.tokens
        side = [
            f"{step.say([tokens[j]])!r} beside {step.say([tokens[following[0]]])!r}"
            for following in step.chosen.children
            for j in following[1:]
        ]
        what = ", ".join(side) if side else "a chain"
        yield f"with two leaves on {curve}: {len(step.chosen)} tokens, {what}"


def _observed(step: Step, curve: str) -> Iterator[str]:
    """The pass over the chosen draft, and what it teaches."""
    truth = step.words.encode(ANSWER)[len(step.words.encode(WRITTEN)) :]
    accepted = 0
    while accepted < len(step.chosen) and step.chosen.tokens[accepted] == truth[accepted]:
        accepted += 1
    committed = truth[: accepted + 1]
    judged = _judged(step.draft, committed)
    before = [step.chance(j) for j in range(judged)]
    verdict = Verdict.of(step.chosen, committed, range(accepted), None)
    step.controller.observe(verdict, rows=len(step.chosen) + 1, seconds=1.0)
    last = "the bonus token" if accepted == len(step.chosen) else "a recovered one"
    yield ""
    yield (
        f"the pass on {curve} commits {len(committed)} tokens: {accepted} accepted and {last}, "
        f"{step.say(committed[-1:])!r}"
    )
    yield f"judged: {judged} of {len(step.draft)} tokens proposed, the others are censored"
    yield "chances before and after: " + ", ".join(
        f"{step.say([step.draft.tokens[j]])!r} {before[j]:.3f} → {step.chance(j):.3f}"
        for j in (0, judged - 1)
    )


def _judged(draft: Draft, committed: Sequence[int]) -> int:
    for j, (token, there) in enumerate(zip(committed, draft.tokens, strict=False)):
        if token != there:
            return j + 1
    return min(len(committed), len(draft))


def _cut(text: str) -> list[str]:
    return re.findall(r"\n *| ?\w+| ?[^\w\s]+| +", text)


if __name__ == "__main__":
    print("\n".join(lines()))
