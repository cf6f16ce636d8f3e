"""How fast a turn was, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size

from agentspec.assistant.compare import Comparison, writing_seconds
from agentspec.assistant.events import Answered
from agentspec.engine.stats import plain_estimate
from agentspec.wire import SpeculationStats

_BURST = 0.005
_MOST_PER_SECOND = 10_000
LEGEND = (
    "pace: tokens gained lately in the time of a plain pass. A plain pass must be beaten by the "
    "tokens that a draft promises, less the time of its rows at that pace; else nothing is drafted"
)


@dataclass(slots=True)
class Speed:
    """What the answers of a turn say together.

    `rows_per_second` is how many passes of one row are made in a second, as measured so far; None
    where nobody knows.
    """

    n_ctx: int
    rows_per_second: float | None = None
    answers: list[Answered] = field(default_factory=list)

    def add(self, answered: Answered) -> None:
        self.answers.append(answered)

    @property
    def stats(self) -> list[SpeculationStats]:
        """Those of the answers that have any."""
        return [a.speculation for a in self.answers if a.speculation is not None]

    @property
    def tokens(self) -> int:
        return sum(answer.usage.completion_tokens for answer in self.answers)

    @property
    def per_second(self) -> float:
        """Tokens per second of writing; of the whole answer where a server says no more.

        Answers that came in one burst do not count: how long they were written is not known. 0
        where nothing is.
        """
        stats = self.stats
        if len(stats) < len(self.answers):
            tokens, seconds = self.tokens, sum(answer.seconds for answer in self.answers)
            return 0.0 if at_once(tokens, seconds) else tokens / seconds
        timed = [s for s in stats if not at_once(s.generated_tokens, writing_seconds(s))]
        seconds = sum(map(writing_seconds, timed))
        return sum(s.generated_tokens for s in timed) / seconds if timed else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens gained per target pass; 0 where nobody says."""
        passes = sum(s.passes for s in self.stats)
        return sum(s.generated_tokens for s in self.stats) / passes if passes else 0.0

    @property
    def drafted(self) -> int:
        return sum(s.drafted for s in self.stats)

    @property
    def plain_per_second(self) -> float | None:
        """Tokens per second of plain decoding, as of `plain_estimate`; None where unknown."""
        if not self.rows_per_second or not self.acceptance_length or not self.per_second:
            return None
        return plain_estimate(self.rows_per_second, self.per_second, self.acceptance_length)

    @property
    def bounded(self) -> bool:
        """Whether the estimate is the most that the passes allow, not what a row's time says."""
        return self.plain_per_second != self.rows_per_second

    @property
    def estimate(self) -> float | None:
        """How many times as fast as plain decoding, from the cost curve; None where unknown."""
        plain = self.plain_per_second
        return self.per_second / plain if plain and self.drafted else None

    @property
    def reused(self) -> float | None:
        """The share of the prompts that was not read again."""
        prompt = sum(answer.usage.prompt_tokens for answer in self.answers)
        return self.cached_tokens / prompt if prompt else None

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompts that were not read again."""
        return sum(
            details.cached_tokens
            for answer in self.answers
            if (details := answer.usage.prompt_tokens_details) is not None
        )

    @property
    def context(self) -> int:
        """Tokens that the context holds now."""
        if not self.answers:
            return 0
        usage = self.answers[-1].usage
        return usage.prompt_tokens + usage.completion_tokens


def at_once(tokens: int, seconds: float) -> bool:
    """Whether an answer came in one burst: no model writes in so little time."""
    return seconds < _BURST or tokens > _MOST_PER_SECOND * seconds


def status(speed: Speed, compared: Comparison | None = None) -> str:
    """The status line; `compared` puts a measurement in the place of the estimate."""
    return " · ".join(text for _, text in _parts(speed, compared, short=False))


def status_within(
    width: int, speed: Speed, compared: Comparison | None = None, *, name: str = ""
) -> str:
    """The status line behind a name, in so many columns.

    Where there is no room, the words are shorter; then the name goes, then what matters least, and
    nothing is cut in half.
    """
    whole = " · ".join(filter(None, [name, status(speed, compared)]))
    parts = _parts(speed, compared, short=True)
    if cell_len(whole) <= width or not parts:
        return cut(whole, width)
    if name:
        parts = [(_NAME, name), *parts]
    while len(parts) > 1 and cell_len(" · ".join(text for _, text in parts)) > width:
        parts.remove(min(parts))
    return cut(" · ".join(text for _, text in parts), width)


def cut(line: str, width: int) -> str:
    """A line in so many columns, with a mark where something is missing."""
    if cell_len(line) <= width:
        return line
    return set_cell_size(line, max(0, width - 1)).rstrip() + "…" * (width > 0)


_NAME, _REUSED, _LENGTH, _CONTEXT, _TIMES, _PER_SECOND = range(6)


def _parts(speed: Speed, compared: Comparison | None, *, short: bool) -> list[tuple[int, str]]:
    """What a status line says, in its order, each with how much it matters."""
    if not speed.answers:
        return []
    parts: list[tuple[int, str]] = []
    if speed.per_second:
        parts.append((_PER_SECOND, f"{speed.per_second:.1f} tok/s"))
    if speed.acceptance_length:
        length = f"{speed.acceptance_length:.2f}"
        parts.append((_LENGTH, f"{length} per pass" if short else f"{length} tokens per pass"))
    if compared is not None:
        measured = "" if short else ", measured"
        parts.append((_TIMES, f"{compared.ratio:.2f}× plain{measured}"))
    elif speed.estimate is not None:
        guessed = "" if short else " (estimate)"
        parts.append((_TIMES, f"{_times(speed)}× plain{guessed}"))
    if speed.reused is not None:
        share = _percent(speed.reused)
        parts.append((_REUSED, f"{share} reused" if short else f"{share} of the prompt reused"))
    of = "/" if short else " of "
    parts.append((_CONTEXT, f"context {speed.context:,}{of}{speed.n_ctx:,}"))
    return parts


def details(speed: Speed) -> list[str]:
    """What `/speed` says of the last turn, a line each."""
    if not speed.answers:
        return ["nothing was written yet"]
    lines = [status(speed)]
    stats = speed.stats
    seconds = sum(answer.seconds for answer in speed.answers)
    reading = sum(s.prefill_seconds for s in stats)
    lines.append(
        f"{len(speed.answers)} answer{'s' * (len(speed.answers) != 1)}, {speed.tokens:,} tokens in "
        f"{seconds:.1f} s" + (f", {reading:.1f} s of it reading the prompt" if stats else "")
    )
    if speed.plain_per_second and speed.drafted:
        how = (
            f"at least {speed.plain_per_second:.1f} tok/s: a pass gained "
            f"{speed.acceptance_length:.2f} tokens, and a plain pass is no slower"
            if speed.bounded
            else f"≈{speed.plain_per_second:.1f} tok/s, from the measured time of a pass of one row"
        )
        lines.append(f"plain decoding: {how}; /speed compare measures it")
    counts: dict[str, list[int]] = {}
    for name, source in (item for s in stats for item in s.sources.items()):
        count = counts.setdefault(source_kind(name), [0, 0])
        count[0] += source.accepted
        count[1] += source.drafted
    for kind, (accepted, drafted) in counts.items():
        share = _percent(accepted / drafted) if drafted else "none"
        lines.append(f"{source_label(kind)}: {accepted:,} of {drafted:,} accepted ({share})")
    lines += dict.fromkeys(n for s in stats for n in s.notes)
    return lines


def compared_lines(found: Comparison, *, greedy: bool) -> list[str]:
    """What `/speed compare` says."""
    lines = [
        f"accelerated {found.per_second:.1f} tok/s, plain {found.plain_per_second:.1f} tok/s: "
        f"{found.ratio:.2f}× (measured, without reading the prompt)"
    ]
    different = sum(not answer.same for answer in found.answers)
    if not different:
        lines.append("the same text, token by token" if greedy else "the same text")
    elif greedy:
        lines.append(
            f"{different} of {len(found.answers)} answers differ: passes of one and of several "
            "rows round differently, and two tokens were nearly as likely; `agentspec verify` "
            "tells such ties from defects, exact mode has none"
        )
    else:
        lines.append(
            f"{different} of {len(found.answers)} answers differ, as they do at this temperature"
        )
    return lines


def recent(explained: Sequence[str], most: int = 12) -> list[str]:
    """The last decisions, numbered by their pass; the same ones in a row are one line."""
    rows: list[tuple[int, int, str]] = []
    for n, line in enumerate(explained, 1):
        if rows and _decision(rows[-1][2]) == _decision(line):
            rows[-1] = rows[-1][0], n, line
        else:
            rows.append((n, n, line))
    return [
        f"pass {first}: {line}" if first == last else f"passes {first} to {last}: {line}"
        for first, last, line in rows[-most:]
    ]


def source_kind(name: str) -> str:
    """What kind of proposer a source's name says: `session:ID` is an earlier session."""
    return name.partition(":")[0]


def source_label(kind: str) -> str:
    """A kind of source in words."""
    return {"session": "earlier sessions", "file": "files", "tool": "tool results"}.get(
        kind, kind.replace("_", " ")
    )


def _decision(line: str) -> str:
    # without a draft only the pace in the brackets moves from pass to pass
    return line.partition(" (")[0] if line.startswith("no draft") else line


def _times(speed: Speed) -> str:
    """The estimate; what is shown is not above the tokens per pass that are shown."""
    assert speed.estimate is not None
    if speed.bounded or round(speed.estimate, 1) > speed.acceptance_length:
        return f"{'≤' if speed.bounded else '≈'}{speed.estimate:.2f}"
    return f"≈{speed.estimate:.1f}"


def _percent(share: float) -> str:
    text = f"{100 * share:.1f}".removesuffix(".0")
    # 99.96 % is not all of it
    return f"{'99.9' if text == '100' and share < 1 else text} %"
