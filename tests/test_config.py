from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.config import PROJECT_FILE, RULES, Settings, load_settings
from agentspec.errors import ConfigError


def project(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / PROJECT_FILE).write_text(text, encoding="utf-8")
    return folder


def user(folder: Path, text: str) -> dict[str, str]:
    path = folder / "user.toml"
    path.write_text(text, encoding="utf-8")
    return {"AGENTSPEC_CONFIG": str(path)}


def refusal(overrides: dict[str, object], env: dict[str, str]) -> str:
    """What load_settings says against the values; nothing when it takes them."""
    try:
        load_settings(overrides, project_dir=Path("/nowhere"), env=env)
    except ConfigError as error:
        return str(error)
    return ""


def test_every_setting_has_a_rule_and_its_default_obeys_it() -> None:
    names = {f.name for f in fields(Settings)} - {"origins"}
    assert names == set(RULES)
    defaults = {name: getattr(Settings(), name) for name in names}
    assert load_settings(defaults, project_dir=Path("/nowhere"), env={}) == Settings()


def test_each_source_beats_the_next(tmp_path: Path) -> None:
    folder = project(tmp_path / "repo", "n_ctx = 3000\nn_batch = 30\nmax_tokens = 3\n")
    env = user(tmp_path, "n_ctx = 2000\nn_batch = 20\nmax_tokens = 2\nn_threads = 2\n")
    env |= {"AGENTSPEC_N_CTX": "4000", "AGENTSPEC_N_BATCH": "40"}
    got = load_settings({"n_ctx": 5000, "max_tokens": None}, project_dir=folder, env=env)
    assert (got.n_ctx, got.n_batch, got.max_tokens, got.n_threads) == (5000, 40, 3, 2)
    assert got.kv_type == "f16"
    assert got.origins["n_ctx"] == "flag"
    assert got.origins["n_batch"] == "environment AGENTSPEC_N_BATCH"
    assert got.origins["max_tokens"] == str(folder / PROJECT_FILE)
    assert got.origins["n_threads"] == env["AGENTSPEC_CONFIG"]
    assert got.origins["kv_type"] == "default"


def test_the_project_file_is_found_from_below_but_not_outside_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path, "n_ctx = 1000\n")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert load_settings(env={}).n_ctx == 1000
    (tmp_path / "a" / ".git").mkdir()
    assert load_settings(env={}).n_ctx == Settings().n_ctx


@pytest.mark.parametrize(
    "line",
    [
        'model = "evil.gguf"',
        'draft = "evil.gguf"',
        'models_dir = "."',
        'host = "0.0.0.0"',
        'template = "x"',
        'allow_commands = ["rm *"]',
        'api_key = "x"',
        'keys = ["x"]',
    ],
)
def test_a_repository_cannot_choose_files_hosts_or_secrets(tmp_path: Path, line: str) -> None:
    folder = project(tmp_path, line + "\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(project_dir=folder, env={})
    assert str(folder / PROJECT_FILE) in str(caught.value)
    assert line.split()[0] in str(caught.value)


def test_a_new_setting_is_closed_to_repositories_unless_it_says_otherwise() -> None:
    open_to_projects = {name for name, rule in RULES.items() if rule.project}
    assert {rule.kind for name, rule in RULES.items() if name in open_to_projects} <= {
        "int",
        "bool",
        "choice",
    }


def test_the_user_may_choose_them_and_paths_count_from_the_file(tmp_path: Path) -> None:
    env = user(tmp_path, 'model = "qwen"\nmodels_dir = "models"\n')
    got = load_settings(project_dir=tmp_path, env=env)
    assert got.model == "qwen"
    assert got.models_dir == tmp_path / "models"


def test_lists_come_from_files_and_spelled_out(tmp_path: Path) -> None:
    env = user(tmp_path, 'allow_commands = ["pytest *", " ruff check "]\n')
    got = load_settings(project_dir=tmp_path, env=env)
    assert got.allow_commands == ("pytest *", "ruff check")
    env["AGENTSPEC_ALLOW_COMMANDS"] = "make test; ls"
    assert load_settings(project_dir=tmp_path, env=env).allow_commands == ("make test", "ls")
    env["AGENTSPEC_ALLOW_COMMANDS"] = ""
    assert load_settings(project_dir=tmp_path, env=env).allow_commands == ()


def test_the_variable_of_the_models_folder(tmp_path: Path) -> None:
    got = load_settings(project_dir=tmp_path, env={"AGENTSPEC_MODELS": str(tmp_path / "m")})
    assert got.models_dir == tmp_path / "m"


@pytest.mark.parametrize(
    ("overrides", "env", "names"),
    [
        ({"n_ctz": 1}, {}, ["n_ctz", "n_ctx", "arguments"]),
        ({}, {"AGENTSPEC_MAX_TOKEN": "1"}, ["AGENTSPEC_MAX_TOKEN", "AGENTSPEC_MAX_TOKENS"]),
        ({"zzz": 1}, {}, ["zzz", "known are model"]),
        ({"n_ctx": "many"}, {}, ["n_ctx", "whole number", "'many'"]),
        ({"n_ctx": True}, {}, ["n_ctx", "True"]),
        ({"n_ctx": 4096.0}, {}, ["n_ctx", "4096.0"]),
        ({"max_tokens": -1}, {}, ["max_tokens", "from 1 to", "-1"]),
        ({"n_ctx": 10**9000}, {}, ["n_ctx", "0x"]),
        ({"exact": "true"}, {}, ["exact", "true or false"]),
        ({"kv_type": "q3"}, {}, ["kv_type", "one of f32, f16"]),
        ({"model": " "}, {}, ["model", "not empty"]),
        ({"model": "a\0b"}, {}, ["model"]),
        ({"allow_commands": "ls"}, {}, ["allow_commands", "a list of texts"]),
        ({"allow_commands": ["ls", 1]}, {}, ["allow_commands", "a list of texts"]),
        ({}, {"AGENTSPEC_ALLOW_COMMANDS": "ls;;"}, ["ALLOW_COMMANDS", "a list of texts"]),
        ({}, {"AGENTSPEC_N_CTX": "8k"}, ["AGENTSPEC_N_CTX", "'8k'"]),
        ({}, {"AGENTSPEC_EXACT": "maybe"}, ["AGENTSPEC_EXACT", "'maybe'"]),
        ({}, {"AGENTSPEC_CONFIG": "/no/such.toml"}, ["AGENTSPEC_CONFIG", "/no/such.toml"]),
    ],
)
def test_bad_values_name_their_place(
    tmp_path: Path, overrides: dict[str, object], env: dict[str, str], names: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(overrides, project_dir=tmp_path, env=env)
    message = str(caught.value)
    assert all(name in message for name in names), message
    assert "\n" not in message
    assert len(message) < 600


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("off", False)])
def test_the_environment_spells_truth_in_words(tmp_path: Path, text: str, value: bool) -> None:
    got = load_settings(project_dir=tmp_path, env={"AGENTSPEC_EXACT": text})
    assert got.exact is value


@pytest.mark.parametrize(
    "data",
    [
        b"n_ctx = ",
        b"\xff\xfe",
        b"n_ctx = " + b"9" * 5000,
        b"x = " + b"[" * 30_000,
        b"#" * 70_000,
        b"[server]\nhost = 1",
        b"n_ctx = nan",
        b'"a\\nb\\u001b[31m" = 1',
    ],
)
def test_broken_files_are_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / PROJECT_FILE).write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load_settings(project_dir=tmp_path, env={})
    assert str(tmp_path / PROJECT_FILE) in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_pipe_or_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PROJECT_FILE)
    with pytest.raises(ConfigError, match="not a regular file"):
        load_settings(project_dir=tmp_path, env={})


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.floats() | st.text()))
def test_any_override_is_taken_or_refused_with_one_line(overrides: dict[str, object]) -> None:
    assert refusal(overrides, {}).isprintable()


@given(st.sampled_from(sorted(RULES)), st.text())
def test_any_environment_is_taken_or_refused_with_one_line(key: str, value: str) -> None:
    variable = RULES[key].variable or f"AGENTSPEC_{key.upper()}"
    assert refusal({}, {variable: value}).isprintable()
