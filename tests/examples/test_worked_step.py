"""The worked step: the document shows what the script prints, and the script what is decided."""

from __future__ import annotations

import re

import pytest

from examples import worked_step
from examples.worked_step import CURVES, Step
from tests.examples.conftest import ROOT

DOC = ROOT / "docs" / "how-it-works.md"


def test_the_document_quotes_the_output() -> None:
    (block,) = re.findall(
        r"^```text\n(.*?)\n```$", DOC.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert block.split("\n") == list(worked_step.lines()), (
        "paste the output of examples/worked_step.py into the document, and read what it says of it"
    )


def test_the_document_shows_the_file_that_is_rewritten() -> None:
    assert f"```python\n{worked_step.FILE}```" in DOC.read_text("utf-8")


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("leaves", [1, 2])
def test_the_printed_worth_is_what_the_controller_maximises(curve: str, leaves: int) -> None:
    step = Step(curve, leaves)
    worth = [value for _, value in step.worths()]
    assert len(step.chosen) == worth.index(max(worth)) > 0


def test_the_two_curves_choose_differently_from_the_same_evidence() -> None:
    flat, steep = (Step(curve) for curve in CURVES)
    assert flat.draft.tokens[: len(steep.draft)] == steep.draft.tokens
    assert len(steep.chosen) < len(steep.draft) < len(flat.draft) == len(flat.chosen)


def test_the_branch_pays_on_one_curve_only() -> None:
    flat, steep = (Step(curve, leaves=2) for curve in CURVES)
    assert flat.chosen.parents is not None
    assert steep.chosen.parents is None
