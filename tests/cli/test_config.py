"""`agentspec config`: values and their origins, one path, and a file that is changed with care."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentspec.cli import main
from agentspec.config import PROJECT_FILE, RULES


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, not there yet, and a working directory that is a repository."""
    repository = tmp_path / "repo"
    (repository / ".git").mkdir(parents=True)
    monkeypatch.chdir(repository)
    monkeypatch.delenv("AGENTSPEC_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Path(run("path").stdout.strip())


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["config", *arguments], input=text)


def test_every_value_says_where_it_comes_from(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.parent.mkdir(parents=True)
    home.write_text('n_threads = 3\napi_key = "hidden"\n')
    project = tmp_path / "repo" / PROJECT_FILE
    project.write_text("n_ctx = 4096\n")
    monkeypatch.setenv("AGENTSPEC_KV_TYPE", "q8_0")
    result = run("show")
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines()}
    assert set(rows) == set(RULES)
    assert rows["n_threads"][1:] == ["3", str(home)]
    assert rows["n_ctx"][1:] == ["4096", str(project)]
    assert rows["kv_type"][1:] == ["q8_0", "environment", "AGENTSPEC_KV_TYPE"]
    assert rows["mmap"][1:] == ["true", "default"]
    assert rows["model"][1:] == ["-", "default"]
    assert "hidden" not in result.stdout
    data = json.loads(run("show", "n_ctx", "api_key", "--json").stdout)
    assert set(data) == {"n_ctx", "api_key"}
    assert data["n_ctx"]["value"] == 4096
    assert data["api_key"]["value"] == "(set)"
    assert data["api_key"]["project"] is False


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    for arguments in (("show", "n_ctz"), ("set", "n_ctz", "1")):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "unknown setting 'n_ctz' here; did you mean n_ctx?" in result.stderr


def test_set_makes_the_file_and_its_value_is_read_again(home: Path) -> None:
    result = run("set", "n_ctx", "16384")
    assert result.exit_code == 0
    assert result.stdout == f"n_ctx is set in {home}\n"
    assert home.read_text() == "n_ctx = 16384\n"
    assert home.stat().st_mode & 0o077 == 0
    shown = run("show", "n_ctx")
    assert shown.stdout.split() == ["n_ctx", "16384", str(home)]
    assert "context" in shown.stderr.lower()
    assert [p.name for p in home.parent.iterdir()] == [home.name]


def test_set_keeps_comments_and_order(home: Path) -> None:
    home.parent.mkdir(parents=True)
    home.write_text("# mine\nn_ctx = 4096 # small\n\n# fast\nmmap = false\n")
    assert run("set", "n_ctx", "8192").exit_code == 0
    assert home.read_text() == "# mine\nn_ctx = 8192 # small\n\n# fast\nmmap = false\n"
    assert run("set", "exact", "on").exit_code == 0
    assert tomllib.loads(home.read_text()) == {"n_ctx": 8192, "mmap": False, "exact": True}
    assert home.read_text().startswith("# mine\nn_ctx = 8192 # small\n")


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("allow_commands", "pytest *; ruff check", ["pytest *", "ruff check"]),
        ("allow_commands", "", []),
        ("kv_type", "q8_0", "q8_0"),
        ("speculation", "no", False),
        ("model", 'a "quoted" \\ name\t', 'a "quoted" \\ name\t'),
        ("template", "{{ x }}\n{% if y %}", "{{ x }}\n{% if y %}"),
    ],
)
def test_values_of_every_kind_come_back(home: Path, key: str, value: str, kept: object) -> None:
    assert run("set", key, value).exit_code == 0
    assert tomllib.loads(home.read_text()) == {key: kept}
    assert run("show", key).exit_code == 0
    assert len(run("show", key).stdout.splitlines()) == 1


def test_a_relative_folder_is_meant_from_here(home: Path, tmp_path: Path) -> None:
    assert run("set", "models_dir", "models").exit_code == 0
    assert tomllib.loads(home.read_text()) == {"models_dir": str(tmp_path / "repo" / "models")}


@pytest.mark.parametrize(
    ("key", "value"),
    [("n_ctx", "many"), ("n_ctx", "1"), ("mmap", "maybe"), ("kv_type", "q3"), ("model", " ")],
)
def test_a_wrong_value_changes_nothing(home: Path, key: str, value: str) -> None:
    home.parent.mkdir(parents=True)
    home.write_text("n_threads = 1 # kept\n")
    result = run("set", key, value)
    assert result.exit_code == 2
    assert key in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert home.read_text() == "n_threads = 1 # kept\n"


def test_a_key_is_read_from_standard_input_and_never_shown(home: Path) -> None:
    result = run("set", "api_key", "-", text="s3cret\n")
    assert result.exit_code == 0
    assert tomllib.loads(home.read_text()) == {"api_key": "s3cret"}
    assert "s3cret" not in result.output
    assert "s3cret" not in run("show").output
    assert "s3cret" not in run("show", "--json").output


def test_a_file_that_is_not_toml_is_left_alone(home: Path) -> None:
    home.parent.mkdir(parents=True)
    home.write_text("n_ctx = = 1\n")
    result = run("set", "n_ctx", "8192")
    assert result.exit_code == 2
    assert "is not valid TOML" in result.stderr
    assert home.read_text() == "n_ctx = = 1\n"


def test_a_setting_is_never_put_into_a_table(home: Path) -> None:
    home.parent.mkdir(parents=True)
    home.write_text("[table]\nx = 1\n")
    result = run("set", "n_ctx", "8192")
    found = tomllib.loads(home.read_text())
    assert found.get("n_ctx") == 8192 if result.exit_code == 0 else found == {"table": {"x": 1}}


def test_a_link_stays_a_link(home: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("n_ctx = 4096\n")
    home.parent.mkdir(parents=True)
    home.symlink_to(real)
    assert run("set", "n_ctx", "8192").exit_code == 0
    assert home.is_symlink()
    assert real.read_text() == "n_ctx = 8192\n"


def test_a_write_that_fails_leaves_the_old_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.parent.mkdir(parents=True)
    home.write_text("n_ctx = 4096\n")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = run("set", "n_ctx", "8192")
    assert result.exit_code == 2
    assert "cannot be written: No space left on device" in result.stderr
    assert home.read_text() == "n_ctx = 4096\n"
    assert [p.name for p in home.parent.iterdir()] == [home.name]


def test_what_is_set_but_not_in_force_is_said(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTSPEC_N_CTX", "4096")
    result = run("set", "n_ctx", "8192")
    assert result.exit_code == 0
    assert "another value is in force, from: environment AGENTSPEC_N_CTX" in result.stderr


@pytest.mark.parametrize(
    "key", [*sorted(name for name, rule in RULES.items() if not rule.project), "keys", "tools"]
)
def test_a_repository_is_refused_in_one_line(tmp_path: Path, key: str) -> None:
    project = tmp_path / "repo" / PROJECT_FILE
    project.write_text(f'{key} = "x"\n')
    result = run("show")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert str(project) in result.stderr
    assert key in result.stderr
    # the user's own file can still be found and changed
    assert run("path").exit_code == 0
    assert run("set", "n_ctx", "8192").exit_code == 0


def test_path_names_all_places_as_json(home: Path, tmp_path: Path) -> None:
    data = json.loads(run("path", "--json").stdout)
    assert data["user"] == str(home)
    assert (data["user_exists"], data["project"]) == (False, None)
    (tmp_path / "repo" / PROJECT_FILE).touch()
    data = json.loads(run("path", "--json").stdout)
    assert data["project"] == str(tmp_path / "repo" / PROJECT_FILE)


def test_the_variable_names_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.toml"
    monkeypatch.setenv("AGENTSPEC_CONFIG", str(other))
    assert run("path").stdout.strip() == str(other)
    assert run("set", "n_ctx", "8192").exit_code == 0
    assert other.read_text() == "n_ctx = 8192\n"
