"""The drawings of a bench page, each from the figures of `findings.bench_data`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any

from agentspec.bench.markup import (
    box,
    curve,
    dot,
    drawing,
    escaped,
    letters,
    line,
    nice_steps,
    tag,
)

SOURCES = 7
"""Proposers that have a colour of their own."""

_RATIOS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 50.0, 100.0)
_STRIP = 30.0
_EDGE = 0.01


def speed(run: Mapping[str, Any]) -> float:
    """Tokens per second of one run."""
    return run["tokens"] / run["seconds"] if run["seconds"] else 0.0


def speeds(runs: Sequence[Mapping[str, Any]]) -> float:
    """The median of the runs' tokens per second."""
    return float(median(map(speed, runs)))


def ratios(session: Mapping[str, Any]) -> list[float]:
    """Accelerated ÷ plain, pair by pair."""
    pairs = zip(session["plain"], session["fast"], strict=True)
    return [speed(b) / speed(a) for a, b in pairs if speed(a)]


def warm_of(data: Mapping[str, Any]) -> Sequence[Mapping[str, Any] | None]:
    """The warm counterpart of each session, None where warm was not measured beside cold."""
    if "warm" not in data:
        return [None] * len(data["sessions"])
    found: Sequence[Mapping[str, Any]] = data["warm"]["sessions"]
    return found


def noise(data: Mapping[str, Any]) -> float | None:
    """By how much plain runs of one prompt differ, fastest ÷ slowest - 1, median over prompts.

    None where each prompt was run once.
    """
    runs = [[speed(run) for run in session["plain"]] for session in data["sessions"]]
    spread = [max(each) / min(each) - 1.0 for each in runs if len(each) > 1 and min(each) > 0]
    return float(median(spread)) if spread else None


def against(ratio: float) -> str:
    """The class of a ratio: slower than plain is told by its colour."""
    return "loss" if ratio < 1.0 else "gain"


def colours(data: Mapping[str, Any]) -> dict[str, str]:
    """Proposer -> class of its colour, the one that drafted most first; one colour for the rest."""
    drafted: dict[str, int] = {}
    for part in (data, data.get("warm", {})):
        for session in part.get("sessions", ()):
            for name, count in session["sources"].items():
                drafted[name] = drafted.get(name, 0) + count["drafted"]
    names = sorted(drafted, key=lambda name: (-drafted[name], name))
    return {name: f"s{min(i, SOURCES)}" for i, name in enumerate(names, 1)}


class Scale:
    """Ratios on a logarithmic axis, 1 always on it."""

    def __init__(self, values: Sequence[float]) -> None:
        known = [value for value in values if value > 0]
        self.low, self.high = min((0.8, *known)) * 0.95, max((1.6, *known)) * 1.05
        self._low, self._high = math.log(self.low), math.log(self.high)

    def __call__(self, ratio: float) -> float:
        if ratio <= 0:
            return _EDGE
        share = (math.log(ratio) - self._low) / (self._high - self._low)
        return min(1.0, max(0.0, share))

    @property
    def ticks(self) -> list[float]:
        """Round ratios on the axis; 1 is one of them, the others far enough apart to be read."""
        inside = [r for r in _RATIOS if self._low <= math.log(r) <= self._high]
        kept = [1.0]
        for ratio in sorted(inside, key=lambda r: abs(math.log(r))):
            if all(abs(self(ratio) - self(other)) > 0.1 for other in kept):
                kept.append(ratio)
        return sorted(kept)

    def grid(self, height: float) -> Iterator[str]:
        """Lines for the ticks, that of plain decoding told apart."""
        for ratio in self.ticks:
            x = self(ratio)
            yield line(x, 0, x, height, "even" if ratio == 1.0 else "grid")

    def axis(self) -> str:
        """The numbers below the strips."""
        marks = [
            letters(self(ratio), 12, "plain" if ratio == 1.0 else f"{ratio:g}×", "tick middle")
            for ratio in self.ticks
        ]
        return drawing(marks, 18, "the scale of the ratios, logarithmic", "strip")


def turn_strips(data: Mapping[str, Any]) -> str:
    """A row for each prompt: every pair as a tick, the medians as marks; cold and warm."""
    warm = warm_of(data)
    parts = [session for session in (*data["sessions"], *warm) if session is not None]
    scale = Scale([ratio for session in parts for ratio in ratios(session)])
    rows = []
    for session, other in zip(data["sessions"], warm, strict=True):
        inner = list(scale.grid(_STRIP))
        for ratio in ratios(session):
            inner.append(line(scale(ratio), 6, scale(ratio), 15, "pair"))
        told = [f"{data['state']} {session['ratio']:.2f}"]
        cells = [_ratio_cell(session["ratio"])]
        if other is not None:
            for ratio in ratios(other):
                inner.append(line(scale(ratio), 17, scale(ratio), 25, "pair other"))
            told.append(f"warm {other['ratio']:.2f}")
            cells.append(_ratio_cell(other["ratio"], "other"))
            inner.append(dot(scale(other["ratio"]), 21, 4, f"warm {against(other['ratio'])}"))
        inner.append(dot(scale(session["ratio"]), 10.5, 5, f"cold {against(session['ratio'])}"))
        label = f"{session['id']}: accelerated ÷ plain, {', '.join(told)}"
        rows.append(_row(session["id"], session["kind"], drawing(inner, _STRIP, label, "strip"),
                         "".join(cells)))  # fmt: skip
    heads = "".join(
        tag("span", escaped(state), cls="number head")
        for state in (data["state"], *(["warm"] if "warm" in data else []))
    )
    return _rows([_row("", "", "", heads), *rows, _row("", "", scale.axis(), "")], "turns")


def way_strips(ways: Sequence[Mapping[str, Any]]) -> str:
    """A row for each way that was measured: its median ratio and the interval of it."""
    measured = [way for way in ways if "not_measured" not in way]
    every = [value for way in measured for value in (way["ratio"], *way["interval"])]
    every += [ratio for way in measured for ratio in way["ratios"]]
    scale = Scale(every)
    rows = []
    for way in measured:
        low, high = way["interval"]
        y = _STRIP / 2
        inner = [*scale.grid(_STRIP), line(scale(low), y, scale(high), y, "interval")]
        for ratio in way["ratios"]:
            inner.append(dot(scale(ratio), y, 2, "prompt"))
        mark = f"{'cold' if way['own'] else 'peer'} {against(way['ratio'])}"
        inner.append(dot(scale(way["ratio"]), y, 5, mark))
        label = f"{way['name']}: median ratio {way['ratio']:.2f}, {low:.2f} to {high:.2f}"
        rows.append(_row(way["name"], way["what"], drawing(inner, _STRIP, label, "strip"),
                         _ratio_cell(way["ratio"])))  # fmt: skip
    return _rows([*rows, _row("", "", scale.axis(), "")], "ways")


def share_bars(
    shares: Mapping[str, Mapping[str, Any]], colour: Callable[[str], str] = lambda name: "s1"
) -> str:
    """A row for each name: accepted of the draft tokens that were judged."""
    rows = []
    for name, share in shares.items():
        if not share["judged"]:
            continue
        rate = share["accepted_of_judged"]
        inner = [box(0, 8, 1, 12, "track"), box(0, 8, rate, 12, f"bar {colour(name)}")]
        told = f"{100 * rate:.0f} % of {share['judged']:,} judged"
        cell = tag("b", f"{100 * rate:.0f} %") + tag("small", f"of {share['judged']:,}")
        rows.append(_row(name, f"{share['drafted']:,} drafted",
                         drawing(inner, 28, f"{name}: {told}", "strip"),
                         tag("span", cell, cls="number wide")))  # fmt: skip
    return _rows(rows, "shares")


def cost_chart(details: Mapping[str, Any]) -> str:
    """What a pass of K draft tokens costs and brings, and how often each K was chosen."""
    lengths, cost = details["lengths"], details["cost"]
    most = max((8, *(int(length["k"]) for length in lengths)))
    curve_points = sorted((int(rows) - 1.0, float(c)) for rows, c in cost["curve"].items())
    learned = _cut(curve_points, float(most))
    seen = [(int(rows) - 1, value, n) for rows, (value, n) in cost["measured"].items()]
    seen = [point for point in seen if point[0] <= most]
    top = (
        max(
            (
                2.0,
                *(value for _, value in learned),
                *(float(value) for _, value, _ in seen),
                *(float(length["committed"]) for length in lengths),
            )
        )
        * 1.06
    )
    height, bars, gap = 240.0, 84.0, 34.0
    step = 1.0 / (most + 1)

    def x(k: float) -> float:
        return (k + 0.5) * step

    def y(value: float) -> float:
        return height * (1.0 - value / top)

    inner = []
    for value in nice_steps(top):
        inner += [line(0, y(value), 1, y(value), "grid"),
                  letters(0, y(value) + 4, f"{value:g}", "tick end", -8)]  # fmt: skip
    if learned:
        inner.append(curve([(x(k), y(value)) for k, value in learned], height, "cost"))
    for k, value, n in seen:
        told = f"{k + 1} rows: {value:.2f} passes of one row, median of {n} passes"
        inner.append(dot(x(k), y(value), 2.6, "measured", told))
    largest = max((length["passes"] for length in lengths), default=1)
    for length in lengths:
        k, tokens = length["k"], length["committed"]
        told = f"K = {k}: {tokens:.2f} tokens per pass, over {length['passes']} passes"
        radius = 3.0 + 6.0 * math.sqrt(length["passes"] / largest)
        inner.append(dot(x(k), y(tokens), radius, "tokens", told))
    base = height + gap + bars
    tall = bars / (math.log10(largest) + 0.15)
    for power in range(int(math.log10(largest)) + 1):
        at = base - tall * power
        inner += [line(0, at, 1, at, "grid"), letters(0, at + 4, f"{10**power:,}", "tick end", -8)]
    for length in lengths:
        size = max(3.0, tall * math.log10(length["passes"]))
        told = f"K = {length['k']}: {length['passes']} passes"
        inner.append(
            box(x(length["k"]) - 0.4 * step, base - size, 0.8 * step, size, "bar s1", told)
        )
    every = max(1, math.ceil(most / 9))
    for k in range(0, most + 1, every):
        inner.append(letters(x(k), base + 16, str(k), "tick middle"))
    inner += [
        letters(0, -10, "tokens, or passes of one row", "tick"),
        letters(0, height + gap - 10, "passes (logarithmic)", "tick"),
        letters(1, base + 34, "draft tokens K of a pass", "tick end"),
    ]
    return drawing(inner, base + 40, "cost and gain by draft length, and how often each was chosen")


def _cut(points: Sequence[tuple[float, float]], most: float) -> list[tuple[float, float]]:
    """The line up to `most`, with a point there."""
    kept = [point for point in points if point[0] <= most]
    beyond = [point for point in points if point[0] > most]
    if kept and beyond:
        (x0, y0), (x1, y1) = kept[-1], beyond[0]
        kept.append((most, y0 + (y1 - y0) * (most - x0) / (x1 - x0)))
    return kept


def timeline(plain: Mapping[str, Any], fast: Mapping[str, Any], colour: Mapping[str, str]) -> str:
    """One turn over time: when tokens came both ways, and each accelerated pass row by row."""
    end = float(max(plain["end"][-1], fast["end"][-1])) * 1.01
    total: int = max(sum(plain["committed"]), sum(fast["committed"]))
    rise, lane, gap = 150.0, 96.0, 34.0
    most = max(fast["rows"])
    tall = lane / most
    base = rise + gap + lane

    def x(ms: float) -> float:
        return ms / end

    def y(tokens: float) -> float:
        return rise * (1.0 - tokens / (total * 1.04))

    inner = []
    for tokens in nice_steps(total, 4, least=1):
        inner += [line(0, y(tokens), 1, y(tokens), "grid"),
                  letters(0, y(tokens) + 4, f"{tokens:g}", "tick end", -8)]  # fmt: skip
    for rows in nice_steps(most, 3, least=1):
        at = base - tall * rows
        inner += [line(0, at, 1, at, "grid"), letters(0, at + 4, f"{rows:g}", "tick end", -8)]
    inner.append(curve(_steps(plain, x, y), rise, "came plain"))
    inner.append(curve(_steps(fast, x, y), rise, "came fast"))
    if fast["start"][0] > 0:
        inner.append(box(0, base - tall, x(fast["start"][0]), tall, "lead",
                         f"{fast['start'][0]:.1f} ms before the first pass", 0.001))  # fmt: skip
    for i in range(len(fast["end"])):
        inner += _bar(fast, i, x, base, tall, colour)
    for i, (start, stop) in enumerate(zip(plain["start"], plain["end"], strict=True)):
        inner.append(box(x(start), base + 10, 0.86 * (x(stop) - x(start)), 8,
                         f"own{' alt' if i % 2 else ''}"))  # fmt: skip
    seconds = nice_steps(end / 1e3, 6)
    for value in seconds:
        inner.append(letters(x(value * 1e3), base + 36, f"{value:g} s", "tick middle"))
    inner += [
        letters(0, -10, "tokens written", "tick"),
        letters(0, rise + gap - 12, "rows of each accelerated pass; plain passes below", "tick"),
    ]
    label = (
        f"{sum(fast['committed'])} tokens in {fast['end'][-1] / 1e3:.2f} s and {len(fast['end'])} "
        f"passes, plain {sum(plain['committed'])} in {plain['end'][-1] / 1e3:.2f} s"
    )
    return drawing(inner, base + 42, label)


def _steps(
    record: Mapping[str, Any], x: Callable[[float], float], y: Callable[[float], float]
) -> list[tuple[float, float]]:
    """The tokens that are there at each time: they come when their pass ends."""
    points, before = [(0.0, y(0))], 0
    for end, count in zip(record["end"], accumulate(record["committed"]), strict=True):
        points += [(x(end), y(before)), (x(end), y(count))]
        before = count
    return points


def _bar(
    record: Mapping[str, Any],
    i: int,
    x: Callable[[float], float],
    base: float,
    tall: float,
    colour: Mapping[str, str],
) -> Iterator[str]:
    """One pass: its own token at the bottom, what was accepted by source, what was rejected."""
    start, stop, rows = record["start"][i], record["end"][i], record["rows"][i]
    sources = record["sources"][i] if "sources" in record else []
    wrote = "".join(text for text, _ in record["text"][i]) if "text" in record else ""
    told = f"pass {i + 1}, from {start / 1e3:.3f} s, {stop - start:.1f} ms"
    left, width = x(start), 0.86 * (x(stop) - x(start))
    if sources:
        names = ", ".join(f"{name} {accepted} of {drafted}" for name, drafted, accepted in sources)
        told += (
            f": {rows} rows, {record['accepted'][i]} of {record['drafted'][i]} accepted ({names})"
        )
    told += f"\nwrote: {wrote}" if wrote else ""
    parts = [("own", record["committed"][i] - record["accepted"][i])]
    parts += [(f"bar {colour.get(name, 's7')}", accepted) for name, _, accepted in sources]
    parts.append(("rejected", rows - sum(count for _, count in parts)))
    at = base
    inner = []
    for cls, count in parts:
        if count > 0:
            at -= tall * count
            title = told if count == rows else ""  # the only one
            inner.append(box(left, at, width, tall * count, cls, title, least=0.0008))
    yield inner[0] if len(inner) == 1 else tag("g", [tag("title", escaped(told)), *inner])


def written(record: Mapping[str, Any], colour: Mapping[str, str]) -> str:
    """What was written, each piece in the colour of who proposed it."""
    pieces = (piece for one in record.get("text", ()) for piece in one)
    return tag(
        "pre",
        (
            tag("span", escaped(text), cls=f"t {colour.get(source, 's7')}", title=source)
            if source is not None
            else escaped(text)
            for text, source in pieces
        ),
        cls="answer",
    )


def _ratio_cell(ratio: float, more: str = "") -> str:
    return tag("span", f"{ratio:.2f}", cls=f"number {against(ratio)} {more}".strip())


def _row(name: str, small: str, picture: str, cells: str) -> str:
    head = tag("span", escaped(name)) + (tag("small", escaped(small)) if small else "")
    return tag("li", [tag("div", head, cls="name"), tag("div", picture, cls="picture"),
                      tag("div", cells, cls="cells")])  # fmt: skip


def _rows(rows: Sequence[str], cls: str) -> str:
    return tag("ul", rows, cls=f"rows {cls}")
