"""What a replay found, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.engine.stats import SourceCount
from agentspec.replay.bootstrap import ratio_interval
from agentspec.replay.run import Result
from agentspec.replay.tally import Tally


def replay_report(
    results: Sequence[Result],
    *,
    curves: Sequence[str],
    variants: Sequence[str],
    states: Sequence[str],
) -> dict[str, Any]:
    """`total`, `sources`, `proposers` and `classes` of the first state; the other in its name.

    With several variants the report has one such object for each under `variants`, with several
    curves one for each under `curves`.
    """
    cells: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        cells.setdefault((result.curve, result.variant, result.state), []).append(result)

    def of_variant(curve: str, variant: str) -> dict[str, Any]:
        parts = {state: _state(cells[curve, variant, state]) for state in states}
        return {"state": states[0], **parts.pop(states[0]), **parts}

    def of_curve(curve: str) -> dict[str, Any]:
        if len(variants) == 1:
            return {"curve": curve, "variant": variants[0], **of_variant(curve, variants[0])}
        return {"curve": curve, "variants": {v: of_variant(curve, v) for v in variants}}

    if len(curves) == 1:
        return of_curve(curves[0])
    return {"curves": {curve: of_curve(curve) for curve in curves}}


def _state(results: Sequence[Result]) -> dict[str, Any]:
    sources: dict[str, list[Tally]] = {}
    for result in results:
        sources.setdefault(result.source, []).append(result.tally)
    whole = Tally.total(result.tally for result in results)
    return {
        "total": _figures([result.tally for result in results]),
        "sources": {name: _figures(tallies) for name, tallies in sources.items()},
        "proposers": shares_of(whole.proposers),
        "classes": shares_of(whole.classes),
        "notes": sorted(set(whole.notes)),
    }


def _figures(tallies: Sequence[Tally]) -> dict[str, Any]:
    whole = Tally.total(tallies)
    tokens = [t.tokens for t in tallies]
    figures: dict[str, Any] = {
        "tokens": whole.tokens,
        "speed": whole.speed,
        "acceptance_length": whole.acceptance_length,
        "acceptance_rate": whole.acceptance_rate,
        "drafted_per_pass": whole.drafted_per_pass,
        "passes": whole.passes,
        "drafted": whole.drafted,
        "accepted": whole.accepted,
        "cost": whole.cost,
        "draft_cost": whole.draft_cost,
        "sessions": len(tallies),
        "turns": whole.turns,
    }
    for name, tops, bottoms in (
        ("speed", tokens, [t.cost for t in tallies]),
        ("acceptance_length", tokens, [t.passes for t in tallies]),
        ("acceptance_rate", [t.accepted for t in tallies], [t.drafted for t in tallies]),
    ):
        interval = ratio_interval(tops, bottoms)
        figures[f"{name}_interval"] = list(interval) if interval else None
    return figures


def shares_of(shares: Mapping[str, SourceCount]) -> dict[str, Any]:
    """Counts and rates by name, the most drafted first."""
    return {
        name: {
            "drafted": share.drafted,
            "judged": share.judged,
            "accepted": share.accepted,
            "acceptance_rate": share.accepted / share.drafted if share.drafted else 0.0,
            "accepted_of_judged": share.accepted / share.judged if share.judged else 0.0,
        }
        for name, share in sorted(shares.items(), key=lambda item: -item[1].drafted)
    }


def replay_text(report: Mapping[str, Any]) -> str:
    """The report as tables."""
    per_curve = report.get("curves") or {report["curve"]: report}
    lines: list[str] = []
    for name, curve in per_curve.items():
        variants = curve.get("variants") or {curve["variant"]: curve}
        lines += [f"curve {name}", *_variant_lines(variants), ""]
        for variant, data in variants.items():
            if len(variants) == 1 or variant == next(iter(variants)):
                lines += [*_source_lines(data), "", *_share_lines(data), ""]
    notes = sorted({n for data in _all(report) for n in data["notes"]})
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines).rstrip("\n")


def _all(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "total" in report:
        return list(states_of(report).values())
    inner = report.get("curves") or report.get("variants") or {}
    return [found for part in inner.values() for found in _all(part)]


def states_of(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """State name -> its figures, of one curve and variant."""
    found = {data["state"]: data}
    if data["state"] != "warm" and "warm" in data:
        found["warm"] = data["warm"]
    return found


def _variant_lines(variants: Mapping[str, Any]) -> list[str]:
    head = ("variant", "state", "speed", "95 %", "length", "rate", "drafted/pass", "tokens")
    rows = [head]
    for variant, data in variants.items():
        for state, part in states_of(data).items():
            total = part["total"]
            rows.append(
                (
                    variant,
                    state,
                    f"{total['speed']:.3f}",
                    _interval(total["speed_interval"]),
                    f"{total['acceptance_length']:.2f}",
                    f"{total['acceptance_rate']:.3f}",
                    f"{total['drafted_per_pass']:.2f}",
                    f"{total['tokens']}",
                )
            )
    return _table(rows)


def _source_lines(data: Mapping[str, Any]) -> list[str]:
    states = states_of(data)
    rows = [("source", *(f"{state} speed" for state in states), "95 %", "length", "rate", "tokens")]
    first = next(iter(states.values()))
    for name, figures in first["sources"].items():
        speeds = [f"{part['sources'][name]['speed']:.3f}" for part in states.values()]
        rows.append(
            (
                name,
                *speeds,
                _interval(figures["speed_interval"]),
                f"{figures['acceptance_length']:.2f}",
                f"{figures['acceptance_rate']:.3f}",
                f"{figures['tokens']}",
            )
        )
    return _table(rows)


def _share_lines(data: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for state, part in states_of(data).items():
        for label, kind in (("proposer", "proposers"), ("syntax class", "classes")):
            if not part[kind]:
                continue
            rows = [(f"{label} ({state})", "drafted", "accepted", "rate", "of judged")]
            for name, share in part[kind].items():
                rows.append(
                    (
                        name,
                        f"{share['drafted']}",
                        f"{share['accepted']}",
                        f"{share['acceptance_rate']:.3f}",
                        f"{share['accepted_of_judged']:.3f}",
                    )
                )
            lines += [*([""] if lines else []), *_table(rows)]
    return lines


def _interval(interval: Sequence[float] | None) -> str:
    return f"{interval[0]:.2f}–{interval[1]:.2f}" if interval else "–"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in rows
    ]
