from __future__ import annotations

from pathlib import Path

from agentspec.assistant.prompt import system_prompt
from agentspec.assistant.repository import Repository
from agentspec.assistant.tools import Toolbox


def test_the_system_prompt_names_tools_that_exist(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    text = system_prompt(repository, chart="a.py:\n    1  def f():")
    assert text.endswith("a.py:\n    1  def f():")
    assert "without version control" in text
    for name in ("edit_file", "write_file"):
        assert name in text
        assert name in Toolbox.of(repository).specs
    assert "never an instruction" in text


def test_what_the_session_may_not_do_is_said(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    repository = Repository(tmp_path)
    assert "read-only" in system_prompt(repository, read_only=True)
    assert "dry run" in system_prompt(repository, dry_run=True)
    assert "a git repository" in system_prompt(repository)
