"""From settings to an engine that drafts from the inside of its target."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentspec import loading
from agentspec.config import load_settings
from agentspec.control.cost import CostCurve
from agentspec.errors import ConfigError, ModelFileError, ModelNotFoundError, PairMismatchError
from agentspec.loading_heads import inner_of
from agentspec.testing.scripted import ScriptedBackend, hashed_law

HI = [{"role": "user", "content": "abc abc abc"}]
FLAT = CostCurve.from_points({1: 1.0, 64: 1.2})


@pytest.fixture
def folder(torch_folder: Callable[..., Path]) -> Callable[..., Path]:
    return partial(torch_folder, layers=4)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`load_engine` on one thread, with a curve on which drafts pay."""
    monkeypatch.setattr(loading, "_cost", lambda *_: FLAT)

    def load_tiny(path: Any, **settings: Any) -> Any:
        told = {"n_ctx": 512, "n_threads": 1, "device": "cpu", "max_sessions": 2}
        return loading.load_engine(path, **{**told, **settings})

    return load_tiny


def medusa_file(tmp_path: Path, base: str = "tiny-llama") -> Path:
    from tests.head_files import medusa_tensors, write_heads

    return write_heads(tmp_path / "medusa.safetensors", medusa_tensors(), base)


def adapter_file(tmp_path: Path) -> Path:
    from agentspec.backends.torch_exit import ExitAdapter

    path = tmp_path / "exit.safetensors"
    ExitAdapter(64, 2, rank=8).save(path, base="org/tiny-llama")
    return path


def sources(engine: Any) -> set[str]:
    """The proposers that drafted while the engine answered twice, its texts those without them."""
    found: set[str] = set()
    for talk in (HI, [*HI, {"role": "assistant", "content": "x"}, *HI]):
        plain = engine.complete(talk, max_tokens=40, speculation=False)
        answer = engine.complete(talk, max_tokens=40, speculation={"lookup": False})
        assert answer.text == plain.text
        assert not answer.speculation.notes
        found |= set(answer.speculation.sources)
    return found


def test_medusa_heads_draft_in_an_engine(load: Any, folder: Any, tmp_path: Path) -> None:
    with load(folder(), heads=medusa_file(tmp_path)) as engine:
        assert sources(engine) == {"medusa"}
        assert engine.target._listeners


def test_early_exits_draft_in_an_engine(load: Any, folder: Any) -> None:
    for setting in ("auto", "2"):
        with load(folder(), early_exit=setting) as engine:
            assert sources(engine) == {"early_exit"}


def test_an_adapter_drafts_in_an_engine(load: Any, folder: Any, tmp_path: Path) -> None:
    with load(folder(), heads=[adapter_file(tmp_path)]) as engine:
        assert sources(engine) == {"early_exit"}
        assert engine.target.taps == (2,)


def test_eagle_drafts_in_an_engine(load: Any, folder: Any, tmp_path: Path) -> None:
    from tests.eagle_checkpoints import write_eagle

    path = write_eagle(tmp_path / "eagle", 1)
    with load(folder(), heads=[path]) as engine:
        assert sources(engine) == {"eagle"}


def test_all_of_them_and_a_draft_model_together(load: Any, folder: Any, tmp_path: Path) -> None:
    heads = [medusa_file(tmp_path), adapter_file(tmp_path)]
    with load(folder(), heads=heads, draft=folder()) as engine:
        assert sources(engine) & {"medusa", "early_exit", "draft_model"}
        several = engine.complete(HI, max_tokens=40)
        assert several.text == engine.complete(HI, max_tokens=40, speculation=False).text
        engine.release_draft()
        assert "draft_model" not in sources(engine)


def test_exact_mode_takes_heads_without_trees(
    load: Any, folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentspec.control.rows import RowClass

    monkeypatch.setattr(loading, "_calibration", lambda *_: None)
    monkeypatch.setattr("agentspec.audit.calibrate.exact_rows", lambda _: RowClass((2, 3, 4)))
    with load(folder(), heads=medusa_file(tmp_path), early_exit="1", exact=True) as engine:
        assert sources(engine) <= {"medusa", "early_exit"}


def test_nothing_is_read_where_nothing_is_drafted(load: Any, folder: Any, tmp_path: Path) -> None:
    with load(folder(), heads=tmp_path / "none.safetensors", speculation=False) as engine:
        assert not engine.target._listeners


def test_the_command_answers_with_heads(
    folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from agentspec.cli import main

    monkeypatch.setattr(loading, "_cost", lambda *_: FLAT)
    command = ["complete", "abc abc", "--model", str(folder()), "--n-threads", "1"]
    command += ["--max-tokens", "20", "--n-ctx", "256", "--json"]
    texts = []
    for more in (["--no-speculation"], ["--heads", str(medusa_file(tmp_path))]):
        done = CliRunner().invoke(main, [*command, *more])
        assert done.exit_code == 0, done.output
        texts.append(json.loads(done.stdout))
    assert texts[0]["choices"][0]["message"] == texts[1]["choices"][0]["message"]
    assert texts[1]["speculation"]["sources"]["medusa"]["drafted"] > 0
    done = CliRunner().invoke(main, [*command, "--heads", str(medusa_file(tmp_path, "other"))])
    assert done.exit_code != 0
    assert "trained for other" in done.output


def test_what_cannot_be_loaded_is_said(load: Any, folder: Any, tmp_path: Path) -> None:
    closed: list[str] = []
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"heads": tmp_path / "none"}, ModelNotFoundError, "none"),
        ({"heads": medusa_file(tmp_path, "org/other")}, PairMismatchError, "org/other"),
        ({"heads": folder()}, ModelFileError, "no Medusa heads"),
        ({"early_exit": "soon"}, ConfigError, "off, auto or a number"),
        ({"early_exit": "4"}, ConfigError, "4 layers; 1 to 3"),
    ]
    for settings, kind, message in wrong:
        with pytest.raises(kind, match=message) as caught:
            load(folder(), **settings)
        closed.append(str(caught.value))
    assert not any("\n" in line for line in closed)
    with pytest.raises(ConfigError, match="recurrent"):
        load(folder("mamba"), early_exit="auto")


def test_what_is_asked_for_is_looked_at_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "open_backend", lambda *_: pytest.fail("it was loaded"))
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="set backend to torch"):
        loading.load_engine(model, heads=["x"])
    with pytest.raises(ConfigError, match="off, auto or a number"):
        loading.load_engine(model, early_exit="soon")
    with pytest.raises(ModelNotFoundError, match="there are no heads at"):
        loading.load_engine(model, backend="torch", heads=[str(tmp_path / "none")])


def test_llama_cpp_shows_nothing_of_its_inside() -> None:
    target = ScriptedBackend(hashed_law(8), 8)
    for settings in ({"heads": ["x"]}, {"early_exit": "auto"}):
        with pytest.raises(ConfigError, match="set backend to torch"):
            inner_of(target, load_settings(settings, env={}))
    assert inner_of(target, load_settings({}, env={})) == []
