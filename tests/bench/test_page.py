"""The page: all figures are in it, it asks for nothing, and hostile text stays text."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from agentspec.bench.charts import colours, noise, timeline
from agentspec.bench.page import bench_page

ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "section", "h1", "h2", "h3",
    "p", "div", "span", "small", "b", "code", "pre", "ul", "li", "dl", "dt", "dd", "table", "thead",
    "tbody", "tr", "th", "td", "svg", "g", "rect", "circle", "line", "polyline", "text",
}  # fmt: skip
VOID = {"meta"}


class Page(HTMLParser):
    """Elements with their attributes and texts, and whether what opens closes."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, name: str, cls: str = "") -> list[dict[str, str]]:
        wanted = set(cls.split())
        return [a for t, a in self.found if t == name and wanted <= set(a.get("class", "").split())]

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def assert_harmless(source: str) -> Page:
    page = Page(source)
    assert {tag for tag, _ in page.found} <= ALLOWED
    names = {name for _, attributes in page.found for name in attributes}
    assert not {n for n in names if n.startswith("on")} | names & {"src", "href", "style", "srcset"}
    (style,) = re.findall(r"<style>(.*?)</style>", source, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = [a["content"] for a in page.of("meta") if "http-equiv" in a]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    # nothing of the page comes before its policy but the character set
    assert source.index("Content-Security-Policy") < source.index("<title")
    return page


def test_the_page_is_harmless_and_has_every_section(data: dict[str, Any]) -> None:
    source = bench_page(data)
    page = assert_harmless(source)
    for title in (
        "Every prompt", "Other ways to draft", "Acceptance", "A turn, pass by pass", "Setup",
        "Draft lengths, and what they cost", "How it was measured", "Again, on your machine",
    ):  # fmt: skip
        assert title in page.texts
    assert "prefers-color-scheme: dark" in source
    assert "@media print" in source
    assert "max-width: 760px" in source
    assert len(source) < 400_000


def test_hostile_text_stays_text(measure: Callable[..., Any], hostile: str) -> None:
    _, _, data = measure(reply=hostile * 2, name=hostile, peers=False)
    data["warm"]["sessions"][0]["sources"] = {hostile: {"drafted": 1, "accepted": 1}}
    data["details"]["sources"][hostile] = data["details"]["sources"]["lookup"]
    data["details"]["classes"][hostile] = data["details"]["sources"]["lookup"]
    data["models"][0] |= {"file": hostile, "bytes": 1}
    data["surroundings"]["gpus"] = [{"name": hostile, "memory": 1 << 30}]
    data["machine"] = {**data["machine"], "cpu": hostile}
    data["comparison"][1]["notes"] = [hostile]
    data["comparison"].append(
        {"name": hostile, "what": hostile, "own": False, "not_measured": hostile}
    )
    page = assert_harmless(bench_page(data))
    bare = "</style></script><img src=x onerror=alert(1)>\"'&␀\\u202e<svg/onload=alert(2)>"
    assert page.text.count(bare) > 10


def test_the_figures_are_those_of_the_data(data: dict[str, Any]) -> None:
    page = Page(bench_page(data))
    assert f"{data['ratio']:.2f}×" in page.texts
    assert f"{data['warm']['ratio']:.2f}×" in page.texts
    low, high = data["interval"]
    assert any(f"95 % interval {low:.2f}–{high:.2f}" in text for text in page.texts)
    assert data["command"] in page.texts
    for session in data["sessions"]:
        assert session["id"] in page.texts
        assert f"{session['ratio']:.2f}" in page.texts
    for way in data["comparison"]:
        assert way["name"] in page.texts
        if "not_measured" in way:
            assert way["not_measured"] in page.texts
    for name, share in data["details"]["sources"].items():
        assert name in page.texts
        assert f"{100 * share['accepted_of_judged']:.0f} %" in page.texts


def test_who_is_slower_than_plain_is_shown_and_in_no_good_colour(data: dict[str, Any]) -> None:
    slow = copy.deepcopy(data)
    for session in slow["sessions"]:
        session["ratio"] = 0.5
        for run in session["fast"]:
            run["seconds"] = 2 * run["tokens"] / 1e3
        for run in session["plain"]:
            run["seconds"] = run["tokens"] / 1e3
    slow |= {"ratio": 0.5, "interval": [0.5, 0.5]}
    del slow["comparison"]
    page = Page(bench_page(slow))
    assert len(page.of("circle", "cold loss")) == len(slow["sessions"]) + 1  # and the legend's
    assert len(page.of("circle", "cold gain")) == 1  # the legend's
    assert len(page.of("td", "loss")) >= len(slow["sessions"])
    assert "2 of 2" in page.texts
    (first, *_) = page.of("b", "loss")
    assert first


@pytest.mark.parametrize(
    ("ratio", "interval", "cls"),
    [(1.2, [1.1, 1.3], "gain"), (1.2, [0.9, 1.3], ""), (0.9, [0.8, 1.1], "loss")],
)
def test_nothing_is_won_as_long_as_the_interval_holds_one(
    data: dict[str, Any], ratio: float, interval: list[float], cls: str
) -> None:
    page = Page(bench_page({**data, "ratio": ratio, "interval": interval}))
    first = next(attributes for tag, attributes in page.found if tag == "b")
    assert first.get("class", "") == cls


def test_a_timeline_has_a_bar_for_each_pass_and_its_parts(data: dict[str, Any]) -> None:
    page = Page(bench_page(data))
    turns = data["details"]["turns"]
    records = []
    for turn in turns:
        session = data["sessions"][turn["session"]]
        records.append(session["fast"][turn["pair"]]["record"])
    assert len([text for text in page.texts if re.match(r"pass \d+, from", text)]) == sum(
        len(record["end"]) for record in records
    )
    drafted = sum(n > 0 for record in records for n in record["drafted"])
    assert len(page.of("g")) == drafted
    told = [text for text in page.texts if text.startswith("pass 1, from")]
    assert len(told) == len(turns)
    first = records[0]
    at = next(i for i, drafted in enumerate(first["drafted"]) if drafted)
    words = f"{first['rows'][at]} rows, {first['accepted'][at]} of {first['drafted'][at]} accepted"
    assert any(text.startswith(f"pass {at + 1}, from") and words in text for text in page.texts)
    pieces = "".join(text for one in first["text"] for text, _ in one)
    assert pieces.replace("\n", "") in page.text.replace("\n", "")


def test_a_bar_is_as_tall_as_its_rows_and_as_wide_as_its_time() -> None:
    plain = {"start": [0.0], "end": [100.0], "committed": [1]}
    fast = {
        "start": [0.0, 50.0], "end": [50.0, 60.0], "rows": [5, 1], "drafted": [4, 0],
        "accepted": [2, 0], "committed": [3, 1], "sources": [[["lookup", 4, 2]], []],
        "text": [[["ab", "lookup"], ["c", None]], []],
    }  # fmt: skip
    page = Page(timeline(plain, fast, {"lookup": "s1"}))
    own, other = (rect for rect in page.of("rect", "own") if float(rect["height"]) > 8)
    (accepted,), (rejected,) = page.of("rect", "bar s1"), page.of("rect", "rejected")
    heights = [float(rect["height"]) for rect in (own, accepted, rejected)]
    assert heights == pytest.approx([19.2, 38.4, 38.4])
    assert float(own["y"]) - float(accepted["y"]) == pytest.approx(38.4)
    widths = [float(rect["width"].rstrip("%")) for rect in (own, other)]
    assert widths[0] == pytest.approx(5 * widths[1], rel=0.01)
    assert "pass 1, from 0.000 s, 50.0 ms: 5 rows, 2 of 4 accepted (lookup 2 of 4)" in page.text


def test_prompts_of_one_name_are_kept_apart(data: dict[str, Any]) -> None:
    twins = copy.deepcopy(data)
    for part in (twins, twins["warm"]):
        for i, session in enumerate(part["sessions"]):
            # of a size that no measured figure of the page has
            made_up = 71.5 + i + (0.25 if part is not twins else 0)
            session |= {"id": "same", "ratio": made_up}
    page = Page(bench_page(twins))
    for ratio in ("71.50", "72.50", "71.75", "72.75"):
        assert page.texts.count(ratio) == 2  # beside its strip and in the table


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_of_sampled_texts_none_is_called_a_defect(data: dict[str, Any], temperature: float) -> None:
    source = bench_page({**data, "settings": {**data["settings"], "temperature": temperature}})
    assert ("Sampled without a seed" in source) == bool(temperature)
    assert ("rounding tie or defect" in source) != bool(temperature)


def test_the_noise_of_equal_runs_is_told(data: dict[str, Any]) -> None:
    noisy = copy.deepcopy(data)
    for session, slower in zip(noisy["sessions"], (1.1, 1.3), strict=True):
        for run, seconds in zip(session["plain"], (1.0, slower), strict=True):
            run |= {"tokens": 100, "seconds": seconds}
    assert noise(noisy) == pytest.approx(0.2)
    assert "is 20.0 % faster than its slowest" in Page(bench_page(noisy)).text
    for part in (noisy, noisy["warm"]):
        for session in part["sessions"]:
            session["plain"], session["fast"] = session["plain"][:1], session["fast"][:1]
    noisy["details"]["turns"] = []
    assert noise(noisy) is None
    assert "how far equal runs differ is not known" in Page(bench_page(noisy)).text


def test_chosen_lengths_are_bars_over_the_cost(data: dict[str, Any]) -> None:
    page = Page(bench_page(data))
    lengths = data["details"]["lengths"]
    assert len(page.of("circle", "tokens")) == len(lengths) + 1
    for length in lengths:
        assert f"K = {length['k']}: {length['passes']} passes" in page.texts
    assert len(page.of("polyline", "cost")) == 1
    took = data["details"]["cost"]["row_ms"]
    assert f"A pass of one row took {took:.1f} ms" in page.text


def test_one_prompt_has_no_interval_and_nothing_drafted_is_said(data: dict[str, Any]) -> None:
    one = copy.deepcopy(data)
    for part in (one, one["warm"]):
        part["sessions"] = part["sessions"][:1]
    one["details"] |= {"sources": {}, "classes": {}, "turns": one["details"]["turns"][:1]}
    one["details"]["turns"][0]["session"] = 0
    del one["comparison"]
    page = assert_harmless(bench_page(one))
    assert "one prompt: no interval" in page.text
    assert "Nothing was drafted" in page.text
    assert "Other ways to draft" not in page.texts


def test_without_a_curve_or_a_turn_there_is_still_a_page(data: dict[str, Any]) -> None:
    bare = copy.deepcopy(data)
    bare["details"] |= {"turns": [], "lengths": []}
    bare["details"]["cost"] = {"curve": {}, "measured": {}, "row_ms": 0.0}
    del bare["warm"]
    page = assert_harmless(bench_page(bare))
    assert page.of("polyline") == []
    assert "A pass of one row took" not in page.text


@pytest.mark.parametrize("n", [3, 12])
def test_proposers_keep_their_colour_and_the_many_share_one(n: int) -> None:
    sources = {f"p{i}": {"drafted": i, "accepted": 0} for i in range(n)}
    found = colours({"sessions": [{"sources": sources}]})
    assert found[f"p{n - 1}"] == "s1"
    assert found[f"p{n - 2}"] == "s2"
    assert set(found.values()) <= {f"s{i}" for i in range(1, 8)}
    assert len(found) == n
