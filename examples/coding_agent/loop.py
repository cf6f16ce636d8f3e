"""The agent's loop: every turn is generated twice on the same history, plain and accelerated."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from agentspec.audit.record import Pass, Recorder
from agentspec.audit.record import Turn as Recorded
from agentspec.audit.replay import ReplayReport, replay
from agentspec.audit.verify import Comparison, compare
from agentspec.backends.base import Backend, Output, Rows
from agentspec.errors import ContextOverflowError
from agentspec.wire import Completion

from examples.coding_agent.mistakes import Mistake
from examples.coding_agent.tools import Outcome, Toolbox
from examples.coding_agent.workspace import TestRun

SYSTEM = (
    "You are a coding agent. You repair a small Python repository with tools, one call at a time."
)
TASK = """\
Two lines of this repository are wrong, in two files, so tests fail. Work in these steps:
1. run_tests to see what fails and in which line.
2. read_file the file of the failing line.
3. write_file it with that line corrected and all else unchanged.
4. run_tests again. While a test fails, go back to step 2.
5. When all tests pass, finish."""

MAX_TOKENS = 700
MAX_REPEATS = 3


class Talker(Protocol):
    """What the loop needs of an `agentspec.Engine`."""

    @property
    def tokens(self) -> list[int]: ...

    def complete(self, messages: object, **options: Any) -> Completion: ...

    def borrowed(self) -> AbstractContextManager[Backend]: ...


class Screen(Protocol):
    """Who is told what happens while it happens."""

    def turn(self, number: int) -> None: ...

    def passed(self, what: str, rows: int) -> None:
        """A pass of a turn is over; `what` is reading, plain or accelerated."""
        ...

    def done(self, turn: Turn) -> None: ...

    def replaying(self, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer: its tokens and what they took; `seconds` are without reading the prompt."""

    tokens: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    passes: int
    seconds: float
    prefill_seconds: float
    sources: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Draft tokens of each proposer: drafted, accepted."""
    notes: tuple[str, ...] = ()

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return len(self.tokens) / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the accelerated answer's call was executed, the plain answer is for comparison."""

    number: int
    name: str
    arguments: str
    outcome: Outcome
    plain: Generation
    fast: Generation
    plain_first: bool

    @property
    def same(self) -> bool:
        return self.plain.tokens == self.fast.tokens

    @property
    def ratio(self) -> float:
        """Accelerated over plain speed."""
        return self.fast.speed / self.plain.speed if self.plain.speed else 0.0

    @property
    def first(self) -> Generation:
        """The answer that had to read what was new in the prompt."""
        return self.plain if self.plain_first else self.fast


@dataclass(slots=True)
class TaskRun:
    """One task from red to wherever it got; `stopped` says why the loop ended."""

    mistakes: tuple[Mistake, ...]
    before: TestRun
    turns: list[Turn] = field(default_factory=list)
    after: TestRun | None = None
    stopped: str = ""
    replayed: ReplayReport | None = None
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def solved(self) -> bool:
        return self.after is not None and self.after.green

    @property
    def defects(self) -> int:
        unsound = len(self.replayed.defects or ()) if self.replayed else 0
        return unsound + sum(c.verdict == "defect" for c in self.comparisons)


class Watch(Recorder):
    """A recorder that knows what recording costs, so that it can be taken off the times."""

    def __init__(self, backend: Backend, passed: Callable[[str, int], None]) -> None:
        self._inner = _Timed(backend)
        super().__init__(cast(Backend, self._inner))
        self.recording = 0.0
        self._passed = passed

    def forward(self, rows: Sequence[Rows]) -> Output:
        begun, inside = time.perf_counter(), self._inner.seconds
        output = super().forward(rows)
        (part,) = rows
        self._passed("" if len(output) else "reading", len(part.tokens))
        self.recording += time.perf_counter() - begun - (self._inner.seconds - inside)
        return output


class _Timed:
    """A backend whose passes are timed and counted."""

    def __init__(self, backend: Backend, passed: Callable[[int], None] | None = None) -> None:
        self.backend = backend
        self.seconds = 0.0
        self.passes = 0
        self._passed = passed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def forward(self, rows: Sequence[Rows]) -> Output:
        begun = time.perf_counter()
        try:
            return self.backend.forward(rows)
        finally:
            self.seconds += time.perf_counter() - begun
            self.passes += 1
            if self._passed is not None:
                self._passed(self.passes)


def work(
    engine: Talker,
    recorder: Recorder,
    toolbox: Toolbox,
    screen: Screen,
    *,
    turns: int,
    speculation: object = True,
) -> TaskRun:
    """Let the agent work until it finishes, repeats itself or has had its turns.

    The engine should hold nothing of an earlier task. Raises what the engine raises, except that
    a full context ends the task.
    """
    run = TaskRun(toolbox.workspace.mistakes, toolbox.workspace.run_tests())
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": TASK},
    ]
    while not run.stopped:
        number = len(run.turns) + 1
        screen.turn(number)
        plain_first = number % 2 == 1
        both: dict[bool, tuple[Completion, Generation]] = {}
        try:
            for fast in (False, True) if plain_first else (True, False):
                screen.passed("accelerated" if fast else "plain", 0)
                both[fast] = _generate(
                    engine, recorder, messages, toolbox, speculation if fast else False
                )
        except ContextOverflowError as error:
            run.stopped = str(error)
            break
        answer, fast_generation = both[True]
        name, arguments, outcome = _execute(answer, toolbox, messages)
        turn = Turn(number, name, arguments, outcome, both[False][1], fast_generation, plain_first)
        run.turns.append(turn)
        screen.done(turn)
        if toolbox.finished:
            run.stopped = "finished"
        elif toolbox.repeats >= MAX_REPEATS:
            run.stopped = f"the same call {MAX_REPEATS + 1} times in a row"
        elif number == turns:
            run.stopped = f"not finished after {turns} turns"
    run.after = toolbox.workspace.run_tests()
    return run


def _generate(
    engine: Talker,
    recorder: Recorder,
    messages: Sequence[dict[str, Any]],
    toolbox: Toolbox,
    speculation: object,
) -> tuple[Completion, Generation]:
    before = getattr(recorder, "recording", 0.0)
    answer = engine.complete(
        messages,
        tools=toolbox.schemas,
        tool_choice="required",
        parallel_tool_calls=False,
        context=lookup_texts(toolbox),
        max_tokens=MAX_TOKENS,
        temperature=0.0,
        speculation=speculation,
    )
    recording = getattr(recorder, "recording", 0.0) - before
    stats = answer.speculation
    assert stats is not None
    tokens = engine.tokens
    recorder.end_turn(tokens, prompt_tokens=stats.prompt_tokens)
    seconds = stats.draft_seconds + stats.verify_seconds + stats.other_seconds - recording
    return answer, Generation(
        tokens=tuple(tokens[stats.prompt_tokens :]),
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        passes=stats.passes,
        seconds=max(seconds, 0.0),
        prefill_seconds=stats.prefill_seconds,
        sources={name: (s.drafted, s.accepted) for name, s in stats.sources.items()},
        notes=tuple(stats.notes),
    )


def lookup_texts(toolbox: Toolbox) -> list[str]:
    """The repository's files as an answer repeats them: inside a JSON string."""
    workspace = toolbox.workspace
    texts = (workspace.read(path) for path in workspace.files())
    return [json.dumps(text, ensure_ascii=False)[1:-1] for text in texts]


def _execute(
    answer: Completion, toolbox: Toolbox, messages: list[dict[str, Any]]
) -> tuple[str, str, Outcome]:
    """Run the answer's call and put answer and result at the end of the history."""
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not answer.tool_calls:
        why = "that was not a complete tool call; call one tool"
        messages.append({"role": "user", "content": f"error: {why}"})
        return "(no call)", "{}", Outcome(f"error: {why}", why, ok=False)
    call = answer.tool_calls[0]
    outcome = toolbox.call(call.function.name, call.function.arguments)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": outcome.text})
    return call.function.name, call.function.arguments, outcome


def explain(
    engine: Talker, recorder: Recorder, run: TaskRun, screen: Screen, *, always: bool = False
) -> None:
    """Name every difference between plain and accelerated text a tie or a defect.

    What was recorded is replayed in a fresh context, in order, since successive answers share the
    cache: up to the last turn that differs, or all of it with `always`. Without differences
    there is nothing to explain and, unless `always`, nothing is replayed. The engine's sequence
    is empty afterwards.
    """
    recorded = list(recorder.turns)
    recorder.turns.clear()
    pairs = [_in_order(turn, recorded) for turn in run.turns]
    differing = [turn.number for turn in run.turns if not turn.same]
    until = len(recorded) if always else 2 * max(differing, default=0)
    unsound: set[int] = set()
    with engine.borrowed():
        if until:
            total = sum(_passes(turn) for turn in recorded[:until])
            fresh = _Timed(recorder.backend, lambda done: screen.replaying(done, total))
            run.replayed = replay(recorded[:until], cast(Backend, fresh))
            unsound = {defect.turn for defect in run.replayed.defects or ()}
    for turn, (plain, fast) in zip(run.turns, pairs, strict=True):
        sound = not unsound & {2 * turn.number - 2, 2 * turn.number - 1}
        run.comparisons.append(compare(plain, fast, sound=sound))


def _in_order(turn: Turn, recorded: Sequence[Recorded]) -> tuple[Recorded, Recorded]:
    one, two = recorded[2 * turn.number - 2 : 2 * turn.number]
    return (one, two) if turn.plain_first else (two, one)


def _passes(turn: Recorded) -> int:
    """Passes of a replay: each recorded one, and one more before those with logits."""
    return sum(1 + bool(e.digests) for e in turn.events if isinstance(e, Pass))
