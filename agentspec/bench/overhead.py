"""What the engine costs outside the models, against its budgets.

``python -m agentspec.bench.overhead [--json]`` runs the production loop over a scripted backend
whose logits are computed beforehand. Times are medians; other load on the machine adds to them.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from agentspec.backends.base import Output, Rows
from agentspec.bench.stored import measure_store
from agentspec.context.index import TokenIndex
from agentspec.control.cost import CostCurve
from agentspec.drafting import Drafting
from agentspec.engine.decode import decode
from agentspec.engine.panel import Panel
from agentspec.engine.sampling import Sampler, SeededChance, logprobs
from agentspec.engine.session import LiveSequence
from agentspec.engine.stats import TurnStats
from agentspec.engine.stop import StopRule
from agentspec.propose.longest import LongestMatch
from agentspec.syntax.lexical import TokenClasses
from agentspec.syntax.position import SyntaxTracker
from agentspec.testing.scripted import ScriptedBackend, ScriptedOutput, ScriptedTokenizer
from agentspec.types import EMPTY_DRAFT, SamplingParams, TurnContext, Verdict

VOCAB = 151_936
CONTEXT = 32_768
INDEXED = 1_000_000
_CODE = b"""```python
def load(self, path: str, limit: int = 3) -> list[str]:
    rows = [row.strip() for row in self._read(path)[:limit] if row]  # the caller asks again
    return {"rows": rows, "path": "store.py"}
```
The tests pass now, and the file is written again.
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One measured quantity; `passed` is None where no budget is set."""

    what: str
    measured: float
    unit: str
    budget: float | None = None
    at_least: bool = False

    @property
    def passed(self) -> bool | None:
        if self.budget is None:
            return None
        return self.measured >= self.budget if self.at_least else self.measured <= self.budget


class _Given(ScriptedOutput):
    """Rows computed beforehand."""

    def __init__(self, rows: npt.NDArray[np.float32]) -> None:
        super().__init__([])
        self._given = rows

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self._given[i]
        return row


class _Pieces(ScriptedTokenizer):
    """A vocabulary of code-like pieces, none of them special."""

    _WORDS = tuple(re.findall(rb" ?\w+|\n *|[^\w\s]", _CODE))

    def __init__(self) -> None:
        super().__init__(VOCAB, eos_ids=frozenset({VOCAB - 1}))

    def piece(self, token: int) -> bytes:
        word: bytes = self._WORDS[token % len(self._WORDS)]
        return word

    def is_special(self, token: int) -> bool:
        return False


class _Following(ScriptedOutput):
    """Rows whose one peak is the next id of a text: a row per id would take 20 GB."""

    def __init__(self, backend: _Backend, start: int) -> None:
        super().__init__([])
        self._backend, self._start = backend, start

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        return self._backend.row_of(self._start + i)


class _Backend(ScriptedBackend):
    """Follows a text; counts the time spent in its own passes, which stand for the model's."""

    def __init__(self, text: Sequence[int], row: npt.NDArray[np.float32]) -> None:
        super().__init__(lambda cached: row, VOCAB, n_ctx=len(text) + 64)
        self.spent = 0.0
        self._text, self._likely, self._peak = text, row, 0

    def row_of(self, position: int) -> npt.NDArray[np.float32]:
        self._likely[self._peak] = 0.0
        self._peak = self._text[min(position, len(self._text) - 1)]
        self._likely[self._peak] = 20.0
        return self._likely

    def forward(self, rows: Sequence[Rows]) -> Output:
        start = time.perf_counter()
        (part,) = rows
        cache = self.caches[part.seq]
        output = _Following(self, len(cache) + 1 + part.first_logits_row)
        cache += part.tokens
        self.spent += time.perf_counter() - start
        return output


def measure(seconds: float = 0.5) -> list[Line]:
    """Every line of the report; about `seconds` per quantity, and 500 MB of memory."""
    gc.collect()
    return [*_steps(seconds), *_sampling(seconds), *_lookup(seconds), *_syntax(seconds)]


def _agent_text(n: int, seed: int = 0) -> list[int]:
    """Token ids that repeat as code does: runs of 5 to 60 ids, half of them seen before."""
    rng = np.random.default_rng(seed)
    text: list[int] = rng.integers(0, VOCAB - 1, 1000).tolist()
    while len(text) < n:
        length = int(rng.integers(5, 60))
        if rng.random() < 0.5:
            start = int(rng.integers(0, len(text) - length))
            text += text[start : start + length]
        else:
            text += rng.integers(0, VOCAB - 1, length).tolist()
    return text[:n]


def _logits() -> npt.NDArray[np.float32]:
    """Sixteen rows of logits as broad as a language model's, with one likely id each."""
    rows = np.random.default_rng(0).normal(0.0, 2.5, (16, VOCAB)).astype(np.float32)
    rows[np.arange(16), np.arange(16)] = 16.0
    return rows


def _steps(seconds: float) -> Iterator[Line]:
    greedy = SamplingParams()
    sampled = SamplingParams(temperature=0.7, top_k=40, top_p=0.95, seed=1)
    yield Line("decode step, greedy", _step(greedy, None, seconds) * 1e3, "ms", 0.3)
    for what, curve in (("flat curve", {1: 1.0, 64: 1.63}), ("steep curve", {1: 1.0, 4: 2.3})):
        line = _step(greedy, CostCurve.from_points(curve), seconds)
        yield Line(f"decode step, everything on, {what}", line * 1e3, "ms", 0.8)
    line = _step(sampled, CostCurve.from_points({1: 1.0, 64: 1.63}), seconds)
    yield Line("decode step, everything on, sampled", line * 1e3, "ms")


def _step(params: SamplingParams, cost: CostCurve | None, seconds: float) -> float:
    """Seconds of one step of the loop at 32k tokens, the scripted model's own left out.

    With `cost` the engine's own proposers and controller, syntax included; without, none.
    """
    text = _agent_text(CONTEXT)
    prompt = text[: CONTEXT * 3 // 4]
    backend = _Backend(text, _logits()[0])
    backend.tokenizer = _Pieces()
    sequence = LiveSequence(backend)
    stats = TurnStats()
    chance = SeededChance(1)
    drafting = Drafting(backend.tokenizer, cost=cost)
    proposers = drafting.proposers() if cost is not None else []
    panel = Panel(proposers, stats)
    sequence.start(prompt)
    panel.begin(TurnContext(prompt, params, chance))
    rule = StopRule(max_tokens=len(text) - len(prompt) - 1)
    sampler = Sampler(params, chance, prompt=prompt)
    controller = drafting.controller(proposers)
    steps = decode(sequence, panel, controller, sampler, rule, stats)
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 50:
        start, backend.spent = time.perf_counter(), 0.0
        if next(steps, None) is None:
            break
        times.append(time.perf_counter() - start - backend.spent)
    steps.close()
    return statistics.median(times)


def _sampling(seconds: float) -> Iterator[Line]:
    rows = _logits()
    for what, params in (
        ("temperature, top-k, top-p", SamplingParams(temperature=0.7, top_k=40, top_p=0.95)),
        ("temperature", SamplingParams(temperature=0.7)),
        ("temperature, top-p", SamplingParams(temperature=0.7, top_p=0.95)),
        ("temperature, min-p", SamplingParams(temperature=0.7, min_p=0.05)),
        (
            "all of it and penalties",
            SamplingParams(
                temperature=0.7, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.1,
                presence_penalty=0.1, frequency_penalty=0.1, logit_bias={5: 1.0},
            ),
        ),
    ):  # fmt: skip
        sampler = Sampler(params, SeededChance(1), prompt=_agent_text(CONTEXT))
        for token in _agent_text(2000, 1):
            sampler.commit(token)
        draw = partial(sampler.draw, _Given(rows))
        each = _median(lambda i, draw=draw: draw(i % len(rows), i), seconds)  # type: ignore[misc]
        yield Line(f"sampling a row: {what}", each * 1e3, "ms", 1.0)
    each = _median(lambda i: logprobs(rows[i % len(rows)], 7, 5), seconds)
    yield Line("log-probabilities of a row, 5 alternatives", each * 1e3, "ms")


def _lookup(seconds: float) -> Iterator[Line]:
    text = np.asarray(_agent_text(INDEXED), dtype=np.int32)
    loads: list[float] = []
    for _ in range(5):
        index = TokenIndex()
        start = time.perf_counter()
        index.load(text)
        loads.append(time.perf_counter() - start)
    rate = INDEXED / statistics.median(loads) / 1e6
    yield Line("lookup: bulk load", rate, "M tokens/s", 1.0, at_least=True)
    yield Line("lookup: memory", index.nbytes / len(index), "bytes/token", 32.0)

    lookup = LongestMatch()
    lookup.begin(TurnContext(text.tolist(), SamplingParams(), SeededChance(1)))
    more = _agent_text(INDEXED + 40_000)[INDEXED:]
    adds: list[float] = []
    proposals: list[float] = []
    verdict = Verdict(EMPTY_DRAFT, (0,), 0, 0)
    until = time.perf_counter() + 4 * seconds
    for token in more:
        start = time.perf_counter()
        lookup.observe((token,), verdict)
        between = time.perf_counter()
        lookup.propose(8)
        adds.append(between - start)
        proposals.append(time.perf_counter() - between)
        if between > until and len(adds) >= 10_000:
            break
    yield Line("lookup: one new token, mean", statistics.fmean(adds) * 1e6, "us", 10.0)
    yield Line("lookup: one new token, worst (a merge)", max(adds) * 1e3, "ms")
    yield Line("lookup: longest match, median", statistics.median(proposals) * 1e6, "us", 50.0)
    late = statistics.quantiles(proposals, n=100)[98]
    yield Line("lookup: longest match, 99th percentile", late * 1e6, "us")
    yield from _candidates(text, more, seconds)


def _candidates(text: npt.NDArray[np.int32], more: Sequence[int], seconds: float) -> Iterator[Line]:
    """A whole proposal from several places at once, syntax and learned acceptance included."""
    drafting = Drafting(_Pieces(), cost=CostCurve.from_points({1: 1.0, 64: 1.63}))
    (lookup,) = drafting.proposers()
    lookup.begin(TurnContext(text.tolist(), SamplingParams(), SeededChance(1)))
    times: list[float] = []
    verdict = Verdict(EMPTY_DRAFT, (0,), 0, 0)
    until = time.perf_counter() + 2 * seconds
    for token in more:
        start = time.perf_counter()
        lookup.propose(32)
        times.append(time.perf_counter() - start)
        lookup.observe((token,), verdict)
        if start > until and len(times) >= 500:
            break
    yield Line("lookup: all candidates, median", statistics.median(times) * 1e6, "us", 50.0)
    late = statistics.quantiles(times, n=100)[98]
    yield Line("lookup: all candidates, 99th percentile", late * 1e6, "us")


def _source(lines: int) -> list[bytes]:
    """A long Python file inside a tool call, in pieces of about a token each."""
    body = (
        r"class Store{n}(Base):\n    def load(self, path: str, limit: int = {n}) -> list[str]:\n"
        r"        if not path or path in self._seen:\n"
        r"            raise ValueError(\"no such file\")  # the caller asks again\n"
        r"        rows = [row.strip() for row in self._read(path)[:limit] if row]\n"
        r"        rows.sort(key=lambda row: (len(row), row))\n"
        r"        return self._keep(rows)\n"
    )
    text = '<tool_call>\n{"name": "write", "arguments": {"path": "store.py", "content": "'
    text += "".join(body.replace("{n}", str(i)) for i in range(lines // 7))
    return [p.encode() for p in re.findall(r" ?\w{1,6}|\s+|\\.|[^\w\s\\]{1,2}", text)]


def syntax_position_microseconds(lines: int = 20_000, timed: int = 4000) -> tuple[float, float]:
    """Median and 99th percentile of following one token, at the end of a file of so many lines."""
    pieces = _source(lines)
    tracker = SyntaxTracker(pieces.__getitem__)
    tracker.begin()
    start = max(0, len(pieces) - timed)
    for i in range(start):
        tracker.advance(i)
    times: list[float] = []
    for i in range(start, len(pieces)):
        begun = time.perf_counter()
        tracker.advance(i)
        _ = tracker.position
        times.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def token_class_microseconds(drafts: int = 2000, length: int = 16) -> float:
    """Mean time of the class of one drafted token, with the automaton's first steps included."""
    text = _source(1000)
    ids = {piece: i for i, piece in enumerate(dict.fromkeys(text))}
    tokens = [ids[piece] for piece in text]
    pieces = list(ids)
    tracker, classes = SyntaxTracker(pieces.__getitem__), TokenClasses(pieces.__getitem__)
    tracker.begin()
    spent, n = 0.0, 0
    for i in range(min(drafts, len(tokens) - length)):
        tracker.advance(tokens[i])
        at, draft = tracker.position, tokens[i + 1 : i + 1 + length]
        begun = time.perf_counter()
        classes.of(at, draft)
        spent += time.perf_counter() - begun
        n += length
    return spent / n * 1e6


def _syntax(seconds: float) -> Iterator[Line]:
    lines = 20_000 if seconds >= 0.1 else 300
    middle, late = syntax_position_microseconds(lines)
    yield Line(f"syntax: position, line {lines:,}, median", middle, "us", 200.0)
    yield Line("syntax: position, 99th percentile", late, "us")
    yield Line("syntax: class of a drafted token, mean", token_class_microseconds(), "us", 1.0)


def _store() -> Iterator[Line]:
    stored = measure_store(np.asarray(_agent_text(INDEXED), dtype=np.int32), VOCAB)
    yield Line("index on disk: load and sort", stored.load, "s", 0.5)
    yield Line("index on disk: memory", stored.memory, "bytes/token", 32.0)
    yield Line("index on disk: 1,000 unchanged files", stored.refresh * 1e3, "ms")


def _median(call: Callable[[int], object], seconds: float) -> float:
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 20:
        start = time.perf_counter()
        call(len(times))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; 1 when a budget is missed."""
    parser = argparse.ArgumentParser(prog="agentspec.bench.overhead", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=0.5, help="per quantity (default 0.5)")
    arguments = parser.parse_args(argv)
    lines = measure(arguments.seconds)
    missed = any(line.passed is False for line in lines)
    if arguments.json:
        report = [{**asdict(line), "passed": line.passed} for line in lines]
        print(json.dumps({"vocab": VOCAB, "context": CONTEXT, "indexed": INDEXED, "lines": report}))
        return int(missed)
    print(f"vocabulary {VOCAB:,}, context {CONTEXT:,}, {INDEXED:,} indexed tokens; medians")
    for line in lines:
        sign = ">=" if line.at_least else "<="
        budget = f"{sign} {line.budget:g}" if line.budget is not None else ""
        verdict = {True: "pass", False: "MISSED", None: ""}[line.passed]
        print(f"{line.what:<48}{line.measured:>10.3f} {line.unit:<12}{budget:>8}  {verdict}")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
