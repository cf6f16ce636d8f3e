from __future__ import annotations

import json
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from agentspec.assistant import history
from agentspec.assistant.errors import RefusedError
from agentspec.assistant.session_log import SessionLog, project_folder, sessions


def filled(project: Path, *texts: str) -> SessionLog:
    log = SessionLog.new(project, model="m", root="/r")
    for text in texts:
        log.message(history.user(text), 1)
        log.message(history.assistant(f"re: {text}"), 1)
    return log


def test_a_session_is_continued(tmp_path: Path) -> None:
    log = filled(tmp_path, "first\n question")
    log.close()
    again = SessionLog.latest(tmp_path)
    assert (again.id, again.note) == (log.id, "")
    assert again.messages == log.messages
    again.message(history.user("more"), 2)
    again.close()
    assert len(SessionLog.resume(tmp_path, log.id[:17]).messages) == 3


def test_the_list_of_sessions(tmp_path: Path) -> None:
    assert sessions(tmp_path) == []
    filled(tmp_path, "old").close()
    time.sleep(0.01)
    new = filled(tmp_path, "a  new\none")
    SessionLog.new(tmp_path).close()  # nothing was said in it
    (tmp_path / "sessions" / "junk").mkdir()
    found = sessions(tmp_path)
    assert [info.title for info in found] == ["a new one", "old"]
    assert (found[0].id, found[0].messages, found[0].model) == (new.id, 2, "m")


@pytest.mark.parametrize("torn", [b'{"kind": "mess', b'{"kind"}\n', b"\xff\n", b"[]\n", b"{"])
def test_a_torn_last_line_is_dropped_with_a_note(tmp_path: Path, torn: bytes) -> None:
    log = filled(tmp_path, "question")
    log.close()
    path = log.folder / "messages.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    again = SessionLog.resume(tmp_path, log.id)
    assert again.messages == log.messages
    assert "torn" in again.note
    assert path.read_bytes() == whole
    again.message(history.user("more"), 2)
    again.close()
    assert SessionLog.resume(tmp_path, log.id).messages[-1] == history.user("more")


def test_a_damaged_record_in_the_middle_costs_that_one_alone(tmp_path: Path) -> None:
    log = filled(tmp_path, "one", "two")
    log.close()
    path = log.folder / "messages.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\0" + lines[2], *lines[3:]]))
    before = path.read_bytes()
    again = SessionLog.resume(tmp_path, log.id)
    assert again.messages == [log.messages[0], *log.messages[2:]]
    assert "1 damaged" in again.note
    assert path.read_bytes() == before


def test_any_cut_of_the_file_gives_whole_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    log = filled(tmp_path, "é\u2028x", "two")
    log.close()
    path = log.folder / "messages.jsonl"
    data = path.read_bytes()
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        again = SessionLog(tmp_path, log.id)
        n = max(0, data[:cut].count(b"\n") - 1)
        assert again.messages == log.messages[:n]
        again.close()
        path.unlink()


def test_each_message_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SessionLog.new(tmp_path)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    log.message(history.user("x"), 1)
    path = log.folder / "messages.jsonl"
    assert synced == [path.stat().st_size]
    assert json.loads(path.read_bytes().splitlines()[-1])["message"] == history.user("x")


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SessionLog.new(tmp_path)
    before = (log.folder / "messages.jsonl").read_bytes()
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return real(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(RefusedError, match="No space"):
        log.message(history.user("x"), 1)
    assert (log.folder / "messages.jsonl").read_bytes() == before


def test_one_process_at_a_time(tmp_path: Path) -> None:
    log = filled(tmp_path, "x")
    with pytest.raises(RefusedError, match="another process"):
        SessionLog.resume(tmp_path, log.id)


@pytest.mark.parametrize("id_", ["", "nope", "../../etc", "2"])
def test_ids_that_name_no_session(tmp_path: Path, id_: str) -> None:
    filled(tmp_path, "x").close()
    filled(tmp_path, "y").close()
    with pytest.raises(RefusedError, match=r"session"):
        SessionLog.resume(tmp_path, id_)
    with pytest.raises(RefusedError):
        SessionLog(tmp_path, id_)
    with pytest.raises(RefusedError, match="no session"):
        SessionLog.latest(tmp_path / "empty")


def test_compacted_messages_are_those_to_go_on_from(tmp_path: Path) -> None:
    log = filled(tmp_path, "question")
    log.replaced([history.user("short")])
    log.message(history.assistant("ok"), 2)
    log.close()
    again = SessionLog.resume(tmp_path, log.id)
    assert again.messages == [history.user("short"), history.assistant("ok")]
    assert "question" in again.export()
    assert "compacted" in again.export()


def test_export_shows_calls_and_results(tmp_path: Path) -> None:
    log = SessionLog.new(tmp_path)
    log.message({"role": "system", "content": "hidden"}, 0)
    log.message(history.assistant("Reading.", "", [("1", "read_file", '{"path": "a"}')]), 1)
    log.message(history.result("1", "read_file", "```\nx\n```"), 1)
    text = log.export()
    assert "hidden" not in text
    assert "## Assistant\n\nReading.\n\n**read_file**\n\n```\n" in text
    assert "````\n```\nx\n```\n````" in text


def test_a_project_has_a_folder_of_its_own(tmp_path: Path) -> None:
    one, two = (project_folder(Path(f"/x/{n}/my proj"), tmp_path) for n in "ab")
    assert one != two
    assert one.parent == tmp_path
    assert one.name.startswith("my-proj-")
    assert project_folder(Path("/"), tmp_path).name.startswith("root-")


def test_sessions_are_private(tmp_path: Path) -> None:
    log = filled(tmp_path / "p", "x")
    assert log.folder.stat().st_mode & 0o077 == 0
    assert (log.folder / "messages.jsonl").stat().st_mode & 0o077 == 0


def test_the_requests_of_a_session(tmp_path: Path) -> None:
    with closing(SessionLog.new(tmp_path)) as log:
        log.message(
            {"role": "user", "content": "The user ran `ls`: …\n\nfix\nit"}, 1, "fix\x1b[2J\nit"
        )
        log.message({"role": "assistant", "content": "Done."}, 1)
        log.message(history.unreadable("json"), 1)
        log.message({"role": "user", "content": "x" * 200}, 2)
        assert log.requests() == [(1, "fix it"), (2, "x" * 80)]
    (info,) = sessions(tmp_path)
    assert (info.turns, info.last) == (2, "x" * 80)
