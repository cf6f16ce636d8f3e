"""The production loop over recorded sessions, charged by a cost curve."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentspec.backends.base import Tokenizer
from agentspec.control.controller import Controller
from agentspec.control.cost import CostCurve
from agentspec.control.prior import Prior, session_digest
from agentspec.drafting import PARTS, Drafting
from agentspec.engine.decode import decode
from agentspec.engine.panel import Panel
from agentspec.engine.sampling import Sampler, SeededChance
from agentspec.engine.session import LiveSequence
from agentspec.engine.stats import TurnStats
from agentspec.engine.stop import StopRule
from agentspec.errors import BackendError, ConfigError
from agentspec.propose.draft_model import DraftModel
from agentspec.replay.ceiling import perfect
from agentspec.replay.chatml import Tokens
from agentspec.replay.draft_bits import DraftBits, RecordedReading
from agentspec.replay.script import ScriptedTarget
from agentspec.replay.tally import Tally
from agentspec.replay.trace_file import PassTrace
from agentspec.types import Proposer, SamplingParams, TurnContext

EARLIER = "session:earlier"
"""The source name of what comes from earlier sessions."""

MOST_EARLIER = 1_000_000
"""Tokens of earlier sessions that a warm replay gives, the newest."""

_MOST_TOKENS = 1 << 20
PERFECT = "perfect"
"""Every draft length chosen in hindsight: not what is left out, but what is missing."""

_FIXED = {"k4": 4, "k8": 8, "k16": 16}


@dataclass(frozen=True, slots=True)
class Variant:
    """The engine, the engine with something left out or its draft length fixed, or a peer.

    `peer` makes another engine's proposers and controller from the ids that end an answer; it
    is given nothing of earlier sessions. `perfect` is no engine: it knows what will stand.
    """

    name: str = "full"
    without: frozenset[str] = frozenset()
    fixed_k: int | None = None
    peer: Callable[[Set[int]], tuple[list[Proposer], Controller]] | None = None
    perfect: bool = False


FULL = Variant()


def variant(name: str) -> Variant:
    """An ablation by its name. Raises ConfigError naming those that there are."""
    if name in _FIXED:
        return Variant(name, fixed_k=_FIXED[name])
    if name == PERFECT:
        return Variant("perfect K", perfect=True)
    if name in PARTS:
        return Variant(f"without {name}", frozenset({name}))
    raise ConfigError(
        f"nothing called {name!r} can be left out; there are: {', '.join(ablations())}"
    )


def ablations() -> tuple[str, ...]:
    """Every name that `variant` knows."""
    return (*PARTS, *_FIXED, PERFECT)


@dataclass(frozen=True, slots=True)
class Plan:
    """What every session is replayed with; `draft_cost` is per pass of the draft model.

    `priors` is a file of fitted priors, or a folder with one for each source. With `leaves` above
    1 drafts may be trees, as a target of that many leaves verifies them.
    """

    curves: Mapping[str, Mapping[int, float]]
    variants: Sequence[Variant] = (FULL,)
    states: Sequence[str] = ("cold", "warm")
    draft_cost: float = 0.04
    traced: bool = False
    priors: Path | None = None
    leaves: int = 1


@dataclass(frozen=True, slots=True)
class Result:
    """One session under one curve, variant and state."""

    session: str
    source: str
    curve: str
    variant: str
    state: str
    tally: Tally
    trace: list[str] = field(default_factory=list)


def replay_session(
    tokens: Tokens,
    tokenizer: Tokenizer,
    points: Mapping[int, float],
    variant: Variant = FULL,
    *,
    earlier: Sequence[Sequence[int]] = (),
    bits: DraftBits | None = None,
    draft_cost: float = 0.04,
    trace: PassTrace | None = None,
    prior: Prior | None = None,
    leaves: int = 1,
) -> Tally:
    """Replay every answer of one session with an engine that has seen nothing before.

    `earlier` are the ids of earlier sessions that its proposers may search. Raises BackendError
    when the engine's text is not the recorded one, which cannot be.
    """
    cost = CostCurve.from_points(points, draft=draft_cost if bits is not None else None)
    eos_ids = tokenizer.eos_ids | {tokens.end}
    peer = variant.peer(eos_ids) if variant.peer is not None else None
    reading = RecordedReading(tokens, bits) if bits is not None and peer is None else None
    drafter = None
    if reading is not None:
        drafter = DraftModel(target_vocab=tokenizer.vocab_size, reading=reading)
    drafting = Drafting(
        tokenizer,
        cost=cost,
        draft=drafter,
        fixed_k=variant.fixed_k,
        without=set(variant.without),
        prior=prior,
        leaves=leaves,
    )
    target = ScriptedTarget(tokens.ids, tokenizer)
    sequence = LiveSequence(target)
    tally = Tally()
    before = 0
    for number, (start, stop) in enumerate(tokens.turns):
        target.tell_until(stop)
        prompt = tokens.ids[:start]
        if trace is not None:
            trace.follow(prompt)
        stats = TurnStats(prompt_tokens=len(prompt))
        # the length of the answer is nobody's to know: it ends with its last token
        rule = StopRule(max_tokens=_MOST_TOKENS, eos_ids=eos_ids)
        sampling = SamplingParams()
        chance = SeededChance(sampling.seed)
        own = drafting.proposers()
        proposers, controller = peer or (own, drafting.controller(own))
        panel = Panel(proposers, stats)
        sampler = Sampler(sampling, chance, prompt=prompt)
        steps = decode(sequence, panel, controller, sampler, rule, stats)
        answer: list[int] = []
        try:
            sequence.start(prompt)
            drafting.prompt_read(cost(start - before) * cost.row_seconds())
            panel.begin(_turn_context(tokens, prompt, sampling, chance, earlier))
            charged = len(reading.passes) if reading is not None else 0
            for verdict in steps:
                drafts = reading.passes[charged:] if reading is not None else []
                charged += len(drafts)
                rows = len(verdict.draft) + 1
                # a smaller model of the family: its passes grow with their rows as the target's
                draft_charge = draft_cost * sum(map(cost, drafts))
                charge = cost(rows) + draft_charge
                tally.observe(verdict, charge, draft_charge)
                if trace is not None:
                    trace.add(verdict, turn=number, rows=rows, charge=charge, drafts=drafts)
                answer += verdict.tokens
        finally:
            steps.close()
        if answer != tokens.ids[start:stop]:
            raise BackendError(f"answer {number} of session {tokens.id} is not the recorded one")
        before = stop
        tally.turns += 1
        tally.notes += stats.notes
    return tally


def _turn_context(
    tokens: Tokens,
    prompt: Sequence[int],
    sampling: SamplingParams,
    chance: SeededChance,
    earlier: Sequence[Sequence[int]],
) -> TurnContext:
    """All that proposers see of a session when an answer begins."""
    context = [(EARLIER, ids) for ids in earlier]
    return TurnContext(prompt, sampling, chance, context, tokens.tools)


@dataclass(frozen=True, slots=True)
class _Task:
    tokens: Tokens
    earlier: tuple[list[int], ...]
    bits: DraftBits | None
    plan: Plan


def replay(
    sessions: Sequence[Tokens],
    tokenizer: Callable[[], Tokenizer],
    plan: Plan,
    *,
    bits: Sequence[DraftBits] | None = None,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Result]:
    """Replay sessions, in their order; warm: after those of the same source before them.

    With several `jobs` the processes are started afresh: `tokenizer` is a hashable that can be
    pickled, and opens the same one in each of them.
    """
    tasks = [
        _Task(
            tokens,
            _before(sessions[:i], tokens) if "warm" in plan.states else (),
            bits[i] if bits is not None else None,
            plan,
        )
        for i, tokens in enumerate(sessions)
    ]
    if jobs <= 1:
        opened = tokenizer()
        for done, task in enumerate(tasks, 1):
            yield from _run(task, opened)
            progress(done, len(tasks))
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as pool:
        for done, results in enumerate(pool.map(_in_process, [tokenizer] * len(tasks), tasks), 1):
            yield from results
            progress(done, len(tasks))


def _before(sessions: Sequence[Tokens], tokens: Tokens) -> tuple[list[int], ...]:
    """Earlier sessions of the same source, oldest first, the newest that fit."""
    room, kept = MOST_EARLIER, []
    for other in reversed(sessions):
        if other.source != tokens.source:
            continue
        room -= len(other.ids)
        if room < 0:
            break
        kept.append(other.ids)
    return tuple(reversed(kept))


@lru_cache(maxsize=1)
def _opened(tokenizer: Callable[[], Any]) -> Any:
    return tokenizer()


def _in_process(tokenizer: Callable[[], Tokenizer], task: _Task) -> list[Result]:
    return list(_run(task, _opened(tokenizer)))


def seen_by_priors(sessions: Sequence[Tokens], priors: Path | None) -> int:
    """How many of these sessions the priors that replay them were fitted on."""
    return sum(
        session_digest(session.source, session.id)
        in _prior(priors, session.source, "full").sessions
        for session in sessions
    )


@lru_cache(maxsize=64)
def _prior(path: Path | None, source: str, name: str) -> Prior:
    if path is None:
        return Prior.shipped(name)
    file = path / f"{source}.json" if path.is_dir() else path
    try:
        return Prior.from_json(json.loads(file.read_text("utf-8")), name)
    except (
        OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, ConfigError
    ) as error:  # fmt: skip
        raise ConfigError(f"{file} holds no fitted priors: {error}") from error


def _run(task: _Task, tokenizer: Tokenizer) -> Iterator[Result]:
    tokens, plan = task.tokens, task.plan
    for curve, points in plan.curves.items():
        for way in plan.variants:
            cold: Tally | None = None
            for state in plan.states:
                alone = way.peer is not None or way.perfect
                earlier = task.earlier if state == "warm" and not alone else ()
                trace = None
                if plan.traced:
                    labels = {"curve": curve, "variant": way.name, "state": state}
                    trace = PassTrace(tokens.id, tokens.source, **labels)
                name = "plain" if "syntax" in way.without else "full"
                if cold is not None and trace is None and not earlier:
                    tally = cold  # nothing is earlier: warm is cold
                elif way.perfect:
                    tally = perfect(
                        tokens, tokenizer, points, _prior(plan.priors, tokens.source, name)
                    )
                else:
                    tally = replay_session(
                        tokens,
                        tokenizer,
                        points,
                        way,
                        earlier=earlier,
                        bits=task.bits,
                        draft_cost=plan.draft_cost,
                        trace=trace,
                        prior=_prior(plan.priors, tokens.source, name),
                        leaves=plan.leaves,
                    )
                cold = tally if state == "cold" else cold
                lines = trace.lines if trace is not None else []
                yield Result(tokens.id, tokens.source, curve, way.name, state, tally, lines)
