"""A workspace as a corpus: it follows the files, keeps sessions, and never ends an answer."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from agentspec.context import library as module
from agentspec.context.library import Library
from agentspec.context.store import StoredIndex
from agentspec.errors import InvalidRequestError
from agentspec.testing.scripted import ScriptedTokenizer

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs openat")

TOKENIZER = ScriptedTokenizer(260, special={256: "<|im_start|>"})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.py").write_text("print('one')\n")
    return tmp_path / "work"


def opened(root: Path, clock: Clock | None = None) -> Library:
    cache = root.parent / "cache"
    return Library(root, TOKENIZER, identity="x", directory=cache, clock=clock or Clock())


def found(library: Library, text: str) -> list[str]:
    """Sources of the places behind the longest match of a text that match all of it."""
    query = list(text.encode())
    places = library.corpus.index.places(query)
    return [library.corpus.name(place) for place, length in places if length == len(query)]


def test_files_are_found_under_their_names(root: Path) -> None:
    assert found(opened(root), "print('o") == ["file:a.py"]


def test_marks_in_a_file_are_plain_text(root: Path) -> None:
    (root / "a.py").write_text("print('<|im_start|>')\n")
    library = opened(root)
    assert max(library.corpus.index.tokens) < 256
    assert found(library, "<|im_") == ["file:a.py"]


def test_changes_are_followed_every_few_seconds(root: Path) -> None:
    clock = Clock()
    library = opened(root, clock)
    (root / "b.py").write_text("import that\n")
    library.refresh()
    assert not found(library, "import t")
    clock.now = 6.0
    library.refresh()
    assert found(library, "import t") == ["file:b.py"]


def test_files_left_for_want_of_time_are_taken_up_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_FIRST_SECONDS", 0.0)
        library = opened(root)
    assert not found(library, "print('o")
    library.refresh()
    assert found(library, "print('o")


def test_a_session_is_there_the_next_time(root: Path) -> None:
    opened(root).keep(list(b"said before"))
    assert [name[:8] for name in found(opened(root), "said be")] == ["session:"]


def test_sessions_that_begin_alike_are_both_kept(root: Path) -> None:
    instructions = list(b"the same long instructions " * 20)
    opened(root).keep([*instructions, *b"first task"])
    opened(root).keep([*instructions, *b"second task"])
    library = opened(root)
    assert found(library, "first t")
    assert found(library, "second t")


def test_an_empty_session_is_none(root: Path) -> None:
    opened(root).keep([])
    assert found(opened(root), "print('o") == ["file:a.py"]


def test_a_workspace_that_goes_away_leaves_an_empty_corpus(root: Path) -> None:
    clock = Clock()
    library = opened(root, clock)
    shutil.rmtree(root)
    clock.now = 6.0
    library.refresh()
    assert not found(library, "print('o")
    library.keep([1, 2, 3])


def test_a_place_that_is_no_folder_is_refused(root: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no directory"):
        opened(root / "a.py")


def test_without_a_place_to_keep_it_the_index_is_used_all_the_same(root: Path) -> None:
    (root.parent / "cache").write_text("a file where a folder should be")
    library = opened(root)
    assert found(library, "print('o")
    library.keep([1, 2, 3])


def test_a_file_that_the_tokenizer_refuses_costs_only_itself(root: Path) -> None:
    class Picky(ScriptedTokenizer):
        def encode(self, text: str) -> list[int]:
            if "odd" in text:
                raise InvalidRequestError("no ids for that")
            return super().encode(text)

    (root / "b.py").write_text("odd\n")
    library = Library(root, Picky(260), identity="y", directory=root.parent / "cache")
    assert found(library, "print('o") == ["file:a.py"]


def test_what_fails_is_said_once_and_ends_no_answer(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    library = opened(root, clock)

    def fails(*args: object, **options: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(StoredIndex, "refresh", fails)
    with caplog.at_level(logging.WARNING):
        for clock.now in (6.0, 12.0):
            library.refresh()
        library.keep([1 << 20])  # no id of this vocabulary
    assert len(caplog.messages) == 1
    assert "no room" in caplog.text
    assert found(library, "print('o")


def test_an_interrupt_is_no_failure(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = opened(root)

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StoredIndex, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        library.keep([1, 2, 3])
