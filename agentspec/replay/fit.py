"""Fits the priors of `control.prior` on recorded sessions: `python -m agentspec.replay.fit`.

Weights: logistic regression over the slots of evidence, one example per candidate that the
production proposer drafts behind every recorded token, up to its first wrong one. Habits: phrases
that answers of several sources share. With `--held-out` the same for each group of sources, fitted
on all others: what a session of an unknown source meets.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import Tokenizer
from agentspec.context import evidence
from agentspec.control.prior import Prior, session_digest, to_json
from agentspec.control.survival import Survival
from agentspec.drafting import Drafting
from agentspec.engine.sampling import SeededChance
from agentspec.replay.chatml import Tokens
from agentspec.types import EMPTY_DRAFT, SamplingParams, TurnContext, Verdict

_DEPTH = 48
_LEAVES = 8
_WIDTH = 28
_EPOCHS = 2
_RATE = 0.1
_SHRINK = 1e-5
_UNSEEN = 1e-2
_PHRASE = 6
_FOLDS = 5
_CHAINS = 400
_EVERY = 31


class Rows(NamedTuple):
    """Examples of one session: slots [n, width] and how many [n], right or not [n], some drafts."""

    slots: npt.NDArray[np.int16]
    sizes: npt.NDArray[np.int8]
    right: npt.NDArray[np.bool_]
    drafts: list[tuple[tuple[int, ...], ...]]


def examples(session: Tokens, tokenizer: Tokenizer, prior: Prior, without: Set[str]) -> Rows:
    """Every draft of the production proposer, judged as far as it agrees with the record."""
    drafting = Drafting(tokenizer, prior=prior, without={*without, "survival"}, leaves=_LEAVES)
    (lookup,) = drafting.proposers()
    slots: list[tuple[int, ...]] = []
    right: list[bool] = []
    drafts: list[tuple[tuple[int, ...], ...]] = []
    ids = session.ids
    nothing = SamplingParams()
    for start, stop in session.turns:
        lookup.begin(TurnContext(ids[:start], nothing, SeededChance(0), (), session.tools))
        for place in range(start, stop):
            draft = lookup.propose(_DEPTH)
            if place % _EVERY == 0:
                drafts.append(draft.as_chain().evidence.features)
            children, node = draft.children, -1
            for token in ids[place:stop]:
                following = children[node + 1]
                node = -1
                for j in following:
                    slots.append(draft.evidence.features[j])
                    right.append(draft.tokens[j] == token)
                    node = j if right[-1] else node
                if node < 0:
                    break
            token = ids[place]
            lookup.observe((token,), Verdict(EMPTY_DRAFT, (token,), 0, 0))
        lookup.end()
    table = np.zeros((len(slots), _WIDTH), dtype=np.int16)
    for row, found in zip(table, slots, strict=True):
        row[: len(found)] = found
    sizes = np.asarray([len(found) for found in slots], dtype=np.int8)
    return Rows(table, sizes, np.asarray(right, dtype=np.bool_), drafts)


def fit(rows: Sequence[Rows]) -> list[float]:
    """Weights that minimise the log-loss: AdaGrad (Duchi et al. 2011), one example at a time."""
    weights = [0.0] * evidence.SLOTS
    squares = [_UNSEEN] * evidence.SLOTS
    sizes = [found.sizes.tolist() for found in rows]
    right = [found.right.tolist() for found in rows]
    likeliest: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    for part, found in enumerate(rows):
        last = found.slots[np.arange(len(found.right)), found.sizes - 1]
        for i, slot in enumerate(last.tolist()):
            (others if evidence.ranked((slot,)) else likeliest).append((part, i))
    shuffle = np.random.default_rng(0)
    # the weights of the likeliest first; then, with these as they are, those of the ranks
    for order, learned in ((likeliest, slice(None)), (others, slice(-1, None))):
        for at in [at for _ in range(_EPOCHS) for at in shuffle.permutation(len(order)).tolist()]:
            part, i = order[at]
            slots = rows[part].slots[i, : sizes[part][i]].tolist()
            odds = sum([weights[slot] for slot in slots])
            off = 1.0 / (1.0 + math.exp(-odds)) - right[part][i]
            for slot in slots[learned]:
                gradient = off + _SHRINK * weights[slot]
                squares[slot] += gradient * gradient
                weights[slot] -= _RATE * gradient / math.sqrt(squares[slot])
    # of slots that no example has, the prior knows what it would without examples
    default = evidence.unfitted()
    return [w if squares[slot] > _UNSEEN else default[slot] for slot, w in enumerate(weights)]


def habits(sessions: Sequence[Tokens], tokenizer: Tokenizer, sources: int = 2) -> list[str]:
    """Runs of 2 to 6 tokens that answers of at least so many sources hold, without their parts."""
    found: dict[tuple[int, ...], set[str]] = defaultdict(set)
    special = {t for s in sessions for t in set(s.ids) if tokenizer.is_special(t)}
    for session in sessions:
        for start, stop in session.turns:
            ids = session.ids[start:stop]
            for length in range(2, _PHRASE + 1):
                for run in zip(*(ids[k:] for k in range(length)), strict=False):
                    found[run].add(session.source)
    shared = {run: len(of) for run, of in found.items() if len(of) >= sources}
    shared = {run: n for run, n in shared.items() if not special.intersection(run)}
    parts = {part for run in shared if len(run) > 2 for part in (run[:-1], run[1:])}
    texts: Counter[str] = Counter()
    for run, number in shared.items():
        text = tokenizer.decode(run).decode("utf-8", "replace")
        numbers = text.strip(" .,0123456789") == ""
        if run not in parts and not numbers and tuple(tokenizer.encode(text)) == run:
            texts[text] = number
    # the widest spread come last: of equal matches the latest is taken
    return sorted(texts, key=lambda text: (texts[text], text))


def chains(rows: Sequence[Rows], weights: Sequence[float]) -> list[list[float]]:
    """Acceptance probabilities of drafts as they are met, a sample of them."""
    survival = Survival(Prior(tuple(weights)))
    drafts = [draft for part in rows for draft in part.drafts]
    rng = np.random.default_rng(0)
    chosen = sorted(rng.choice(len(drafts), min(_CHAINS, len(drafts)), replace=False).tolist())
    return [[survival.chance(slots) for slots in drafts[i]] for i in chosen]


def fitted(
    sessions: Sequence[Tokens],
    vocabulary: Callable[[], Tokenizer],
    start: Mapping[str, Sequence[float]],
    *,
    rounds: int = 1,
    jobs: int = 1,
) -> dict[str, Any]:
    """Priors as `Prior.from_json` reads them.

    Which candidates are drafted depends on the weights: those of `start` in the first round, those
    of the round before in the others.
    """
    phrases = tuple(habits(sessions, vocabulary()))
    weights = {name: list(given) for name, given in start.items()}
    runs: list[list[float]] = []
    kinds = {"full": frozenset[str](), "plain": frozenset({"syntax"})}
    for name in start:
        without = kinds[name]
        for _ in range(rounds):
            prior = Prior(tuple(weights[name]), (), phrases)
            tasks = [_Task(session, vocabulary, prior, without) for session in sessions]
            with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
                rows = list(pool.map(_examples, tasks))
            weights[name] = fit(rows)
        if name == "full":
            runs = chains(rows, weights[name])
    digests = [session_digest(session.source, session.id) for session in sessions]
    return to_json(weights, runs, phrases, digests)


class _Task(NamedTuple):
    session: Tokens
    vocabulary: Callable[[], Tokenizer]
    prior: Prior
    without: frozenset[str]


def _examples(task: _Task) -> Rows:
    return examples(task.session, _opened(task.vocabulary), task.prior, task.without)


@lru_cache(maxsize=1)
def _opened(vocabulary: Any) -> Any:
    return vocabulary()


def folds(sources: Sequence[str]) -> Iterator[set[str]]:
    """Groups of sources to hold out."""
    names = sorted(set(sources))
    for first in range(min(_FOLDS, len(names))):
        yield set(names[first::_FOLDS])


def main(argv: Sequence[str] | None = None) -> int:
    """Fit and write; 0 when all was written."""
    from agentspec.replay.inputs import read_sessions, vocabulary_of
    from agentspec.replay.store import ArrayStore

    parser = argparse.ArgumentParser(prog="agentspec.replay.fit", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="trace files or folders of them")
    parser.add_argument("--leave", type=Path, help="sample file: sessions not to fit on")
    parser.add_argument("--model", help="whose vocabulary: catalog name or GGUF path")
    parser.add_argument("--out", type=Path, help="write the priors here")
    parser.add_argument("--held-out", type=Path, help="folder for priors per group of sources")
    parser.add_argument("--full-only", action="store_true", help="no weights without syntax")
    parser.add_argument("--start", type=Path, help="priors that choose the candidates")
    parser.add_argument("--rounds", type=int, default=2, help="fits, each from the last")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    chosen = parser.parse_args(argv)
    vocabulary = vocabulary_of(chosen.model)
    sessions = read_sessions(
        chosen.files, vocabulary, ArrayStore.default("tokens"), leave=chosen.leave
    )
    names = ("full",) if chosen.full_only else ("full", "plain")
    start = {name: evidence.unfitted() for name in names}
    if chosen.start is not None:
        known = json.loads(chosen.start.read_text("utf-8"))
        start = {name: Prior.from_json(known, name).weights for name in start}
    more = {"rounds": chosen.rounds, "jobs": chosen.jobs}
    if chosen.out is not None:
        _write(chosen.out, fitted(sessions, vocabulary, start, **more))
    if chosen.held_out is not None:
        chosen.held_out.mkdir(parents=True, exist_ok=True)
        for group in folds([session.source for session in sessions]):
            rest = [session for session in sessions if session.source not in group]
            data = fitted(rest, vocabulary, start, **more)
            for source in sorted(group):
                _write(chosen.held_out / f"{source}.json", data)
    return 0


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
    print(f"wrote {path}: {len(data['habits'])} habits", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
