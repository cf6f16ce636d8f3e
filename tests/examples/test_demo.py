"""The demo's loop over a scripted model: what it does, what it counts, how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentspec.audit.verify import Comparison
from examples import demo
from examples.coding_agent.loop import Generation, TaskRun, Turn, Watch, explain, work
from examples.coding_agent.mistakes import VARIANTS
from examples.coding_agent.report import account, as_data, figures
from examples.coding_agent.screen import Screen, shown_call
from examples.coding_agent.tools import Outcome, Toolbox
from examples.coding_agent.workspace import TestRun, Workspace
from tests.examples.conftest import Leaking

pytestmark = pytest.mark.program

PAIR = VARIANTS[0]
STAMP = {
    "date": "2026-01-01",
    "model": "m",
    "target": "t",
    "draft": None,
    "machine": {"cpu": "c", "cores": 2},
}


def said(name: str, **arguments: str) -> str:
    """A call as the model writes it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def solution() -> list[str]:
    """What a model says that does everything right."""
    answers = [said("run_tests")]
    with Workspace(demo.REPOSITORY, PAIR) as copy:
        for mistake in PAIR:
            text = copy.read(mistake.path)
            wrong = next(line for line in text.splitlines() if mistake.wrong in line).strip()
            right = wrong.replace(mistake.wrong, mistake.right)
            answers += [
                said("read_file", path=mistake.path),
                said(
                    "write_file",
                    path=mistake.path,
                    wrong_line=wrong,
                    right_line=right,
                    content=text.replace(wrong, right).rstrip("\n"),
                ),
                said("run_tests"),
            ]
    return [*answers, said("finish", summary="both lines are right now")]


class Quiet:
    """A screen nobody looks at."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def turn(self, number: int) -> None: ...

    def passed(self, what: str, rows: int) -> None:
        self.seen.append(what)

    def done(self, turn: Turn) -> None: ...

    def replaying(self, done: int, total: int) -> None: ...


def run_task(
    speaking: Callable[..., Any],
    answers: list[Any],
    *,
    turns: int = 12,
    audit: bool = False,
    screen: Any = None,
    **options: Any,
) -> TaskRun:
    screen = screen or Quiet()
    watches: list[Watch] = []

    def wrap(backend: Any) -> Watch:
        watches.append(Watch(backend, screen.passed))
        return watches[0]

    with (
        Workspace(demo.REPOSITORY, PAIR) as copy,
        speaking(answers, wrap=wrap, **options) as engine,
    ):
        run = work(engine, watches[0], Toolbox(copy), screen, turns=turns)
        explain(engine, watches[0], run, screen, always=audit)
        assert not watches[0].turns
        return run


def test_the_task_is_solved(speaking: Callable[..., Any]) -> None:
    screen = Quiet()
    run = run_task(speaking, solution(), audit=True, screen=screen)
    assert run.solved
    assert run.stopped == "finished"
    assert not run.before.green
    assert [turn.name for turn in run.turns] == [
        "run_tests",
        *("read_file", "write_file", "run_tests") * 2,
        "finish",
    ]
    assert [turn.plain_first for turn in run.turns[:4]] == [True, False, True, False]
    assert {"reading", "plain", "accelerated"} <= set(screen.seen)
    # the history only grows, and the second answer of a turn finds the prompt read
    for turn in run.turns:
        second = turn.fast if turn.plain_first else turn.plain
        assert second.cached_tokens == second.prompt_tokens - 1
        assert turn.plain.passes == len(turn.plain.tokens)
    assert sum(turn.fast.passes for turn in run.turns) < sum(t.plain.passes for t in run.turns)
    writes = [turn.fast for turn in run.turns if turn.name == "write_file"]
    assert all(g.sources["lookup"][1] > 0 for g in writes)
    assert all(turn.same for turn in run.turns)
    assert [c.verdict for c in run.comparisons] == ["equal"] * 8
    assert run.replayed is not None
    assert run.replayed.rows > 1000
    assert run.defects == 0


def test_nothing_is_replayed_when_nothing_differs(speaking: Callable[..., Any]) -> None:
    run = run_task(speaking, [said("run_tests"), said("list_files")], turns=2)
    assert run.replayed is None
    assert run.stopped == "not finished after 2 turns"
    assert not run.solved


def test_a_leaking_cache_is_a_defect(speaking: Callable[..., Any]) -> None:
    run = run_task(speaking, solution()[:3], turns=3, audit=True, kind=Leaking)
    assert run.defects > 0
    assert any(c.verdict == "defect" for c in run.comparisons)


def test_the_same_call_again_and_again_ends_the_task(speaking: Callable[..., Any]) -> None:
    run = run_task(speaking, [said("list_files")])
    assert run.stopped == "the same call 4 times in a row"
    assert len(run.turns) == 4


def test_an_answer_that_is_cut_off_is_told_to_the_model(
    speaking: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.coding_agent.loop.MAX_TOKENS", 60)
    answers = [said("read_file", path="inventory/pricing.py"), said("list_files")]
    run = run_task(speaking, answers, turns=2)
    assert [turn.name for turn in run.turns] == ["(no call)", "list_files"]
    assert "not a complete tool call" in run.turns[0].outcome.text


def test_recording_is_taken_off_the_times(speaking: Callable[..., Any]) -> None:
    watches: list[Watch] = []

    def wrap(backend: Any) -> Watch:
        watches.append(Watch(backend, lambda what, rows: None))
        return watches[0]

    with speaking(["hello"], wrap=wrap) as engine:
        engine.complete([{"role": "user", "content": "hi"}], max_tokens=8)
        stats = engine.last_stats
        assert 0 < watches[0].recording < stats.total_seconds


# -- figures ----------------------------------------------------------------------------------


def generation(tokens: list[int], passes: int, seconds: float, **more: Any) -> Generation:
    return Generation(tuple(tokens), 100, more.pop("cached", 50), passes, seconds, 1.0, **more)


def turn(number: int, plain: Generation, fast: Generation) -> Turn:
    outcome = Outcome("text", "line")
    return Turn(number, "run_tests", "{}", outcome, plain, fast, number % 2 == 1)


def a_run(*, verdict: Any = "equal", same: bool = True) -> TaskRun:
    fast_tokens = [1, 2, 3, 4] if same else [1, 2, 9, 9]
    turns = [
        turn(
            1,
            generation([1, 2, 3, 4], 4, 4.0),
            generation(fast_tokens, 2, 1.0, cached=99, sources={"lookup": (4, 2)}),
        ),
        turn(
            2,
            generation([5, 6], 2, 2.0, cached=99),
            generation([5, 6], 2, 1.0, cached=80, sources={"lookup": (2, 0)}),
        ),
    ]
    at, gap = (None, None) if same else (2, 0.0123)
    run = TaskRun(PAIR, TestRun(16, 8, "8 of 16 tests fail\nmore"), turns, stopped="finished")
    run.after = TestRun(16, 0, "all 16 tests pass")
    run.comparisons = [Comparison(4, 4, at, gap, verdict), Comparison(2, 2, None, None, "equal")]
    return run


def test_the_figures_add_up() -> None:
    f = figures([a_run()])
    assert f["plain"]["tokens"] == f["accelerated"]["tokens"] == 6
    assert (f["plain"]["passes"], f["accelerated"]["passes"]) == (6, 4)
    assert f["plain"]["speed"] == pytest.approx(1.0)
    assert f["accelerated"]["speed"] == pytest.approx(3.0)
    assert f["accelerated"]["acceptance_length"] == pytest.approx(1.5)
    assert f["accelerated"]["sources"]["lookup"] == {"drafted": 6, "accepted": 2, "passes": 4}
    assert f["ratio_total"] == pytest.approx(3.0)
    assert f["ratio_median"] == pytest.approx(3.0)  # of 4 and 2
    # of turn 1 the plain answer read the prompt, of turn 2 the accelerated one
    assert (f["cached_tokens"], f["prompt_tokens"]) == (130, 200)
    assert f["prefill_seconds"] == pytest.approx(2.0)
    assert (f["solved"], f["tasks"], f["turns"], f["equal_turns"]) == (1, 1, 2, 2)


def test_the_account_says_everything() -> None:
    text = "\n".join(account(STAMP, [a_run()]))
    for part in (
        "task success: 1 of 1",
        "solved in 2 turns (finished); before: 8 of 16 tests fail; after: all 16 tests pass",
        "3.00× in total, 3.00× in the median turn",
        "lookup: 2 of 6 draft tokens accepted (33 %), 0.50 per target pass",
        "130 of 200 prompt tokens (65 %)",
        "equal in all 2 turns",
        "2026-01-01: m (t) on c, 2 cores",
    ):
        assert part in text


@pytest.mark.parametrize("verdict", ["tie", "defect"])
def test_a_difference_is_named(verdict: str) -> None:
    run = a_run(verdict=verdict, same=False)
    text = "\n".join(account(STAMP, [run, a_run()]))
    assert "equal in 3 of 4 turns" in text
    assert f"task 1, turn 1, from token 3 on: {verdict}, logit gap 0.0123" in text
    assert run.defects == (verdict == "defect")


def test_an_unsolved_task_is_said() -> None:
    run = a_run()
    run.after, run.stopped = TestRun(16, 2, "2 of 16 tests fail"), "not finished after 2 turns"
    text = "\n".join(account(STAMP, [run]))
    assert "task success: 0 of 1" in text
    assert "not solved in 2 turns (not finished after 2 turns)" in text


def test_the_data_are_json_without_the_tokens() -> None:
    data = json.loads(json.dumps(as_data(STAMP, [a_run()])))
    assert data["runs"][0]["turns"][0]["plain"]["tokens"] == 4
    assert data["runs"][0]["solved"] is True


# -- the program ------------------------------------------------------------------------------


@pytest.fixture
def loaded(
    speaking: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., None]:
    """Let the demo load an engine that gives these answers; copies go to tmp_path/copies."""
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))

    def load(answers: list[Any], **options: Any) -> None:
        monkeypatch.setattr(
            "agentspec.loading.load_engine",
            lambda model, *, draft, wrap, max_sessions: speaking(answers, wrap=wrap, **options),
        )

    return load


def test_the_demo_from_red_to_green(
    loaded: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    loaded(solution())
    kept = tmp_path / "figures.json"
    assert demo.main(["--json", str(kept)]) == 0
    out = capsys.readouterr().out
    assert out.index("loading") < out.index("turn 1 ") < out.index("turn 8 ")
    assert "before: 8 of 16 tests fail; after: all 16 tests pass" in out
    assert "task success: 1 of 1" in out
    assert "equal in all 8 turns" in out
    assert "\x1b" not in out
    assert "\r" not in out
    assert str(tmp_path) not in out
    assert json.loads(kept.read_text())["solved"] == 1
    assert not list((tmp_path / "copies").iterdir())


@pytest.mark.parametrize(("load", "said"), [(1e9, True), (0.0, False), (None, False)])
def test_a_busy_machine_is_said_once(
    loaded: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    load: float | None,
    said: bool,
) -> None:
    monkeypatch.setattr("agentspec.machine.load", lambda: load)
    loaded(["nothing"])
    demo.main(["--turns", "1"])
    assert capsys.readouterr().out.count("this machine is busy") == said


def test_repeated_tasks_are_independent(
    loaded: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    loaded([said("run_tests"), said("list_files")])
    assert demo.main(["--repeat", "2", "--turns", "2", "--audit"]) == 0
    out = capsys.readouterr().out
    assert "task success: 0 of 2" in out
    assert "task 2 of 2" in out
    assert " 0 defects" in out


def test_a_defect_is_exit_code_3(loaded: Callable[..., None]) -> None:
    loaded(solution(), kind=Leaking)
    assert demo.main(["--audit", "--turns", "3"]) == 3


def test_ctrl_c_leaves_nothing_behind(
    loaded: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    loaded([said("run_tests"), KeyboardInterrupt()])
    assert demo.main([]) == 130
    out = capsys.readouterr().out
    assert "turn 1 " in out
    assert "interrupted" in out.splitlines()[-1]
    assert not list((tmp_path / "copies").iterdir())


def test_ctrl_c_inside_a_callback_is_not_lost(
    loaded: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded([said("run_tests")])
    work_ = work

    def swallowed(*given: Any, **options: Any) -> TaskRun:
        # as ctypes does with whatever a callback raises
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return work_(*given, **options)

    monkeypatch.setattr("examples.coding_agent.loop.work", swallowed)
    assert demo.main([]) == 130
    assert not list((tmp_path / "copies").iterdir())


def test_termination_leaves_nothing_behind(loaded: Callable[..., None], tmp_path: Path) -> None:
    loaded([said("run_tests"), SystemExit(demo.TERMINATED)])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        demo.main([])
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list((tmp_path / "copies").iterdir())
    with pytest.raises(SystemExit):
        demo._terminated(signal.SIGTERM, None)


def test_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main(["--model", "no-such-model"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "options", [["--repeat", "99"], ["--turns", "0"], ["--json", "/no/such/folder/x.json"], ["-x"]]
)
def test_wrong_usage(options: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        demo.main(options)
    assert caught.value.code == 2


def test_a_call_on_one_line() -> None:
    given = {"path": "a.py", "content": "x" * 500, "wrong_line": "\x1b[31m" + "y" * 99}
    line = shown_call("write_file", json.dumps(given))
    assert line.startswith('write_file(path="a.py", content=(500 characters), wrong_line="\\u001b')
    assert len(line) < 140
    assert line.isprintable()
    assert shown_call("run_tests", "not json") == "run_tests()"


def test_a_terminal_sees_the_line_move() -> None:
    out = io.StringIO()
    screen = Screen(out, color=True, moving=True)
    screen.turn(1)
    screen.passed("plain", 0)
    screen.passed("reading", 128)
    screen._last = 0.0
    screen.passed("", 1)
    screen.say("done", "good")
    assert "reading the prompt: 128 tokens" in out.getvalue()
    assert "plain: pass 1 …" in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K\x1b[32mdone\x1b[0m\n")


def test_without_a_terminal_the_first_turn_says_what_it_does() -> None:
    out = io.StringIO()
    screen = Screen(out, color=False, moving=False)
    for turn in (1, 2):
        screen.turn(turn)
        for phase in ("plain", "accelerated"):
            screen.passed(phase, 0)
            for what in ("reading", "reading", "", "") if phase == "plain" else ("", ""):
                screen.passed(what, 128 if what else 1)
    lines = ["  reading the prompt …", "  generating, plain …", "  generating, accelerated …"]
    assert out.getvalue().splitlines() == lines


@pytest.mark.weights
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX paths")
def test_a_few_turns_of_a_real_model(
    weights: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = weights("smollm2-135m")
    kept = tmp_path / "figures.json"
    assert demo.main(["--model", str(path), "--turns", "2", "--audit", "--json", str(kept)]) == 0
    data = json.loads(kept.read_text())
    assert data["turns"] == 2
    assert all(t["call"] != "(no call)" for run in data["runs"] for t in run["turns"])
    assert data["defects"] == 0
    assert data["replayed_rows"] > 0
    assert "2 cores" in capsys.readouterr().out or data["machine"]["cores"] != 2
