from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from agentspec.assistant.decide import Refuser
from agentspec.assistant.errors import RefusedError
from agentspec.assistant.events import TurnEnded
from agentspec.assistant.open import Rules, Session, open_session
from agentspec.assistant.session_log import project_folder, sessions
from tests.assistant.killing import killed_at
from tests.assistant.scripted import ScriptedModel, calling, check


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / ".git").mkdir(parents=True)
    (root / "stock.py").write_text("def low_stock(items):\n    return items\n")
    return root


YES = Rules(yes=True)


def opened(repo: Path, model: ScriptedModel, rules: Rules = YES, **more: object) -> Session:
    return open_session(repo, model, Refuser(), rules, data=repo.parent / "data", **more)  # type: ignore[arg-type]


EDIT = ("edit_file", {"path": "stock.py", "old": "return items", "new": "return list(items)"})


def test_a_session_from_its_beginning_to_its_resumption(repo: Path) -> None:
    model = ScriptedModel(calling(EDIT), "Done.")
    with opened(repo, model) as session:
        assert "low_stock" in session.conversation.messages[0]["content"]
        session.held.add("stock.py")
        for text in session.held.news():
            session.conversation.note(text)
        *_, last = session.conversation.turn("make it a list")
        assert isinstance(last, TurnEnded)
        session.held.seen(last.changed)
        assert session.held.news() == []
        id_ = session.log.id
    assert "return list(items)" in (repo / "stock.py").read_text()
    assert "The file stock.py is now" in model.asked[0][1]["content"]
    for how in ({"latest": True}, {"resume": id_}):
        again = ScriptedModel("Yes.")
        with opened(repo, again, **how) as session:
            assert session.log.id == id_
            assert session.notes == []
            assert [m["role"] for m in session.conversation.messages][:3] == [
                "system", "user", "assistant",
            ]  # fmt: skip
            list(session.conversation.turn("and now?"))
            check(session.conversation.messages)
    with opened(repo, ScriptedModel(), latest=True) as session:
        session.journal.undo(1)
    assert (repo / "stock.py").read_text() == "def low_stock(items):\n    return items\n"


def test_a_crash_between_a_call_and_its_result(repo: Path) -> None:
    with opened(repo, ScriptedModel(calling(EDIT), "Done.")) as session:
        list(session.conversation.turn("go"))
        path = session.log.folder / "messages.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:20])
    with opened(repo, ScriptedModel("I see."), latest=True) as session:
        assert "torn" in session.notes[0]
        list(session.conversation.turn("go on"))
        check(session.conversation.messages)
        results = [m["content"] for m in session.conversation.messages if m["role"] == "tool"]
        assert "the program ended" in results[0]


def test_killed_anywhere_in_a_turn(tmp_path: Path) -> None:
    """The file is old or new, the conversation goes on, and undo leads back to the old."""
    old = "x = 1\n"
    calls = calling(("edit_file", {"path": "a.py", "old": "1", "new": "2"}))

    def work(root: Path) -> None:
        with opened(root, ScriptedModel(calls, "Done.")) as session:
            list(session.conversation.turn("go"))

    n, alive, seen = 0, False, set[str]()
    while not alive:
        root = tmp_path / str(n) / "repo"
        root.mkdir(parents=True)
        (root / "a.py").write_text(old)
        alive = not killed_at(n, partial(work, root))
        project = project_folder(root, root.parent / "data")
        assert (root / "a.py").read_text() in (old, "x = 2\n")
        found = sessions(project)
        with opened(root, ScriptedModel("Yes."), latest=bool(found)) as session:
            list(session.conversation.turn("go on"))
            check(session.conversation.messages)
            seen.add((root / "a.py").read_text())
            while session.journal.turns():
                session.journal.undo()
        assert (root / "a.py").read_text() == old
        assert os.listdir(root) == ["a.py"]
        n += 3
    assert len(seen) == 2
    assert n > 60


def test_nothing_is_kept_in_the_repository(repo: Path) -> None:
    with opened(repo, ScriptedModel(calling(EDIT), "Done.")) as session:
        list(session.conversation.turn("go"))
    assert sorted(os.listdir(repo)) == [".git", "stock.py"]
    assert os.listdir(repo / ".git") == []


def test_read_only_is_said_and_offered(repo: Path) -> None:
    model = ScriptedModel("I may not.")
    with opened(repo, model, Rules(read_only=True)) as session:
        list(session.conversation.turn("go"))
    assert "read-only" in model.asked[0][0]["content"]
    assert "edit_file" not in str(model.tools[0])


def test_a_session_without_words_leaves_nothing(repo: Path) -> None:
    with opened(repo, ScriptedModel()) as session:
        folder = session.log.folder
        assert folder.is_dir()
    assert not folder.exists()


def test_a_session_is_one_process_at_a_time(repo: Path) -> None:
    with opened(repo, ScriptedModel("a")) as session:
        list(session.conversation.turn("go"))
        with pytest.raises(RefusedError, match="another process"):
            opened(repo, ScriptedModel(), latest=True)
        with opened(repo, ScriptedModel()) as other:
            assert other.log.id != session.log.id
    with pytest.raises(RefusedError, match="no session"):
        opened(repo, ScriptedModel(), resume="19990101")


def test_a_small_context_gets_small_results(repo: Path) -> None:
    (repo / "long.txt").write_text("some words in a line\n" * 5000)
    model = ScriptedModel(calling(("read_file", {"path": "long.txt"})), "ok", n_ctx=4000)
    with opened(repo, model) as session:
        list(session.conversation.turn("read it"))
    result = model.asked[1][-1]["content"]
    assert len(result) < 3000
    assert "ask for more with first and last" in result


def test_a_conversation_that_was_cleared_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with open_session(root, ScriptedModel("Hi."), Refuser(), data=tmp_path / "data") as session:
        list(session.conversation.turn("hello"))
        session.conversation.replace(session.conversation.messages[:1])
    with open_session(
        root, ScriptedModel(), Refuser(), data=tmp_path / "data", latest=True
    ) as again:
        assert again.log.id == session.log.id
        assert "hello" in again.log.export()
