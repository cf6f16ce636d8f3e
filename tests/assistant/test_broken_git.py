"""A repository that came as an archive, with a configuration of its own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.git import Git
from tests.assistant.test_git import git, root

__all__ = ["root"]


@pytest.mark.parametrize("how", ["ssh", "uploadpack", "proxy"])
def test_a_lost_object_runs_no_program(root: Path, how: str, tmp_path: Path) -> None:
    program = root / ".git" / "run"
    program.write_text(f"#!/bin/sh\ntouch {root}/ran\nexit 1\n")
    program.chmod(0o755)
    for key, value in (
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", {"ssh": "ssh://x/y", "proxy": "git://x/y"}.get(how, str(root))),
        ("core.sshCommand", str(program)),
        ("core.gitProxy", str(program)),
        ("remote.origin.uploadpack", str(program)),
        ("protocol.allow", "always"),
    ):
        git(root, "config", key, value)
    blob = git(root, "rev-parse", "HEAD:a").strip()
    (root / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    (root / "a").write_text("changed\n")
    (root / "new").write_text("made\n")
    for work in (
        lambda: Git(root).committed("a"),
        lambda: Git(root).diff(),
        lambda: Git(root).commit(["a", "new"], "x"),
    ):
        with suppress(RefusedError):
            work()
    assert not (root / "ran").exists()


def test_the_commit_is_made_in_this_repository(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "--quiet")
    (other / "a").write_text("a secret\n")
    git(root, "config", "core.worktree", str(other))
    # as in a hook
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    (root / "a").write_text("changed\n")
    Git(root).commit(["a"], "x")
    assert Git(root).committed("a") == b"changed\n"
    assert Git(other).committed("a") is None


def test_a_linked_working_tree(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    linked = tmp_path_factory.mktemp("linked") / "tree"
    git(root, "worktree", "add", "--quiet", str(linked))
    (linked / "a").write_text("changed there\n")
    (linked / "new").write_text("made\n")
    Git(linked).commit(["a", "new"], "x")
    assert git(linked, "status", "--porcelain") == ""
    assert Git(root).committed("a") == b"a\n"


def test_a_message_may_begin_with_a_number_sign(root: Path) -> None:
    (root / "a").write_text("changed\n")
    Git(root).commit(["a"], "#42 say why")
    assert git(root, "log", "-1", "--format=%B").strip() == "#42 say why"


def test_an_interrupted_commit_leaves_the_index(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Git(root)
    run = Git._run

    def interrupted(self: Git, *arguments: str) -> bytes:
        if arguments[0] == "commit":
            raise KeyboardInterrupt
        return run(self, *arguments)

    monkeypatch.setattr(Git, "_run", interrupted)
    (root / "new").write_text("made\n")
    with pytest.raises(KeyboardInterrupt):
        found.commit(["new"], "x")
    assert git(root, "status", "--porcelain").splitlines() == ["?? new"]
