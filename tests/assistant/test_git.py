from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.git import Git


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "n")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "n@example.invalid")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    git(tmp_path, "init", "--quiet")
    for name in ("a", "b", "mine"):
        (tmp_path / name).write_text(f"{name}\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_only_the_named_files_are_committed(root: Path) -> None:
    (root / "mine").write_text("staged by the user\n")
    git(root, "add", "mine")
    (root / "a").write_text("changed\n")
    (root / "b").write_text("also by the user\n")
    (root / "new").write_text("made\n")
    found = Git(root).commit(["a", "new"], "Say why\n\n# not a comment")
    assert git(root, "show", "--name-only", "--format=%h %s", "HEAD").split() == [
        found, "Say", "why", "a", "new",
    ]  # fmt: skip
    assert git(root, "status", "--porcelain").splitlines() == [" M b", "M  mine"]


def test_nothing_of_the_repository_is_run(root: Path) -> None:
    for name in ("pre-commit", "prepare-commit-msg", "post-commit", "post-index-change"):
        hook = root / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\ntouch ran\n")
        hook.chmod(0o755)
    (root / ".git" / "run").write_text("#!/bin/sh\ntouch ran\nexit 1\n")
    (root / ".git" / "run").chmod(0o755)
    for key in ("core.fsmonitor", "diff.external", "gpg.program", "core.pager", "core.editor"):
        git(root, "config", key, str(root / ".git" / "run"))
    git(root, "config", "commit.gpgsign", "true")
    (root / "a").write_text("changed\n")
    assert "+changed" in Git(root).diff()
    Git(root).commit(["a"], "x")
    assert not (root / "ran").exists()


def test_names_are_not_patterns(root: Path) -> None:
    for name in ("*", ":(top)", "--all", "-x"):
        (root / name).write_text("odd\n")
    (root / "a").write_text("changed\n")
    Git(root).commit(["*", ":(top)", "--all", "-x"], "odd names")
    assert git(root, "status", "--porcelain").splitlines() == [" M a"]


def test_what_git_refuses_leaves_the_index(root: Path) -> None:
    (root / "new").write_text("made\n")
    (root / ".git" / "HEAD.lock").touch()
    with pytest.raises(RefusedError, match="git refused") as caught:
        Git(root).commit(["new"], "x")
    assert "\n" not in str(caught.value)
    (root / ".git" / "HEAD.lock").unlink()
    assert git(root, "status", "--porcelain").splitlines() == ["?? new"]
    for paths, message in (([], "x"), (["a"], " ")):
        with pytest.raises(RefusedError):
            Git(root).commit(paths, message)


def test_files_with_changes_of_the_user(root: Path) -> None:
    made: dict[str, list[tuple[bytes | None, bytes | None]]] = {
        "a": [(b"a\r\n", b"a2\r\n"), (b"a2\n", b"a3\n")],
        "b": [(b"edited by the user\n", b"b2\n")],
        "new": [(None, b"n\n")],
        "mine": [(None, b"x")],
    }
    now: dict[str, bytes | None] = {"a": b"a3\n", "b": b"b2\n", "new": b"n\n", "mine": b"x"}
    assert Git(root).mixed(made, now) == ["b", "mine"]
    assert Git(root).committed("a") == b"a\n"
    assert Git(root).committed("new") is None


@pytest.mark.parametrize(
    ("committed", "steps", "now", "mixed"),
    [
        ("a", "ab", "b", False),
        ("b", "ab bc", "c", False),  # the first change was committed
        ("a", "ab", "c", True),  # edited behind it
        ("a", "ab cd", "d", True),  # edited between
        ("c", "ab cd", "d", False),  # edited and committed between
        ("x", "ab bc", "c", True),
        ("c", "ab bc", "c", True),
    ],
)
def test_what_leads_from_the_last_commit_to_now(
    root: Path, committed: str, steps: str, now: str, mixed: bool
) -> None:
    (root / "f").write_text(committed)
    git(root, "add", "f")
    git(root, "commit", "--quiet", "-m", "f")
    made = [(step[:1].encode(), step[1:].encode()) for step in steps.split()]
    assert Git(root).mixed({"f": made}, {"f": now.encode()}) == ["f"] * mixed


def test_a_folder_without_git(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"(?i)not a git repository"):
        Git(tmp_path).diff()
