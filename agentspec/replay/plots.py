"""Pictures of a replay's report: speed by curve and source, acceptance by syntax class.

The other reports' pictures are made of the same pieces.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.errors import MissingExtraError
from agentspec.replay.report import states_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ALL = "all sources"
_WIDTH = 8.3
_DPI = 150
"""1245 pixels wide: a README shows 830, so a screen of high density gets all of them."""

# Okabe and Ito's colours, without the yellow that white swallows; the marks differ too
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "<")
GREY = "#666666"
_LARGEST, _SMALLEST = 260.0, 12.0


def need_matplotlib() -> None:
    """Raises MissingExtraError where no picture can be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("matplotlib", "bench") from error


def save_plots(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw a report of `replay_report` as PNG files in `folder`, made if need be.

    `speed-STATE.png` and, where syntax was looked at, `acceptance-STATE.png` for each state. Of
    several variants the first is drawn, and the classes are those of the first curve. Returns the
    files. Raises MissingExtraError, OSError.
    """
    need_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    saved: list[Path] = []
    for state, curves in _by_state(report).items():
        saved.append(save_figure(speed_figure(curves, state), folder / f"speed-{state}.png"))
        name, first = next(iter(curves.items()))
        if any(share["judged"] for share in first["classes"].values()):
            figure = acceptance_figure(first["classes"], f"{state}, curve {name}")
            saved.append(save_figure(figure, folder / f"acceptance-{state}.png"))
    return saved


def speed_figure(curves: Mapping[str, Mapping[str, Any]], state: str) -> Figure:
    """A row for each source, the fastest first, with a mark and its interval for each curve."""
    first = next(iter(curves.values()))
    sources = sorted(first["sources"], key=lambda name: -first["sources"][name]["speed"])
    names = [_ALL, *sources]
    step = 0.8 / len(curves)
    figure, axes = _figure(1.35 + len(names) * max(0.28, 0.09 * len(curves) + 0.05))
    for row in range(0, len(names), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#f2f2f2", linewidth=0, zorder=0)
    axes.axvline(1.0, color=GREY, linewidth=1.2, linestyle="--", zorder=1)
    axes.annotate(
        "plain", (1.0, 0.0), (3, 3), xycoords=("data", "axes fraction"),
        textcoords="offset points", color=GREY, fontsize=8,
    )  # fmt: skip
    for number, (curve, data) in enumerate(curves.items()):
        figures = [data["total"], *(data["sources"][name] for name in sources)]
        at = [row + (number + 0.5) * step - 0.4 for row in range(len(names))]
        colour, mark = COLOURS[number % len(COLOURS)], _MARKS[number % len(_MARKS)]
        for y, part in zip(at, figures, strict=True):
            if part["speed_interval"]:
                axes.plot(part["speed_interval"], (y, y), color=colour, linewidth=1.3, alpha=0.6)
        axes.plot(
            [part["speed"] for part in figures], at, mark, color=colour, markersize=4.5,
            label=as_it_is(f"{curve}: {data['total']['speed']:.2f}"),
        )  # fmt: skip
    axes.set_ylim(len(names) - 0.1, -0.5)
    name_rows(axes, names)
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.set_xlabel("speed: tokens per cost of a plain pass, with 95 % interval over sessions")
    axes.set_xlim(left=min(0.8, axes.get_xlim()[0]))
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    title_axes(axes, f"Speed by curve and source ({state})", rows=-(-len(curves) // 3))
    axes.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=min(3, len(curves)), frameon=False,
        fontsize=8.5, handletextpad=0.2, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip
    return figure


def acceptance_figure(classes: Mapping[str, Mapping[str, Any]], of: str) -> Figure:
    """A row for each syntax class, most accepted first; the mark's area is how many were judged."""
    figure, axes = _figure(1.1 + 0.3 * sum(bool(share["judged"]) for share in classes.values()))
    draw_acceptance(axes, classes)
    title_axes(axes, f"Acceptance by syntax class ({of})")
    return figure


def draw_acceptance(axes: Axes, classes: Mapping[str, Mapping[str, Any]]) -> None:
    """The rows of `acceptance_figure` on axes that are there; something must have been judged."""
    judged = {name: share for name, share in classes.items() if share["judged"]}
    names = sorted(judged, key=lambda name: -judged[name]["accepted_of_judged"])
    rates = [judged[name]["accepted_of_judged"] for name in names]
    counts = [judged[name]["judged"] for name in names]
    overall = sum(judged[name]["accepted"] for name in names) / sum(counts)
    rows = range(len(names))
    axes.hlines(rows, 0, rates, color="#dddddd", linewidth=1.2, zorder=1)
    axes.axvline(overall, color=GREY, linewidth=1.2, linestyle="--", zorder=1)
    axes.scatter(
        rates, rows, color=COLOURS[0], zorder=2, linewidths=0,
        s=[max(_SMALLEST, _LARGEST * count / max(counts)) for count in counts],
    )  # fmt: skip
    for row, rate, count in zip(rows, rates, counts, strict=True):
        axes.annotate(
            f"{100 * rate:.0f} % of {count:,}", (1.02, row), xycoords=("axes fraction", "data"),
            va="center", fontsize=8.5, color="#333333", annotation_clip=False,
        )  # fmt: skip
    axes.annotate(
        f"all: {100 * overall:.0f} %", (overall, 0.0), (3, 3), xycoords=("data", "axes fraction"),
        textcoords="offset points", color=GREY, fontsize=8,
    )  # fmt: skip
    axes.set_ylim(len(names) - 0.2, -0.6)
    name_rows(axes, names)
    axes.set_xlim(0.0, 1.03)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("accepted of the draft tokens that were judged; the area is their number")


def _by_state(report: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """State -> curve -> figures of the first variant."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, data in _curves(report):
        for state, part in states_of(data).items():
            found.setdefault(state, {})[name] = part
    return found


def _curves(report: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, data in (report.get("curves") or {report["curve"]: report}).items():
        variants = data.get("variants")
        yield name, next(iter(variants.values())) if variants else data


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = empty_figure(_WIDTH, height)
    return figure, bare_axes(figure.add_subplot())


def empty_figure(width: float, height: float) -> Figure:
    """A figure of so many inches that belongs to nobody else."""
    # no pyplot: it keeps figures and a backend for the whole process
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engine = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Figure(figsize=(width, height), layout=engine, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def bare_axes(axes: Axes) -> Axes:
    """The axes without their frame, but for the line below."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_axisbelow(True)
    return axes


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows 0, 1, … at the left edge."""
    axes.set_yticks(range(len(names)), [as_it_is(name) for name in names], fontsize=9)
    axes.tick_params(axis="y", length=0)


def title_axes(axes: Axes, text: str, *, rows: int = 0) -> None:
    """A title; `rows` of a legend stand between it and the picture."""
    axes.set_title(as_it_is(text), loc="left", fontsize=11, fontweight="bold", pad=8 + 15 * rows)


def as_it_is(text: str) -> str:
    """A name as it is: between two dollar signs matplotlib reads mathematics."""
    shown = "".join(
        c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    return shown.replace("$", r"\$")


def save_figure(figure: Figure, path: Path) -> Path:
    """Write it as PNG. Raises OSError."""
    with warnings.catch_warnings():
        # a box stands for it, which is all that can be done about a name
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # without its version in the file, the same report gives the same bytes for longer
        figure.savefig(path, dpi=_DPI, metadata={"Software": None})
    return path
