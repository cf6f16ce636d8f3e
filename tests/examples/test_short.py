"""The short examples: what each of them prints, over engines whose answers are written down."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentspec.control.cost import CostCurve

FLAT = CostCurve.from_points({1: 1.0, 64: 1.01})


def example(name: str) -> Any:
    return importlib.import_module(f"examples.{name}")


@pytest.fixture
def engine_for(chat: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """What an example loads writes these answers in turn; the list holds what it was asked for."""

    def start(*answers: str) -> list[Any]:
        from agentspec import loading

        asked: list[Any] = []

        def load_engine(model: Any = None, proposers: Any = (), **settings: Any) -> Any:
            asked.append(model)
            return chat.engine(law, cost=FLAT, proposers=proposers)

        laws = [chat.writing(answer) for answer in answers]

        def law(cached: Any) -> Any:
            # answers of a conversation, counted by where they begin
            begun = b"".join(t.to_bytes(2, "big") for t in cached)
            head = b"".join(t.to_bytes(2, "big") for t in [chat.start, *b"assistant\n"])
            return laws[min(begun.count(head), len(laws)) - 1](cached)

        monkeypatch.setattr(loading, "load_engine", load_engine)
        return asked

    return start


def test_quick_start(engine_for: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("quick_start")
    edited = module.FILE.read_text("utf-8").replace("Stock", "Shelf")[:350]
    asked = engine_for(edited)
    module.main("some-model")
    assert asked == ["some-model"]
    text, _, last = capsys.readouterr().out.rpartition("\n\n")
    assert text == edited
    tokens, passes = int(last.split()[0]), int(last.split()[3])
    assert tokens == len(edited) + 1
    assert passes < tokens / 2


def test_streaming(engine_for: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module, text = example("streaming"), "1: item\n2: item\n3: item\n4: item\n5: item\n6: item"
    engine_for(text)
    module.main()
    assert capsys.readouterr().out == text + "\n"
    module.main("--sources")
    shown, counts = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)
    assert shown.replace("[", "").replace("]", "") == text
    assert "[" in shown
    assert counts.startswith("lookup ")


def test_streaming_paints_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    painted = example("streaming").painted
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert painted("a", None) == "a"
    assert painted("a", "lookup").startswith("\x1b[3")
    assert painted("a", "lookup") != painted("a", "edit")


def call(name: str, **arguments: str) -> str:
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


@pytest.mark.parametrize(
    ("answer", "seen"), [("y", "Of herons."), ("", "the user did not allow it")]
)
def test_tools_loop_asks_first(
    engine_for: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    seen: str,
) -> None:
    module = example("tools_loop")
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("Of herons.")
    asked: list[str] = []
    results: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return answer

    run = module.run

    def running(name: str, arguments: str) -> str:
        results.append(run(name, arguments))
        return results[-1]

    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr(module, "run", running)
    engine_for(call("read_file", path="README.md"), "It is of herons.")
    module.main("m", "What is in README.md?")
    assert asked == ['run read_file({"path": "README.md"})? [y/N] ']
    assert results == [seen]
    out = capsys.readouterr().out
    assert out.startswith("It is of herons.\n(")
    cached, total = [int(word) for word in re.findall(r"\d+", out)]
    assert 0 < cached < total


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("read_file", '{"path": "../secret"}', "outside of this folder"),
        ("read_file", '{"path": "missing"}', "error: "),
        ("read_file", "{", "error: "),
        ("read_file", '{"other": 1}', "error: "),
        ("list_files", "{}", "a.txt"),
        ("delete", "{}", "there is no tool delete"),
    ],
)
def test_tools_loop_says_what_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, arguments: str, said: str
) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").touch()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("builtins.input", lambda prompt: "yes")
    assert said in example("tools_loop").run(name, arguments)


def test_predicted_edit(engine_for: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("predicted_edit")
    text = module.CODE.replace("Stack", "Pile")[:290]
    engine_for(text)
    module.main()
    out = capsys.readouterr().out
    assert out.startswith(text)
    plain, predicted, share = out[len(text) :].strip().split("\n")
    assert plain.startswith("plain: 291 tokens, 1.00 per target pass")
    assert float(predicted.split(", ")[1].split()[0]) > 4
    stood, drafted = [int(word) for word in re.findall(r"\d+", share)]
    assert drafted >= stood > 200
    assert "the texts are equal" in share


def test_custom_proposer(engine_for: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("custom_proposer")
    text = module.LICENCE[:190]
    engine_for(text)
    module.main()
    out = capsys.readouterr().out
    assert out.startswith(text)
    words = out[len(text) :].split()
    assert float(words[0]) > 4
    assert int(words[words.index("snippets:") + 1]) > 100


def test_custom_backend(capsys: pytest.CaptureFixture[str]) -> None:
    example("custom_backend").main()
    text, plain, fast = capsys.readouterr().out.strip().rsplit("\n", 2)
    assert text.startswith("the cache keeps the")
    assert plain.startswith("plain: 60 tokens in 60 passes")
    assert int(fast.split()[-2]) < 20


def test_custom_backend_keeps_the_promises_of_a_backend() -> None:
    from agentspec.backends.base import Backend, Rows, Tokenizer
    from agentspec.errors import RollbackError

    module = example("custom_backend")
    backend: Backend = module.Bigrams(module.TEXT)
    tokenizer: Tokenizer = backend.tokenizer
    hostile = f"ä {module.START}x{module.END}"
    assert not any(map(tokenizer.is_special, tokenizer.encode(hostile)))
    assert b"".join(map(tokenizer.piece, tokenizer.encode(hostile))).decode() == hostile
    seq = backend.open()
    one = backend.forward([Rows(seq, [300, 301, 302], logits_from=0)])
    assert len(one) == 3
    kept = backend.checkpoint(seq)
    backend.rollback(seq, 1)
    with pytest.raises(RollbackError):
        backend.rollback(seq, 2)
    backend.restore(kept)
    assert backend.length(backend.fork(seq)) == 3


def test_replay_logs(
    chat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = example("replay_logs")
    secret = "value = 'sk-secret'\n" * 8
    records = [
        {"type": "user", "message": {"role": "user", "content": "write"}, "uuid": "a"},
        {"type": "assistant", "message": {"content": secret}, "uuid": "b", "parentUuid": "a"},
    ]
    folder = tmp_path / ".claude" / "projects" / "p"
    folder.mkdir(parents=True)
    text = "\n".join(json.dumps({"sessionId": "s", **record}) for record in records)
    (folder / "s.jsonl").write_text(text)
    (tmp_path / ".codex" / "sessions").mkdir(parents=True)

    class Bytes:
        path = Path("bytes.gguf")

        def __call__(self) -> Any:
            return chat.tokenizer()

        def identity(self) -> str:
            return "bytes"

    monkeypatch.setattr(module, "vocabulary_of", lambda name: Bytes())
    monkeypatch.setattr(Path, "home", staticmethod(lambda: tmp_path))
    for arguments in ((), (str(folder),)):
        module.main(*arguments)
        first, *curves = capsys.readouterr().out.splitlines()
        assert first == f"1 conversation, {len(secret) + 1} tokens"
        speeds = {line.split()[0]: float(line.split()[1]) for line in curves}
        assert set(speeds) == {"flat", "step9", "linear-cpu"}
        assert speeds["flat"] > 1.5
        assert "sk-secret" not in "".join(curves)
    monkeypatch.setattr(Path, "home", staticmethod(lambda: tmp_path / "nobody"))
    with pytest.raises(SystemExit, match="no logs were found"):
        module.main()


@pytest.mark.weights
def test_quick_start_with_a_real_model(
    weights: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("llama_cpp")
    weights("smollm2-135m")
    example("quick_start").main("smollm2-135m")
    out = capsys.readouterr().out
    assert "class S" in out
    words = out.rsplit("\n", 2)[-2].split()
    assert int(words[0]) > int(words[3]) > 0
