"""Reports: the machine and the settings are in them, and the figures are those of the runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from agentspec.audit.record import Recorder
from agentspec.audit.replay import Defect, ReplayReport
from agentspec.audit.verify import Comparison, VerifyReport
from agentspec.bench.live import BenchReport, Run, SessionResult
from agentspec.bench.report import bench_text, stamp, verify_text
from agentspec.control.rows import RowClass


def test_the_stamp_names_machine_and_model_but_no_path(chat: Any) -> None:
    recorder = Recorder(chat.backend(chat.hashed(1)))
    engine = chat.engine(
        recorder, model="m", rows=RowClass((1, 2)), draft=chat.backend(chat.hashed(2)), exact=True
    )
    data = stamp(engine, k=4, temperature=0.0)
    assert data["target"] == data["draft"] == "ScriptedBackend"
    assert (data["model"], data["exact"], data["row_class"]) == ("m", True, [1, 2])
    assert data["settings"] == {"k": 4, "temperature": 0.0}
    assert data["machine"]["cores"] >= 1
    text = json.dumps(data)
    assert str(Path.home()) not in text or Path.home() == Path("/")
    assert os.uname().nodename not in text


def test_bench_text(chat: Any) -> None:
    def run(tokens: int, seconds: float, text: str = "t") -> Run:
        return Run(seconds, 0.1, tokens, 5, 10, 4, text)

    plain = [run(10, 1.0), run(10, 0.5)]
    fast = [run(10, 0.5), run(10, 0.25)]
    sources = {"lookup": {"drafted": 20, "accepted": 8}}
    report = BenchReport("cold", [SessionResult("a1", "edit", 77, plain, fast, sources)])
    report.results.append(SessionResult("b2", "prose", 5, [run(3, 1.0)], [run(3, 1.0, "other")]))
    text = bench_text(report, stamp(chat.engine(chat.hashed(1), model="m")))
    lines = text.splitlines()
    assert lines[0].startswith("20")
    assert " m (ScriptedBackend) on " in lines[0]
    assert "medians of 2 alternating pairs" in lines[1]
    row = next(line for line in lines if line.startswith("a1"))
    # median speeds: (10 + 20) / 2 and (20 + 40) / 2
    assert row.split() == ["a1", "edit", "77", "10", "15.0", "30.0", "2.00", "2.00", "equal"]
    assert next(line for line in lines if line.startswith("b2")).split()[-1] == "differs"
    assert "median ratio 1.50 (95 % interval 1.00 to 2.00" in text
    assert "source lookup: 8 of 20 draft tokens" in text
    assert all(line == line.rstrip() and "\x1b" not in line for line in lines)


def test_verify_text(chat: Any) -> None:
    data = stamp(chat.engine(chat.hashed(1), model="m", draft=chat.backend(chat.hashed(2))))
    report = VerifyReport(
        True,
        (1, 2),
        [Comparison(10, 10, None, None, "equal"), Comparison(9, 9, 4, 0.01234, "tie")],
        ReplayReport(7, 30, 5, 8, [Defect(1, 3, 2)]),
        1.5,
        0.5,
    )
    text = verify_text(report, data)
    assert "draft ScriptedBackend" in text
    assert "exact mode, rows per pass: 1, 2" in text
    assert "19 tokens: 1 answers equal, 1 ties, 1 defects" in text
    assert (
        "replay: 7 passes, 30 rows compared bit for bit, 5 rejected rows replaced, 8 added" in text
    )
    assert "1 rows differ" in text
    assert any(line.split() == ["2", "9", "4", "0.0123", "tie"] for line in text.splitlines())
