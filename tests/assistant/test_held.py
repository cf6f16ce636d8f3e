from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.held import HeldFiles
from agentspec.assistant.repository import Repository


@pytest.fixture
def held(tmp_path: Path) -> HeldFiles:
    (tmp_path / "src").mkdir()
    for name in ("a.py", "src/b.py", "src/c.py", ".env"):
        (tmp_path / name).write_text(f"this is {name}\n")
    return HeldFiles(Repository(tmp_path))


def test_files_and_folders_are_added_and_dropped(held: HeldFiles) -> None:
    assert held.add("a.py") == ["a.py"]
    assert held.add("./src", editable=False) == ["src/b.py", "src/c.py"]
    assert (held.editable, held.read_only) == (["a.py"], ["src/b.py", "src/c.py"])
    with pytest.raises(RefusedError, match="read-only"):
        held.repository.check_writable("src/b.py")
    held.add("src/b.py")
    held.repository.check_writable("src/b.py")
    assert held.drop(["src/b.py"]) == ["src/b.py"]
    assert held.drop() == ["a.py", "src/c.py"]
    assert held.repository.check_writable("src/c.py")
    with pytest.raises(RefusedError, match="was not added"):
        held.drop(["a.py"])


def test_what_the_user_names_is_read_until_it_is_dropped(held: HeldFiles) -> None:
    with pytest.raises(RefusedError, match="secrets"):
        held.repository.read(".env")
    held.add(".env")
    assert held.repository.read(".env").data == b"this is .env\n"
    held.drop()
    with pytest.raises(RefusedError, match="secrets"):
        held.repository.read(".env")


def test_what_cannot_be_read_is_not_added(held: HeldFiles) -> None:
    (held.repository.root / "bin").write_bytes(b"\0")
    for path in ("none", "bin", "../x", ".git/config"):
        with pytest.raises(RefusedError):
            held.add(path)
    for n in range(60):
        (held.repository.root / "src" / f"{n}").touch()
    with pytest.raises(RefusedError, match="62 files"):
        held.add("src")
    assert held.texts() == []


def test_only_what_changed_is_told_again(held: HeldFiles) -> None:
    held.add("a.py")
    held.add("src/b.py", editable=False)
    assert held.news() == [
        "The file a.py is now:\n    1  this is a.py",
        "The file src/b.py (not to be edited) is now:\n    1  this is src/b.py",
    ]
    assert held.news() == []
    (held.repository.root / "a.py").write_text("other\n")
    assert held.news() == ["The file a.py is now:\n    1  other"]
    (held.repository.root / "a.py").write_text("third\n")
    held.seen(["a.py", "elsewhere"])
    assert held.news() == []
    (held.repository.root / "a.py").unlink()
    assert held.news() == ["The file a.py cannot be read now: a.py does not exist"]
    assert len(held.texts()) == 2
