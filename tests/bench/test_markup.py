"""Text stays text, whatever it is; drawings are shares across and pixels down."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.bench.charts import Scale
from agentspec.bench.markup import box, curve, escaped, nice_steps, tag


class Reader(HTMLParser):
    """Everything a browser would find."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@given(st.text())
def test_any_text_is_text_in_an_element_and_in_an_attribute(text: str) -> None:
    found = read(tag("p", escaped(text), title=text))
    assert found.tags == ["p"]
    if text.isprintable():
        assert found.text == text
        assert found.values == ([text] if text else [])


def test_what_cannot_be_seen_is_spelled_out() -> None:
    assert escaped("a\x00b\u202ec\ud800\u200bd\ne") == "a␀b\\u202ec\\ud800\\u200bd\ne"
    escaped("\ud800\x1b").encode()  # a file takes it


def test_shapes_are_where_they_are_said_to_be() -> None:
    assert box(0.25, 1, 0.5, 2, "bar", "<t>") == (
        '<rect x="25.00%" y="1.0" width="50.00%" height="2.0" class="bar">'
        "<title>&lt;t&gt;</title></rect>"
    )
    assert 'width="10.00%"' in box(0, 0, 0.001, 1, "x", least=0.1)
    assert 'points="0.0,5.0 1000.0,0.0"' in curve([(0.0, 5.0), (1.0, 0.0)], 5, "c")


@given(st.floats(0.01, 1e6))
def test_steps_are_few_and_reach_far(most: float) -> None:
    steps = nice_steps(most)
    assert steps[0] == 0
    assert 2 <= len(steps) <= 11
    assert steps[-1] <= most * (1 + 1e-9)
    assert most - steps[-1] < steps[1]


@given(st.lists(st.floats(0.01, 100), max_size=8))
def test_ratios_lie_on_their_scale(values: list[float]) -> None:
    scale = Scale(values)
    places = [scale(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)
    assert 0 < scale(1.0) < 1
    assert 1.0 in scale.ticks


@pytest.mark.parametrize("ratio", [0.0, -1.0])
def test_a_ratio_of_nothing_is_at_the_edge(ratio: float) -> None:
    assert 0 <= Scale([1.0])(ratio) < 0.05
