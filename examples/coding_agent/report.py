"""The account at the end: every figure, first as data, then as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from examples.coding_agent.loop import Generation, TaskRun, Turn


def figures(runs: Sequence[TaskRun]) -> dict[str, Any]:
    """All that the tasks took and gave; seconds of generation, rates in tokens per second."""
    turns = [turn for run in runs for turn in run.turns]
    plain = side(turn.plain for turn in turns)
    fast = side(turn.fast for turn in turns)
    comparisons = [c for run in runs for c in run.comparisons]
    replayed = [run.replayed for run in runs if run.replayed is not None]
    return {
        "tasks": len(runs),
        "solved": sum(run.solved for run in runs),
        "turns": len(turns),
        "plain": plain,
        "accelerated": fast,
        "ratio_median": median([t.ratio for t in turns]) if turns else 0.0,
        "ratio_total": fast["speed"] / plain["speed"] if plain["speed"] else 0.0,
        "prefill_seconds": sum(t.first.prefill_seconds for t in turns),
        "prompt_tokens": sum(t.first.prompt_tokens for t in turns),
        "cached_tokens": sum(t.first.cached_tokens for t in turns),
        "equal_turns": sum(t.same for t in turns),
        "ties": sum(c.verdict == "tie" for c in comparisons),
        "defects": sum(run.defects for run in runs),
        "replayed_rows": sum(r.rows for r in replayed),
        "replayed_passes": sum(r.passes for r in replayed),
        "notes": sorted({note for t in turns for g in (t.plain, t.fast) for note in g.notes}),
    }


def side(generations: Iterable[Generation]) -> dict[str, Any]:
    """Totals of plain or of accelerated answers."""
    all_of_them = list(generations)
    tokens = sum(len(g.tokens) for g in all_of_them)
    passes = sum(g.passes for g in all_of_them)
    seconds = sum(g.seconds for g in all_of_them)
    sources: dict[str, dict[str, int]] = {}
    for generation in all_of_them:
        for name, (drafted, accepted) in generation.sources.items():
            total = sources.setdefault(name, {"drafted": 0, "accepted": 0})
            total["drafted"] += drafted
            total["accepted"] += accepted
    for total in sources.values():
        # how much longer this source alone made the average pass
        total["passes"] = passes
    return {
        "tokens": tokens,
        "passes": passes,
        "seconds": seconds,
        "speed": tokens / seconds if seconds else 0.0,
        "acceptance_length": tokens / passes if passes else 0.0,
        "sources": sources,
    }


def as_data(stamp: Mapping[str, Any], runs: Sequence[TaskRun]) -> dict[str, Any]:
    """Everything for a file: figures, tasks and turns, without the tokens themselves."""
    return {**stamp, **figures(runs), "runs": [_run_data(run) for run in runs]}


def _run_data(run: TaskRun) -> dict[str, Any]:
    return {
        "mistakes": [asdict(mistake) for mistake in run.mistakes],
        "failing_before": run.before.failed,
        "failing_after": run.after.failed if run.after else None,
        "solved": run.solved,
        "stopped": run.stopped,
        "turns": [_turn_data(turn) for turn in run.turns],
        "comparisons": [asdict(c) for c in run.comparisons],
        "replayed": asdict(run.replayed) if run.replayed else None,
    }


def _turn_data(turn: Turn) -> dict[str, Any]:
    return {
        "number": turn.number,
        "call": turn.name,
        "arguments": turn.arguments,
        "result": turn.outcome.line,
        "ok": turn.outcome.ok,
        "plain_first": turn.plain_first,
        "same_text": turn.same,
        "ratio": turn.ratio,
        "plain": _generation_data(turn.plain),
        "accelerated": _generation_data(turn.fast),
    }


def _generation_data(generation: Generation) -> dict[str, Any]:
    data = asdict(generation)
    data["tokens"] = len(generation.tokens)
    data["speed"] = generation.speed
    data["sources"] = {
        name: {"drafted": drafted, "accepted": accepted}
        for name, (drafted, accepted) in generation.sources.items()
    }
    return data


def account(stamp: Mapping[str, Any], runs: Sequence[TaskRun]) -> list[str]:
    """The lines at the end of the demo."""
    f = figures(runs)
    plain, fast = f["plain"], f["accelerated"]
    lines = [
        *_outcomes(runs, f),
        "",
        *_table(
            ("", "tokens", "passes", "tokens/pass", "seconds", "tok/s"),
            *(
                (
                    name,
                    str(s["tokens"]),
                    str(s["passes"]),
                    f"{s['acceptance_length']:.2f}",
                    f"{s['seconds']:.1f}",
                    f"{s['speed']:.1f}",
                )
                for name, s in (("plain", plain), ("accelerated", fast))
            ),
        ),
        f"speed-up: {f['ratio_total']:.2f}× in total, {f['ratio_median']:.2f}× in the median turn "
        "(generation, without reading the prompt)",
        *_sources(fast),
        f"reading prompts took {f['prefill_seconds']:.1f} s, once for both; "
        f"{f['cached_tokens']} of {f['prompt_tokens']} prompt tokens "
        f"({_percent(f['cached_tokens'], f['prompt_tokens'])}) were still in the cache",
        "",
        *_texts(runs, f),
    ]
    lines += [f"note: {note}" for note in f["notes"]]
    return [*lines, "", where(stamp)]


def _outcomes(runs: Sequence[TaskRun], f: Mapping[str, Any]) -> list[str]:
    lines = [
        f"task success: {f['solved']} of {f['tasks']} "
        "(tasks chosen to be within reach of a small model)"
    ]
    for i, run in enumerate(runs, 1):
        head = f"task {i}: " if len(runs) > 1 else "the task: "
        after = run.after.report.splitlines()[0] if run.after else "-"
        before = run.before.report.splitlines()[0]
        verdict = "solved" if run.solved else "not solved"
        lines.append(
            f"{head}{verdict} in {len(run.turns)} turns ({run.stopped}); before: {before}; "
            f"after: {after}"
        )
    return lines


def _sources(fast: Mapping[str, Any]) -> list[str]:
    if not fast["sources"]:
        return ["nothing was drafted"]
    return [
        f"{name}: {s['accepted']} of {s['drafted']} draft tokens accepted "
        f"({_percent(s['accepted'], s['drafted'])}), "
        f"{s['accepted'] / s['passes']:.2f} per target pass"
        for name, s in sorted(fast["sources"].items())
    ]


def _texts(runs: Sequence[TaskRun], f: Mapping[str, Any]) -> list[str]:
    if f["equal_turns"] == f["turns"]:
        lines = [f"texts: plain and accelerated are equal in all {f['turns']} turns"]
    else:
        lines = [f"texts: equal in {f['equal_turns']} of {f['turns']} turns"]
    for i, run in enumerate(runs, 1):
        for turn, c in zip(run.turns, run.comparisons, strict=False):
            if c.verdict == "equal":
                continue
            place = f"task {i}, turn {turn.number}" if len(runs) > 1 else f"turn {turn.number}"
            at = "" if c.at is None else f", from token {c.at + 1} on"
            gap = "" if c.gap is None else f", logit gap {c.gap:.4f}"
            lines.append(f"  {place}{at}: {c.verdict}{gap}")
    if f["replayed_passes"]:
        lines.append(
            f"replay in a fresh context: {f['replayed_passes']} passes, {f['replayed_rows']} rows "
            f"compared bit for bit, {f['defects']} defects, {f['ties']} ties"
        )
        if f["ties"]:
            lines.append(
                "a tie is rounding: the logits of a row depend a little on how many rows a pass "
                "has, and two tokens were nearly level"
            )
    else:
        lines.append(
            "nothing differs, so nothing had to be replayed (--audit does it all the same)"
        )
    return lines


def where(stamp: Mapping[str, Any]) -> str:
    """Date, model and machine in one line."""
    machine = stamp["machine"]
    draft = f", draft {stamp['draft']}" if stamp.get("draft") else ""
    commit = f", commit {stamp['commit']}" if stamp.get("commit") else ""
    return (
        f"{stamp['date']}: {stamp['model']} ({stamp['target']}{draft}) on {machine['cpu']}, "
        f"{machine['cores']} cores{commit}"
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _table(*rows: Sequence[str]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
