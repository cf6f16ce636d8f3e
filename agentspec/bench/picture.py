"""The main panels of a bench report as one PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.bench.charts import SOURCES, Scale, colours, ratios, warm_of
from agentspec.replay.plots import (
    COLOURS,
    GREY,
    as_it_is,
    bare_axes,
    draw_acceptance,
    empty_figure,
    name_rows,
    need_matplotlib,
    save_figure,
    title_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 13.0
_GAIN, _LOSS = COLOURS[0], COLOURS[1]
_OWN, _REJECTED, _FAINT = "#a9adb5", "#e3e0da", "#dddddd"
_SOURCES = (COLOURS[0], COLOURS[2], COLOURS[3], COLOURS[5], COLOURS[6], "#8c6d46", "#6d727b")


def save_picture(data: Mapping[str, Any], path: Path) -> Path:
    """Draw what `findings.bench_data` gave with details. Raises MissingExtraError, OSError."""
    need_matplotlib()
    return save_figure(bench_figure(data), path)


def bench_figure(data: Mapping[str, Any]) -> Figure:
    """Ratios by prompt, acceptance, draft lengths with their cost, and one turn pass by pass."""
    sessions, details = data["sessions"], data["details"]
    tall = max(4.2, 0.36 * max(len(sessions), len(details["classes"])) + 1.4)
    figure = empty_figure(_WIDTH, tall + 5.0)
    grid = figure.add_gridspec(2, 2, height_ratios=(tall, 5.0), width_ratios=(1.0, 1.0))
    figure.suptitle(as_it_is(_headline(data)), fontsize=12.5, fontweight="bold", ha="left", x=0.012)
    _draw_turns(bare_axes(figure.add_subplot(grid[0, 0])), data)
    _draw_shares(bare_axes(figure.add_subplot(grid[0, 1])), details)
    lengths = grid[1, 0].subgridspec(2, 1, height_ratios=(2.6, 1.0), hspace=0.0)
    upper = bare_axes(figure.add_subplot(lengths[0]))
    _draw_cost(upper, bare_axes(figure.add_subplot(lengths[1], sharex=upper)), details)
    if details["turns"]:
        turn = grid[1, 1].subgridspec(2, 1, height_ratios=(1.5, 1.0), hspace=0.0)
        upper = bare_axes(figure.add_subplot(turn[0]))
        _draw_turn(upper, bare_axes(figure.add_subplot(turn[1], sharex=upper)), data)
    return figure


def _headline(data: Mapping[str, Any]) -> str:
    parts = [f"{data['state']} {data['ratio']:.2f}×{_interval(data)}"]
    if "warm" in data:
        parts.append(f"warm {data['warm']['ratio']:.2f}×{_interval(data['warm'])}")
    where, pairs = data["machine"], len(data["sessions"][0]["fast"])
    return (
        f"{data['model']} ({data['target']}) on {where['cpu']}, {where['cores']} cores\n"
        f"accelerated ÷ plain, median of {len(data['sessions'])} prompts, pairs of runs each: "
        f"{pairs}; {', '.join(parts)}"
    )


def _interval(report: Mapping[str, Any]) -> str:
    if len(report["sessions"]) < 2:
        return ""
    low, high = report["interval"]
    return f" (95 %: {low:.2f}–{high:.2f})"


def _draw_turns(axes: Axes, data: Mapping[str, Any]) -> None:
    sessions = data["sessions"]
    warm = warm_of(data)
    axes.axvline(1.0, color=GREY, linewidth=1.2, linestyle="--", zorder=1)
    for row, (session, other) in enumerate(zip(sessions, warm, strict=True)):
        colour = _LOSS if session["ratio"] < 1.0 else _GAIN
        own = ratios(session)
        axes.plot(own, [row - 0.08] * len(own), "|", color=GREY, markersize=8, alpha=0.7)
        axes.plot(session["ratio"], row - 0.08, "o", color=colour, markersize=7, zorder=3)
        told = f"{session['ratio']:.2f}"
        if other is not None:
            colour = _LOSS if other["ratio"] < 1.0 else _GAIN
            axes.plot(other["ratio"], row + 0.2, "o", color=colour, markersize=5.5, zorder=2,
                      markerfacecolor="white")  # fmt: skip
            told += f" · {other['ratio']:.2f}"
        axes.annotate(
            told, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=8.5,
            color="#333333", annotation_clip=False,
        )  # fmt: skip
    parts = [session for session in (*sessions, *warm) if session is not None]
    every = [ratio for part in parts for ratio in (*ratios(part), part["ratio"])]
    scale = Scale(every)
    axes.set_xscale("log")
    axes.set_xlim(scale.low, scale.high)
    axes.set_xticks(scale.ticks, [f"{ratio:g}×" for ratio in scale.ticks])
    axes.minorticks_off()
    axes.grid(axis="x", color=_FAINT, linewidth=0.6)
    axes.set_ylim(len(sessions) - 0.3, -0.7)
    name_rows(axes, [session["id"] for session in sessions])
    what = f"filled {data['state']}" + (", hollow warm" if "warm" in data else "")
    axes.set_xlabel(f"accelerated ÷ plain; {what}; a tick for each pair; orange: slower than plain")
    title_axes(axes, "Every prompt")


def _draw_shares(axes: Axes, details: Mapping[str, Any]) -> None:
    """By syntax class, or by source where no class is known."""
    for shares, what in ((details["classes"], "syntax class"), (details["sources"], "source")):
        if any(share["judged"] for share in shares.values()):
            draw_acceptance(axes, shares)
            title_axes(axes, f"Acceptance by {what} ({details['of']})")
            return
    axes.set_axis_off()
    axes.annotate("nothing was drafted", (0.5, 0.5), xycoords="axes fraction", color=GREY)


def _draw_cost(upper: Axes, lower: Axes, details: Mapping[str, Any]) -> None:
    lengths, cost = details["lengths"], details["cost"]
    most = max((8, *(length["k"] for length in lengths)))
    ks = [length["k"] for length in lengths]
    passes = [length["passes"] for length in lengths]
    learned = sorted((int(rows) - 1, value) for rows, value in cost["curve"].items())
    seen = [(int(rows) - 1, value[0]) for rows, value in cost["measured"].items()]
    seen = [point for point in seen if point[0] <= most]
    committed = [length["committed"] for length in lengths]
    largest = max(passes, default=1)
    if learned:
        upper.plot(*zip(*learned, strict=True), color=_LOSS, linewidth=1.8, label="learned cost")
    if seen:
        upper.plot(*zip(*seen, strict=True), "o", color=_LOSS, markersize=4,
                   markerfacecolor="white", label="measured cost, medians")  # fmt: skip
    upper.scatter(ks, committed, s=[16 + 130 * n / largest for n in passes], color=_GAIN,
                  alpha=0.8, linewidths=0, label="tokens per pass", zorder=3)  # fmt: skip
    inside = [value for k, value in learned if k <= most] + [value for _, value in seen]
    upper.set_ylim(0, 1.1 * max(2.0, *inside, *committed))
    upper.set_xlim(-0.7, most + 0.7)
    upper.set_ylabel("tokens, or passes of one row")
    upper.grid(axis="y", color=_FAINT, linewidth=0.6)
    upper.tick_params(axis="x", labelbottom=False)
    upper.legend(frameon=False, fontsize=8.5, loc="upper left")
    title_axes(upper, f"Draft lengths chosen ({details['of']}), and what they cost")
    lower.bar(ks, passes, width=0.8, color=_GAIN)
    lower.set_yscale("log")
    lower.set_ylim(0.7, 10 ** (log10(largest) + 0.25))
    decades = [10**power for power in range(int(log10(largest)) + 1)]
    lower.set_yticks(decades, [f"{n:,}" for n in decades])
    lower.minorticks_off()
    lower.set_ylabel("passes")
    lower.set_xlabel("draft tokens of a pass; it pays where the disc lies above the line")


def _draw_turn(upper: Axes, lower: Axes, data: Mapping[str, Any]) -> None:
    turn = data["details"]["turns"][0]
    session = data["sessions"][turn["session"]]
    plain, fast = (session[way][turn["pair"]]["record"] for way in ("plain", "fast"))
    for record, colour, name in ((plain, _OWN, "plain"), (fast, _GAIN, "accelerated")):
        upper.step([0.0, *(end / 1e3 for end in record["end"])],
                   [0, *accumulate(record["committed"])], where="post", color=colour,
                   linewidth=1.8, label=name)  # fmt: skip
    upper.legend(frameon=False, fontsize=8.5, loc="upper left")
    upper.set_ylabel("tokens written")
    upper.grid(axis="y", color=_FAINT, linewidth=0.6)
    upper.tick_params(axis="x", labelbottom=False)
    ratio = ratios(session)[turn["pair"]]
    title_axes(upper, f"A turn, pass by pass: {session['id']}, {ratio:.2f}×")
    total = max(sum(plain["committed"]), sum(fast["committed"]))
    upper.set_ylim(0, 1.06 * total)
    _draw_passes(lower, fast, colours(data))
    lower.set_ylabel("rows")
    lower.set_xlabel(f"seconds; {turn['why']}")


def _draw_passes(axes: Axes, record: Mapping[str, Any], colour: Mapping[str, str]) -> None:
    """A bar for each pass: its own token, what was accepted by source, what was rejected."""
    starts = [start / 1e3 for start in record["start"]]
    pairs = zip(record["start"], record["end"], strict=True)
    widths = [0.86 * (end - start) / 1e3 for start, end in pairs]
    own = [a - b for a, b in zip(record["committed"], record["accepted"], strict=True)]
    _bars(axes, starts, own, widths, [0] * len(own), _OWN, "target")
    at = list(own)
    found = record.get("sources") or [[]] * len(own)
    names = dict.fromkeys(name for one in found for name, _, accepted in one if accepted)
    for name in names:
        counts = [sum(n for who, _, n in one if who == name) for one in found]
        number = int(colour.get(name, f"s{SOURCES}")[1:])
        _bars(axes, starts, counts, widths, at, _SOURCES[number - 1], name)
        at = [a + b for a, b in zip(at, counts, strict=True)]
    left = [rows - a for rows, a in zip(record["rows"], at, strict=True)]
    _bars(axes, starts, left, widths, at, _REJECTED, "rejected")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper left", bbox_to_anchor=(0.0, 1.22),
                handlelength=1.0, columnspacing=1.0)  # fmt: skip


def _bars(
    axes: Axes,
    starts: Sequence[float],
    counts: Sequence[float],
    widths: Sequence[float],
    bottoms: Sequence[float],
    colour: str,
    name: str,
) -> None:
    if any(counts):
        axes.bar(starts, counts, widths, bottoms, align="edge", color=colour, linewidth=0,
                 label=as_it_is(name))  # fmt: skip
