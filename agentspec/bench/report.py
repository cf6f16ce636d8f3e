"""Reports as text, with the machine and the settings that the figures belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from statistics import median
from typing import Any

from agentspec import machine
from agentspec.api import Engine
from agentspec.audit.verify import VerifyReport
from agentspec.bench.charts import noise
from agentspec.bench.live import BenchReport
from agentspec.bench.surroundings import description, innermost


def stamp(engine: Engine, **settings: object) -> dict[str, Any]:
    """Date, machine, model and settings, as every report carries them."""
    return {
        "date": date.today().isoformat(),
        "machine": machine.describe(),
        "model": engine.model,
        "target": description(innermost(engine.target)),
        "draft": description(innermost(engine.draft)) if engine.draft is not None else None,
        "exact": engine.exact,
        "row_class": list(engine.rows.sizes),
        "settings": settings,
    }


def bench_text(report: BenchReport, data: Mapping[str, Any]) -> str:
    """The table of a bench run, and the medians below it."""
    rows = [("session", "kind", "prompt", "tokens", "plain", "accel.", "ratio", "acc.len", "text")]
    for r in report.results:
        tokens = sum(run.tokens for run in r.fast)
        passes = sum(run.passes for run in r.fast)
        rows.append(
            (
                r.id,
                r.kind,
                str(r.prompt_tokens),
                str(r.fast[-1].tokens),
                f"{_median_speed(r.plain):.1f}",
                f"{_median_speed(r.fast):.1f}",
                f"{r.ratio:.2f}",
                f"{tokens / passes:.2f}" if passes else "-",
                "equal" if r.same_text else "differs",
            )
        )
    low, high = report.interval()
    lines = [
        _head(data),
        f"{report.state}; speeds in tok/s without prefill, medians of {len(report.results[0].fast)}"
        " alternating pairs",
        "",
        *_table(rows),
        "",
        f"median ratio {report.ratio:.2f} (95 % interval {low:.2f} to {high:.2f} over sessions), "
        f"acceptance length {report.acceptance_length:.2f}, rate {report.acceptance_rate:.2f}",
    ]
    for name, count in sorted(_sources(report).items()):
        lines.append(f"source {name}: {count['accepted']} of {count['drafted']} draft tokens")
    lines.append("texts that differ are explained by: agentspec verify")
    if "details" in data and (spread := noise(data)) is not None:
        lines.append(
            f"plain runs of a prompt differ by {100 * spread:.1f} % (fastest to slowest, median)"
        )
    lines += _comparison(data.get("comparison", ()), data)
    lines += _details(data.get("details"))
    return "\n".join(lines)


def _comparison(ways: Sequence[Mapping[str, Any]], data: Mapping[str, Any]) -> list[str]:
    """The ways side by side, then each prompt's ratios, then what was not measured."""
    measured = [way for way in ways if "not_measured" not in way]
    if not measured:
        return []
    rows = [("way", "state", "tok/s", "ratio", "95 %", "below 1", "acc.len", "rate", "outside")]
    for way in measured:
        low, high = way["interval"]
        outside = way["outside_ms"]
        rows.append(
            (
                way["name"],
                way["state"],
                f"{way['speed']:.1f}",
                f"{way['ratio']:.2f}",
                f"{low:.2f}–{high:.2f}",
                f"{way['below']} of {len(way['ratios'])}",
                f"{way['acceptance_length']:.2f}",
                f"{way['acceptance_rate']:.2f}",
                "-" if outside is None else f"{outside:.2f} ms",
            )
        )
    lines = ["", "every way in the same alternating runs, against the same plain ones", ""]
    lines += _table(rows)
    heads = [f"({i})" for i in range(1, len(measured) + 1)]
    ratios = [("session", "kind", *heads)]
    for i, session in enumerate(data["sessions"]):
        cells = [f"{way['ratios'][i]:.2f}" for way in measured]
        ratios.append((session["id"], session["kind"], *cells))
    lines += ["", "ratio of each prompt; the numbers are the rows above", "", *_table(ratios), ""]
    for way in ways:
        why = way.get("not_measured")
        lines.append(f"{way['name']}: {way['what']}" + (f"; not measured: {why}" if why else ""))
        lines += [f"{way['name']}: note: {note}" for note in way.get("notes", ())]
    return lines


def _details(details: Mapping[str, Any] | None) -> list[str]:
    """Acceptance by syntax class, and what each draft length brought and cost."""
    if details is None:
        return []
    lines = []
    classes = [(name, share) for name, share in details["classes"].items() if share["judged"]]
    if classes:
        rows = [("class", "", "drafted", "judged", "accepted")]
        for name, share in classes:
            rate = f"{share['accepted']} ({100 * share['accepted_of_judged']:.0f} %)"
            rows.append((name, "", str(share["drafted"]), str(share["judged"]), rate))
        lines += ["", f"draft tokens by syntax class ({details['of']})", "", *_table(rows)]
    cost = details["cost"]
    table = [("drafted", "", "passes", "tokens/pass", "learned cost", "measured cost")]
    for length in details["lengths"]:
        k = str(length["k"] + 1)
        seen = cost["measured"].get(k)
        learned = length["cost"]
        table.append(
            (
                str(length["k"]),
                "",
                str(length["passes"]),
                f"{length['committed']:.2f}",
                "-" if learned is None else f"{learned:.2f}",
                "-" if seen is None else f"{seen[0]:.2f}",
            )
        )
    row = f", {cost['row_ms']:.1f} ms" if cost["row_ms"] else ""
    about = (
        f"draft lengths ({details['of']}); costs in passes of one row{row}; "
        "a length pays where tokens exceed cost"
    )
    return [*lines, "", about, "", *_table(table)]


def verify_text(report: VerifyReport, data: Mapping[str, Any]) -> str:
    """The comparisons of a verify run and what the replay found."""
    rows = [("answer", "tokens", "first difference", "logit gap", "verdict")]
    for i, c in enumerate(report.comparisons):
        at = "-" if c.at is None else str(c.at)
        gap = "-" if c.gap is None else f"{c.gap:.4f}"
        rows.append((str(i + 1), str(c.tokens), at, gap, c.verdict))
    replayed = report.replayed
    equal = sum(c.verdict == "equal" for c in report.comparisons)
    lines = [
        _head(data),
        *(
            [f"exact mode, rows per pass: {', '.join(map(str, report.rows))}"]
            if report.exact
            else []
        ),
        "",
        *_table(rows),
        "",
        f"{report.tokens} tokens: {equal} answers equal, {report.ties} ties, "
        f"{report.defects} defects",
        f"replay: {replayed.passes} passes, {replayed.rows} rows compared bit for bit, "
        f"{replayed.replaced} rejected rows replaced, {replayed.poisoned} added and taken back, "
        f"{len(replayed.defects or ())} rows differ",
        f"generation: plain {report.plain_seconds:.1f} s, accelerated "
        f"{report.accelerated_seconds:.1f} s (both recorded, which slows them a little)",
    ]
    return "\n".join(lines)


def _head(data: Mapping[str, Any]) -> str:
    where = data["machine"]
    draft = f", draft {data['draft']}" if data["draft"] else ""
    return (
        f"{data['date']}: {data['model']} ({data['target']}{draft}) on {where['cpu']}, "
        f"{where['cores']} cores"
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _median_speed(runs: Sequence[Any]) -> float:
    return float(median(run.speed for run in runs))


def _sources(report: BenchReport) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for result in report.results:
        for name, count in result.sources.items():
            kept = total.setdefault(name, {"drafted": 0, "accepted": 0})
            kept["drafted"] += count["drafted"]
            kept["accepted"] += count["accepted"]
    return total
