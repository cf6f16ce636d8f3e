"""The blocks a page is made of: sections, legends, tables, lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentspec.bench.markup import escaped, tag


def section(title: str, about: str, *parts: str, cls: str = "") -> str:
    """A part of the page with its heading; `parts` are markup."""
    text = tag("p", escaped(about), cls="soft") if about else ""
    return tag("section", [tag("h2", escaped(title)), text, *parts], cls=cls)


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """What marks mean: (drawing of the mark, words) each."""
    items = (
        tag("li", tag("svg", mark, width=18, height=14, aria_hidden="true") + escaped(text))
        for mark, text in entries
    )
    return tag("ul", items, cls="legend")


def facts_list(facts: Iterable[tuple[str, str]]) -> str:
    """Names and what is to be said of them."""
    return tag("dl", (tag("dt", escaped(name)) + tag("dd", escaped(fact)) for name, fact in facts))


def cell(text: str, cls: str = "") -> str:
    """A cell of a table's row."""
    return tag("td", escaped(text), cls=cls)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Rows of cells under heads, the first `left` of which stand to the left."""
    top = [
        tag("th", escaped(head), scope="col", cls="left" if i < left else "")
        for i, head in enumerate(heads)
    ]
    body = tag("tbody", (tag("tr", row) for row in rows))
    return tag("div", tag("table", tag("thead", tag("tr", top)) + body), cls="scroll", tabindex=0)


def text_list(lines: Sequence[str]) -> str:
    """Lines as a list, nothing where there are none."""
    items = [tag("li", escaped(text)) for text in lines]
    return tag("ul", items, cls="plain") if items else ""
