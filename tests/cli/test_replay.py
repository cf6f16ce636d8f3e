"""`agentspec replay`: the options, the JSON, the trace, and one line for what is wrong."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentspec.cli import main
from agentspec.replay import inputs

LINES = "".join(f"line {n} of the text\n" for n in range(8))


@pytest.fixture(autouse=True)
def vocabulary(chat: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The vocabulary of bytes instead of a model's; what is kept stays in the test's folder."""
    asked: list[Any] = []

    @dataclass(frozen=True)
    class Vocabulary:
        path: Path = Path("bytes.gguf")

        def __call__(self) -> Any:
            return chat.tokenizer()

        def identity(self) -> str:
            return "bytes"

    def choose(model: str | None) -> Vocabulary:
        asked.append(model)
        return Vocabulary()

    monkeypatch.setattr(inputs, "vocabulary_of", choose)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return asked


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    for name in ("a", "b"):
        sessions = [
            {
                "id": f"{name}{n}",
                "messages": [
                    {"role": "user", "content": f"write {n}"},
                    {"role": "assistant", "content": LINES},
                    {"role": "user", "content": "again"},
                    {"role": "assistant", "content": f"{LINES}end {n}"},
                ],
            }
            for n in range(2)
        ]
        text = "\n".join(map(json.dumps, sessions))
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    sample = [["a.jsonl.gz", "a0"], ["a.jsonl.gz", "a1"], ["b.jsonl.gz", "b1"]]
    (folder / "sample.json").write_text(json.dumps(sample))
    return folder


def run(*args: str | Path) -> Result:
    result = CliRunner().invoke(main, ["replay", *map(str, args)])
    assert "Traceback" not in result.output
    return result


def test_json_of_a_sample(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = run("--sample", traces / "sample.json", "--curve", "flat", "--json", "--out", out)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data == json.loads(out.read_text())
    assert data["total"]["tokens"] == 3 * (2 * len(LINES) + 5 + 2)
    assert data["total"]["sessions"] == 3
    assert set(data["sources"]) == {"a", "b"}
    assert data["total"]["speed"] > 1.5
    assert data["warm"]["total"]["speed"] > data["total"]["speed"]
    assert data["state"] == "cold"
    assert data["settings"]["model"] == "bytes.gguf"
    kept = list((tmp_path / "cache").rglob("*.bin"))
    assert len(kept) == 2  # a1 and b1 say the same
    again = json.loads(run("--sample", traces / "sample.json", "--json").stdout)
    assert again["total"] == data["total"]


def test_help_names_the_curves_that_come_along() -> None:
    from agentspec.replay.curves import packaged_curves

    told = run("--help").stdout
    assert all(name in told for name in packaged_curves())


def test_all_files_of_a_folder_and_one_state(traces: Path, tmp_path: Path) -> None:
    (traces / "sample.json").unlink()
    data = json.loads(run(traces, "--json", "--warm", "--no-cache").stdout)
    assert (data["total"]["sessions"], data["state"]) == (4, "warm")
    assert "warm" not in data
    assert not (tmp_path / "cache").exists()
    data = json.loads(run(traces / "a.jsonl.gz", "--json", "--cold").stdout)
    assert (data["total"]["sessions"], "warm" in data) == (2, False)


def test_curves_and_ablations(traces: Path, tmp_path: Path) -> None:
    curves = tmp_path / "curves.json"
    curves.write_text(json.dumps({"x": {"points": {"1": 1, "9": 1}}, "y": {"points": {"1": 1}}}))
    args = (traces / "a.jsonl.gz", "--cold", "--curves", curves, "--curve", "all")
    result = run(*args, "--ablate", "k8", "--ablate", "lookup", "--json")
    data = json.loads(result.stdout)
    assert set(data["curves"]) == {"x", "y"}
    variants = data["curves"]["x"]["variants"]
    assert list(variants) == ["full", "k8", "without lookup"]
    assert variants["without lookup"]["total"]["speed"] == 1.0
    assert variants["k8"]["total"]["speed"] > 1.0
    # rows cost as much as passes there: nothing pays
    full = data["curves"]["y"]["variants"]["full"]["total"]
    assert full["speed"] == pytest.approx(1.0, abs=0.03)
    text = run(*args, "--ablate", "all").stdout
    assert text.endswith("\nin tokens of bytes.gguf\n")
    assert "curve x" in text
    assert "without lookup" in text
    assert "k16" in text


def test_a_trace_has_a_line_per_pass(traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    result = run(traces / "a.jsonl.gz", "--trace", path, "--curve", "step9", "--json")
    data = json.loads(result.stdout)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    cold = [line for line in lines if line["state"] == "cold"]
    assert len(cold) == data["total"]["passes"]
    assert sum(line["charge"] for line in cold) == pytest.approx(data["total"]["cost"])
    assert sum(line["tokens"] for line in cold) == data["total"]["tokens"]
    assert {line["session"] for line in lines} == {"a0", "a1"}
    assert {line["curve"] for line in lines} == {"step9"}
    warm = [line for line in lines if line["state"] == "warm"]
    assert len(warm) == data["warm"]["total"]["passes"]


def test_the_model_is_passed_on(traces: Path, vocabulary: list[Any]) -> None:
    run(traces / "a.jsonl.gz", "--model", "m", "--cold")
    assert vocabulary == ["m"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "FILES"),
        (("no.jsonl",), "no.jsonl"),
        (("{a}", "--jobs", "0"), "--jobs"),
        (("{a}", "--draft-cost", "-1"), "--draft-cost"),
        (("{a}", "--draft-cost", "nan"), "--draft-cost"),
        (("{a}", "--curve", "nope"), "nope"),
        (("{a}", "--ablate", "nope"), "nope"),
        (("{a}", "--curves", "{a}"), "not a JSON file"),
        (("{a}", "--trace", "/no/folder/here"), "--trace"),
        (("{a}", "--sample", "{a}"), "not a JSON file"),
        (("{a}", "--sample", "{sample}"), "b.jsonl.gz"),
        (("{a}", "--draft", "/no/such.gguf"), "/no/such.gguf"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(traces: Path, args: tuple[str, ...], said: str) -> None:
    known = {"a": traces / "a.jsonl.gz", "sample": traces / "sample.json"}
    result = run(*(arg.format(**known) for arg in args))
    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    assert said in result.stderr
    assert "rror: " in result.stderr.splitlines()[-1]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('[{"role": "user", "content": "a"}]\n{"messages": [{}]}')
    result = run(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: bad.jsonl:2: message 0 has no role\n"


def test_plots_are_drawn_of_the_report(traces: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib (extra bench)")
    run(str(traces), "--curve", "flat", "--cold", "--plots", str(tmp_path / "plots"))
    assert (tmp_path / "plots" / "speed-cold.png").is_file()


def test_plots_without_matplotlib_fail_before_the_replay(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = CliRunner().invoke(main, ["replay", str(traces), "--plots", str(tmp_path / "plots")])
    assert result.exit_code == 1
    assert "pip install '.[bench]'" in result.output
    assert "curve" not in result.output


def test_logs_of_an_agent_are_found_by_looking_and_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "projects" / "-home-me-secret"
    folder.mkdir(parents=True)
    records = [
        {"type": "user", "message": {"role": "user", "content": "write"}, "uuid": "a"},
        {"type": "assistant", "message": {"content": LINES}, "uuid": "b", "parentUuid": "a"},
    ]
    text = "\n".join(json.dumps({"sessionId": "s", **record}) for record in records)
    (folder / "s.jsonl").write_text(f"{text}\n{{sk-secret\n")
    results = [run(tmp_path / "projects", "--json", "--cold")]
    results.append(run("--from", "claude-code", folder / "s.jsonl", "--json", "--cold"))
    for result in results:
        data = json.loads(result.stdout)
        assert data["total"]["tokens"] == len(LINES) + 1
        assert set(data["sources"]) == {"claude-code"}
        (said,) = data["settings"]["skipped"]
        assert said.endswith("lines that are not JSON (1)")
        assert "secret" not in result.output
    assert "lines that are not JSON (1)" in run(tmp_path / "projects", "--cold").stdout


def test_logs_and_traces_together(traces: Path, tmp_path: Path) -> None:
    run_of = {"trajectory": [{"response": "ls", "observation": "a.py"}]}
    (tmp_path / "x.traj").write_text(json.dumps(run_of))
    data = json.loads(run(traces / "a.jsonl.gz", tmp_path / "x.traj", "--json", "--cold").stdout)
    assert set(data["sources"]) == {"a", "swe-agent"}


def test_from_what_these_are_not(traces: Path) -> None:
    result = run("--from", "codex", traces / "a.jsonl.gz")
    assert result.exit_code == 2
    assert "a.jsonl.gz holds no conversation of codex" in result.output
    assert run("--from", "codex", "--sample", traces / "sample.json").exit_code == 2
    assert run("--from", "nobody", traces).exit_code == 2


def test_the_command_names_every_format() -> None:
    from agentspec.cli import replay
    from agentspec.replay.logs import FORMS

    assert tuple(FORMS) == replay.FORMS
