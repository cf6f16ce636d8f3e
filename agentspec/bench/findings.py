"""What is made of measured runs: one object that the text, the page and the picture are drawn from.

Beside the keys of the plain report, `bench_data` gives::

    "warm": {…}          a report like the main one, where both states were measured
    "comparison": [      every way, the engine's own first, and why others were not measured
        {"name", "what", "own", "state", "ratio", "interval", "speed", "plain_speed",
         "acceptance_length", "acceptance_rate", "outside_ms", "below", "ratios", "notes"},
        {"name", "what", "own", "not_measured": WHY}]
    "details": {
        "of": "cold", "sources": {NAME: SHARE}, "classes": {NAME: SHARE},
        "lengths": [{"k", "passes", "committed", "cost"}],
        "cost": {"curve": {ROWS: COST}, "measured": {ROWS: [COST, PASSES]}, "row_ms"},
        "turns": [{"session", "pair", "why"}]}

`ratios` are those of the sessions in their order, and a turn's `session` is its place among them:
two may have one name. A SHARE is that of a replay's report. `committed` is tokens per pass, `cost`
what the engine had learned that it costs, null without a curve; `row_ms` the median pass of one
row, `below` how many sessions were slower than plain decoding, `outside_ms` the median time of a
pass outside the target. `turns` name the runs whose records make the timelines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from agentspec.api import Engine
from agentspec.bench.live import BenchReport, SessionResult
from agentspec.bench.peer_ways import PeerPlan
from agentspec.bench.watch import Counts, Pass
from agentspec.replay.report import shares_of

_OWN = {
    "cold": "this engine; its proposers know the prompt",
    "warm": "this engine; its proposers also know the prompt's earlier answer",
}


def bench_data(
    engine: Engine,
    reports: Mapping[str, BenchReport],
    stamped: Mapping[str, Any],
    *,
    details: bool,
    peers: PeerPlan | None = None,
) -> dict[str, Any]:
    """All figures of `compare`, whose first report is the main one, as the module says."""
    own = [name for name in _OWN if name in reports]
    main = next(iter(reports))
    teller = engine if details else None
    data = {**stamped, **reports[main].as_dict(teller)}
    if main != "warm" and "warm" in reports:
        data["warm"] = reports["warm"].as_dict(teller)
    if peers is not None or len(own) > 1:
        data["comparison"] = [_way(name, _OWN[name], True, reports[name]) for name in own]
    if peers is not None:
        for name, rule in peers.rules.items():
            report = reports.get(name)
            why = peers.unmeasured.get(name) if report is None else report.failed
            if report is None or why is not None:
                data["comparison"].append(
                    {"name": name, "what": rule, "own": False, "not_measured": why}
                )
            else:
                data["comparison"].append(_way(name, rule, False, report))
    if details:
        data["details"] = _details(engine, reports, main)
    return data


def _way(name: str, what: str, own: bool, report: BenchReport) -> dict[str, Any]:
    runs = [[run.speed for run in result.fast] for result in report.results]
    plain = [[run.speed for run in result.plain] for result in report.results]
    outside = report.outside
    return {
        "name": f"agentspec, {name}" if own else name,
        "what": what,
        "own": own,
        "state": report.state,
        "ratio": report.ratio,
        "interval": list(report.interval()) if report.results else None,
        "speed": median(map(median, runs)),
        "plain_speed": median(map(median, plain)),
        "acceptance_length": report.acceptance_length,
        "acceptance_rate": report.acceptance_rate,
        "outside_ms": None if outside is None else round(outside * 1e3, 3),
        "below": sum(result.ratio < 1.0 for result in report.results),
        "ratios": [result.ratio for result in report.results],
        "notes": report.notes,
    }


def _details(engine: Engine, reports: Mapping[str, BenchReport], main: str) -> dict[str, Any]:
    report = reports[main]
    passes = [one for r in report.results for run in r.fast for one in run.record]
    counts = Counts()
    counts.add(passes)
    cost = engine.cost
    curve = cost.points() if cost is not None else {}
    every = list(_every_pass(reports.values()))
    one_row = [one.verifying for one in every if one.rows == 1]
    row = median(one_row) if one_row else 0.0
    return {
        "of": main,
        "sources": shares_of(counts.sources),
        "classes": shares_of(counts.classes),
        "lengths": [
            {**length, "cost": None if cost is None else round(cost(length["k"] + 1), 4)}
            for length in _lengths(passes)
        ],
        "cost": {
            "curve": {str(rows): round(passes_of, 4) for rows, passes_of in curve.items()},
            "measured": _measured(every, row),
            "row_ms": round(row * 1e3, 3),
        },
        "turns": _turns(report.results),
    }


def _every_pass(reports: Iterable[BenchReport]) -> Iterable[Pass]:
    """The passes of all runs; the plain ones are the same in every report."""
    plain: set[int] = set()
    for report in reports:
        for result in report.results:
            runs = list(result.fast)
            if id(result.plain) not in plain:
                plain.add(id(result.plain))
                runs += result.plain
            for run in runs:
                yield from run.record


def _lengths(passes: Sequence[Pass]) -> list[dict[str, Any]]:
    by: dict[int, list[int]] = {}
    for one in passes:
        by.setdefault(len(one.verdict.draft), []).append(len(one.verdict.tokens))
    return [{"k": k, "passes": len(by[k]), "committed": round(fmean(by[k]), 4)} for k in sorted(by)]


def _measured(passes: Iterable[Pass], row: float) -> dict[str, list[float]]:
    by: dict[int, list[float]] = {}
    for one in passes:
        by.setdefault(one.rows, []).append(one.verifying)
    if not row:
        return {}
    return {str(k): [round(median(by[k]) / row, 4), len(by[k])] for k in sorted(by)}


def _turns(results: Sequence[SessionResult]) -> list[dict[str, Any]]:
    """The session that drafts helped most and the slowest one, by the pair nearest its median."""
    recorded = [i for i, r in enumerate(results) if r.ratios and all(run.record for run in r.fast)]
    if not recorded:
        return []
    best = max(recorded, key=lambda i: _acceptance_length(results[i]))
    worst = min(recorded, key=lambda i: results[i].ratio)
    chosen = [(best, "the most tokens per pass of these prompts: not a typical one")]
    if worst != best:
        chosen.append((worst, "the lowest ratio of these prompts"))
    return [
        {
            "session": i,
            "pair": _typical_pair(results[i]),
            "why": why if len(recorded) > 1 else "the only prompt",
        }
        for i, why in chosen
    ]


def _typical_pair(result: SessionResult) -> int:
    ratios = result.ratios
    return min(range(len(ratios)), key=lambda pair: abs(ratios[pair] - result.ratio))


def _acceptance_length(result: SessionResult) -> float:
    return sum(run.tokens for run in result.fast) / sum(run.passes for run in result.fast)
