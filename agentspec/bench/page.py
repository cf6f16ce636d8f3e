"""A bench report as one HTML page that asks for nothing: no network, no script, no other file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from agentspec.bench.blocks import cell, facts_list, legend, section, table, text_list
from agentspec.bench.charts import (
    against,
    colours,
    cost_chart,
    noise,
    ratios,
    share_bars,
    speeds,
    timeline,
    turn_strips,
    warm_of,
    way_strips,
    written,
)
from agentspec.bench.markup import box, dot, escaped, line, tag
from agentspec.bench.style import STYLE

_GIB = 1 << 30
_COLD = "proposers know the prompt and nothing else"
_WARM = "proposers also have the prompt's own earlier answer, which flatters"


def bench_page(data: Mapping[str, Any]) -> str:
    """The page of what `findings.bench_data` gave with details.

    It carries a content security policy that allows its own style sheet and nothing else.
    """
    colour = colours(data)
    parts = [
        _head(data),
        _turns(data),
        _comparison(data),
        _acceptance(data, colour),
        _lengths(data),
        _timelines(data, colour),
        _setup(data),
    ]
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = f"agentspec bench: {data['model']}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(data: Mapping[str, Any]) -> str:
    where, state = data["machine"], data["state"]
    draft = f" with draft model {data['draft']}" if data["draft"] else ""
    place = f"{where['cpu']}, {_count(where['cores'], 'core')}"
    gpus = [gpu["name"] for gpu in data["surroundings"]["gpus"]]
    sessions = data["sessions"]
    pairs = len(sessions[0]["fast"])
    below = sum(session["ratio"] < 1.0 for session in sessions)
    plain, fast = (_middle(sessions, way) for way in ("plain", "fast"))
    tiles = [
        _ratio_tile(data, f"median ratio, {state}"),
        *([_ratio_tile(data["warm"], "median ratio, warm")] if "warm" in data else []),
        _tile(
            f"{below} of {len(sessions)}",
            "prompts slower than plain",
            f"{state}, each by the median of {_count(pairs, 'pair')}",
            "loss" if below else "",
        ),
        _tile(
            f"{plain:.1f} → {fast:.1f}",
            "tok/s, plain → accelerated",
            f"{state}, medians over prompts, without prefill",
        ),
        _tile(
            f"{data['acceptance_length']:.2f}",
            "tokens per target pass",
            f"{state}; {100 * data['acceptance_rate']:.0f} % of draft tokens accepted",
        ),
    ]
    return tag(
        "header",
        [
            tag("h1", f"{escaped(data['model'])}: plain against accelerated decoding"),
            tag(
                "p",
                escaped(f"{data['target']}{draft} on {', '.join([place, *gpus])}. ")
                + escaped(
                    f"{_count(len(sessions), 'prompt')}, {_count(pairs, 'alternating pair')} of "
                    f"runs each, up to {data['settings']['max_tokens']} tokens; {data['date']}."
                ),
                cls="soft",
            ),
            tag("div", tiles, cls="tiles"),
        ],
    )


def _ratio_tile(report: Mapping[str, Any], what: str) -> str:
    known = _COLD if report["state"] == "cold" else _WARM
    ratio, (low, _) = report["ratio"], report["interval"]
    # as long as the interval holds 1, nothing was won
    colour = against(ratio) if ratio < 1.0 or low > 1.0 else ""
    return _tile(f"{ratio:.2f}×", what, f"{_interval(report)}; {known}", colour)


def _interval(report: Mapping[str, Any]) -> str:
    if len(report["sessions"]) < 2:
        return "one prompt: no interval"
    low, high = report["interval"]
    return f"95 % interval {low:.2f}–{high:.2f}"


def _tile(number: str, what: str, more: str, cls: str = "") -> str:
    inner = [tag("b", escaped(number), cls=cls), tag("span", escaped(what))]
    return tag("div", [*inner, tag("small", escaped(more))], cls="tile")


def _turns(data: Mapping[str, Any]) -> str:
    warm = "warm" in data
    state = data["state"]
    heads = ["prompt", "kind", "prompt tokens", "plain tok/s", f"{state} tok/s", "ratio"]
    heads += ["tokens per pass", "text"]
    heads += ["warm tok/s", "ratio", "text"] if warm else []
    rows = []
    for session, other in zip(data["sessions"], warm_of(data), strict=True):
        cells = [
            cell(session["id"], "left"),
            cell(session["kind"], "left"),
            cell(f"{session['prompt_tokens']:,}"),
            cell(f"{speeds(session['plain']):.1f}"),
            *_fast_cells(session),
        ]
        if other is not None:
            speed, ratio, _, text = _fast_cells(other)
            cells += [speed, ratio, text]
        rows.append(cells)
    marks = [
        (dot(0.5, 7, 5, "cold gain"), f"{state}, faster than plain"),
        (dot(0.5, 7, 5, "cold loss"), f"{state}, slower"),
        *([(dot(0.5, 7, 4, "warm gain"), "warm")] if warm else []),
        (line(0.5, 1, 0.5, 13, "pair"), "one pair of runs"),
    ]
    return section(
        "Every prompt",
        "Speed of accelerated decoding over that of plain decoding. A mark is the median of a "
        "prompt's pairs.",
        turn_strips(data),
        legend(marks),
        table(heads, rows, left=2),
        tag("p", _about_texts(data), cls="soft"),
    )


def _about_texts(data: Mapping[str, Any]) -> str:
    if data["settings"].get("temperature"):
        return "Sampled without a seed: texts differ from run to run, plain ones too."
    verify = tag("code", "agentspec verify")
    return f"Texts that differ are told apart, rounding tie or defect, by {verify}."


def _fast_cells(session: Mapping[str, Any]) -> list[str]:
    runs = session["fast"]
    passes = sum(run["passes"] for run in runs)
    tokens = sum(run["tokens"] for run in runs)
    texts = {run["text"] for run in runs} == {run["text"] for run in session["plain"]}
    return [
        cell(f"{speeds(runs):.1f}"),
        cell(f"{session['ratio']:.2f}", against(session["ratio"])),
        cell(f"{tokens / passes:.2f}" if passes else "–"),
        cell("equal" if texts else "differs"),
    ]


def _comparison(data: Mapping[str, Any]) -> str:
    ways = data.get("comparison", ())
    if all(way["own"] for way in ways):
        return ""
    heads = ["way", "tok/s", "ratio", "95 % interval", "slower than plain", "tokens per pass"]
    heads += ["accepted", "outside the target, per pass"]
    rows, missing = [], []
    for way in ways:
        if "not_measured" in way:
            missing.append((way["name"], way["not_measured"]))
            continue
        low, high = way["interval"]
        outside = way["outside_ms"]
        rows.append(
            [
                cell(way["name"], "left"),
                cell(f"{way['speed']:.1f}"),
                cell(f"{way['ratio']:.2f}", against(way["ratio"])),
                cell(f"{low:.2f}–{high:.2f}"),
                cell(f"{way['below']} of {len(way['ratios'])}"),
                cell(f"{way['acceptance_length']:.2f}"),
                cell(f"{100 * way['acceptance_rate']:.0f} %"),
                cell("–" if outside is None else f"{outside:.2f} ms"),
            ]
        )
    notes = [f"{way['name']}: {note}" for way in ways for note in way.get("notes", ())]
    return section(
        "Other ways to draft",
        "The same prompts in the same alternating runs, against the same plain ones. Peers named "
        "for a rule are that rule re-implemented and run in this engine's loop, cold, on the same "
        "target and kernels: they compare ways to draft, not whole engines.",
        way_strips(ways),
        legend(
            [
                (line(0, 7, 1, 7, "interval"), "95 % interval of the median"),
                (dot(0.5, 7, 2, "prompt"), "one prompt"),
            ]
        ),
        table(heads, rows),
        tag("h3", "Not measured") + facts_list(missing) if missing else "",
        text_list(notes),
    )


def _acceptance(data: Mapping[str, Any], colour: Mapping[str, str]) -> str:
    details = data["details"]
    if not any(share["judged"] for share in details["sources"].values()):
        return section("Acceptance", f"Nothing was drafted ({details['of']}).")
    by_class = share_bars(details["classes"])
    if not any(share["judged"] for share in details["classes"].values()):
        by_class = tag("p", "Of no draft token the syntax class was known.", cls="soft")
    return section(
        "Acceptance",
        f"Share of the draft tokens that the target was asked about, {details['of']}, all runs. "
        "What stands behind a rejection is not judged.",
        tag(
            "div",
            [
                tag("div", tag("h3", "By who proposed it")
                    + share_bars(details["sources"], lambda name: colour.get(name, "s7"))),
                tag("div", tag("h3", "By syntax class") + by_class),
            ],
            cls="half",
        ),
    )  # fmt: skip


def _lengths(data: Mapping[str, Any]) -> str:
    details = data["details"]
    cost = details["cost"]
    row = f"A pass of one row took {cost['row_ms']:.1f} ms (median). " if cost["row_ms"] else ""
    marks = [
        (dot(0.5, 7, 5, "tokens"), "tokens gained per pass, its own included; larger: more passes"),
        (dot(0.5, 7, 2.6, "measured"), "median time of the passes of all runs here"),
    ]
    if cost["curve"]:
        marks.insert(1, (line(0, 7, 1, 7, "cost"), "cost curve the engine had learned at the end"))
    return section(
        "Draft lengths, and what they cost",
        "A length pays where a pass gains more tokens than it costs: where the disc lies above the "
        f"line. {row}Chosen lengths are of the "
        f"accelerated runs, {details['of']}.",
        tag("div", cost_chart(details), cls="frame"),
        legend(marks),
    )


def _timelines(data: Mapping[str, Any], colour: Mapping[str, str]) -> str:
    details = data["details"]
    parts = []
    for turn in details["turns"]:
        session = data["sessions"][turn["session"]]
        plain, fast = (session[way][turn["pair"]]["record"] for way in ("plain", "fast"))
        ratio = ratios(session)[turn["pair"]]
        used = dict.fromkeys(
            name for one in fast.get("sources", ()) for name, _, accepted in one if accepted
        )
        marks = [
            (line(0, 7, 1, 7, "came fast"), "accelerated"),
            (line(0, 7, 1, 7, "came plain"), "plain"),
            (box(0, 1, 1, 12, "own"), "the target's own token"),
            *(
                (box(0, 1, 1, 12, f"bar {colour.get(name, 's7')}"), f"accepted from {name}")
                for name in used
            ),
            (box(0, 1, 1, 12, "rejected"), "rejected or padding" if data["exact"] else "rejected"),
        ]
        parts.append(
            tag("h3", f"{escaped(session['id'])}, {ratio:.2f}×")
            + tag("p", escaped(turn["why"]) + ".", cls="soft")
            + tag("div", timeline(plain, fast, colour), cls="frame")
            + legend(marks)
            + (written(fast, colour) if "text" in fast else "")
        )
    if not parts:
        return ""
    return section(
        "A turn, pass by pass",
        f"{details['of'].capitalize()}. A bar is one target pass over the accelerated turn: as "
        "wide as it took, as tall as it has rows. Below, the answer in the colours of who proposed "
        "each token; without colour is what the target wrote itself.",
        *parts,
        cls="long",
    )


def _setup(data: Mapping[str, Any]) -> str:
    around, where = data["surroundings"], data["machine"]
    machine = [where["cpu"], _count(where["cores"], "core")]
    if around["memory"]:
        machine.append(f"{around['memory'] / _GIB:.1f} GiB of memory")
    facts: list[tuple[str, str]] = [("machine", ", ".join(map(str, machine)))]
    facts.append(("GPU", ", ".join(_gpu(gpu) for gpu in around["gpus"]) or "none"))
    facts.append(("system", around["system"]))
    libraries = {"python": where["python"], **around["libraries"]}
    facts.append(("libraries", ", ".join(f"{name} {found}" for name, found in libraries.items())))
    facts += [
        ("draft model" if i else "target", _model(model)) for i, model in enumerate(data["models"])
    ]
    if data["loaded"]:
        facts.append(("loaded with", _values(data["loaded"])))
    facts.append(("settings", _values(data["settings"])))
    if data["exact"]:
        facts.append(("exact mode", f"passes of {', '.join(map(str, data['row_class']))} rows"))
    pairs = len(data["sessions"][0]["fast"])
    method = [
        "Each prompt is read once before it is timed; then it is answered in every way, "
        f"{_count(pairs, 'time')} over, the order turned each time. Times are wall clock of "
        "generation without prefill, what drafting costs included.",
        f"Cold: {_COLD}. Warm: {_WARM}: it is the ceiling of an answer written again. What the "
        "engine learns of costs and acceptance stays from prompt to prompt in both, as in use.",
        "A prompt's ratio is the median over its pairs, the figure on top the median over prompts. "
        "Its interval is a bootstrap over prompts: 2,000 draws, 2.5th to 97.5th percentile.",
        _about_noise(data),
        "Prompts are few and chosen: the figures say what happened to these.",
    ]
    return section(
        "Setup",
        "",
        facts_list(facts),
        tag("h3", "How it was measured"),
        text_list(method),
        tag("h3", "Again, on your machine"),
        tag("code", escaped(data["command"]), cls="command"),
    )


def _about_noise(data: Mapping[str, Any]) -> str:
    spread = noise(data)
    if spread is None:
        return "Each prompt was run once: how far equal runs differ is not known."
    return (
        f"Noise: the fastest plain run of a prompt is {100 * spread:.1f} % faster than its slowest "
        "(median over prompts)."
    )


def _gpu(gpu: Mapping[str, Any]) -> str:
    return f"{gpu['name']}, {gpu['memory'] / _GIB:.0f} GiB"


def _model(model: Mapping[str, Any]) -> str:
    parts = [model["what"]]
    if "file" in model:
        parts = [model["file"], model["what"], f"{model['bytes']:,} bytes"]
    parts += [f"context of {model['n_ctx']:,} tokens", f"vocabulary of {model['vocab']:,}"]
    return ", ".join(parts)


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _middle(sessions: Sequence[Mapping[str, Any]], way: str) -> float:
    return float(median(speeds(session[way]) for session in sessions))


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
