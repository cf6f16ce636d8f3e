from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.assistant.change import Change
from agentspec.assistant.changes import Journal
from agentspec.assistant.errors import ConflictError, RefusedError
from agentspec.assistant.records import Records
from agentspec.assistant.repository import Repository
from tests.assistant.killing import killed_at
from tests.clock import at_most

pytestmark = pytest.mark.program

A, B, C = b"one\r\ntwo", b"two\n", b"\xef\xbb\xbfthree\n"


class Place:
    def __init__(self, folder: Path) -> None:
        self.root, self.state = folder / "repo", folder / "state"
        self.root.mkdir()
        (self.root / "a").write_bytes(A)
        self.repository = Repository(self.root)

    def journal(self) -> Journal:
        return Journal(self.state, self.repository)

    def read(self, path: str = "a") -> bytes | None:
        file = self.root / path
        return file.read_bytes() if file.exists() else None


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    """A killed process loses nothing that was written, synced or not; a test below counts syncs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_turn_is_undone_and_made_again(place: Place) -> None:
    os.chmod(place.root / "a", 0o750)
    journal = place.journal()
    assert journal.begin_turn() == 1
    journal.apply(Change("a", A, B))
    journal.apply(Change("a", B, C))
    journal.apply(Change("new/deep/b", None, B))
    assert journal.turns() == [1]
    assert [(c.path, c.before, c.after) for c in journal.changes(1)] == [
        ("a", A, C),
        ("new/deep/b", None, B),
    ]
    assert journal.undo() == ["a", "new/deep/b"]
    assert place.read() == A
    assert sorted(os.listdir(place.root)) == ["a"]
    assert (journal.turns(), journal.undone()) == ([], [1])
    assert journal.redo() == ["a", "new/deep/b"]
    assert (place.read(), place.read("new/deep/b")) == (C, B)
    assert os.stat(place.root / "a").st_mode & 0o777 == 0o750


def test_undo_works_after_the_program_was_started_again(place: Place) -> None:
    journal = place.journal()
    journal.begin_turn()
    journal.apply(Change("a", A, B))
    journal.begin_turn()
    journal.apply(Change("b", None, B))
    journal.close()
    again = place.journal()
    assert (again.turn, again.turns(), again.notes) == (2, [1, 2], [])
    again.undo(1)
    again.close()
    third = place.journal()
    assert (third.turns(), third.undone()) == ([2], [1])
    third.redo()
    assert place.read() == B


def test_what_the_user_changed_since_is_never_overwritten(place: Place) -> None:
    journal = place.journal()
    journal.begin_turn()
    journal.apply(Change("a", A, B))
    journal.apply(Change("b", None, B))
    (place.root / "a").write_bytes(b"mine")
    with pytest.raises(ConflictError, match="since that turn: a;"):
        journal.undo()
    assert (place.read(), place.read("b")) == (b"mine", B)
    (place.root / "a").write_bytes(B)
    journal.undo()
    (place.root / "a").write_bytes(b"mine")
    with pytest.raises(ConflictError, match=": a;"):
        journal.redo()
    assert (place.read(), place.read("b")) == (b"mine", None)


def test_what_the_user_changed_within_a_turn_is_kept(place: Place) -> None:
    journal = place.journal()
    journal.begin_turn()
    journal.apply(Change("a", A, B))
    (place.root / "a").write_bytes(b"mine")
    journal.apply(Change("a", b"mine", C))
    with pytest.raises(ConflictError, match="within turn 1"):
        journal.undo()
    assert place.read() == C


def test_an_older_turn_of_another_file_can_be_undone_alone(place: Place) -> None:
    journal = place.journal()
    for path, before in (("a", A), ("b", None)):
        journal.begin_turn()
        journal.apply(Change(path, before, C))
    journal.undo(1)
    assert (place.read("a"), place.read("b")) == (A, C)


def test_an_older_turn_of_the_same_file_waits_for_the_later(place: Place) -> None:
    journal = place.journal()
    for before, after in ((A, B), (B, C)):
        journal.begin_turn()
        journal.apply(Change("a", before, after))
    with pytest.raises(ConflictError, match="later turns"):
        journal.undo(1)
    journal.undo()
    journal.undo()
    assert place.read() == A
    journal.redo()
    journal.redo()
    assert place.read() == C


def test_a_file_that_changed_since_it_was_read_is_not_written(place: Place) -> None:
    journal = place.journal()
    with pytest.raises(ConflictError, match="read it again"):
        journal.apply(Change("a", b"other", B))
    with pytest.raises(ConflictError):
        journal.apply(Change("a", None, B))
    assert place.read() == A
    assert journal.turns() == []


def test_nothing_to_undo_or_redo(place: Place) -> None:
    journal = place.journal()
    for call in (journal.undo, journal.redo):
        with pytest.raises(RefusedError, match="nothing"):
            call()
        with pytest.raises(RefusedError, match="turn 7"):
            call(7)


def test_a_new_change_after_an_undo_begins_a_new_turn(place: Place) -> None:
    journal = place.journal()
    journal.apply(Change("a", A, B))
    journal.undo()
    journal.apply(Change("a", A, C))
    assert (journal.turns(), journal.undone()) == ([2], [1])
    journal.undo()
    assert place.read() == A


def test_folders_with_files_of_others_stay(place: Place) -> None:
    journal = place.journal()
    journal.apply(Change("x/b", None, B))
    (place.root / "x" / "mine").write_text("m")
    journal.undo()
    assert os.listdir(place.root / "x") == ["mine"]


def test_one_process_at_a_time(place: Place) -> None:
    journal = place.journal()
    with pytest.raises(RefusedError, match="another process"):
        place.journal()
    journal.close()
    place.journal().close()


def test_a_damaged_journal_is_refused_before_anything_is_written(place: Place) -> None:
    journal = place.journal()
    journal.apply(Change("b", None, B))
    journal.apply(Change("a", A, C))
    kept = [p for p in (place.state / "contents").iterdir() if p.read_bytes() == A]
    kept[0].write_bytes(b"broken")
    with pytest.raises(RefusedError, match="damaged"):
        journal.undo()
    assert (place.read(), place.read("b")) == (C, B)


def test_the_journal_is_private(place: Place) -> None:
    journal = place.journal()
    journal.apply(Change("a", A, B))
    for path in [place.state, *place.state.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_everything_is_on_disk_before_the_file_is_replaced(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = place.journal()
    order: list[str] = []
    real = os.rename
    monkeypatch.setattr(
        os, "fsync", lambda fd: order.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
    )

    def rename(*args: object, **more: object) -> None:
        order.append("rename")
        real(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", rename)
    journal.apply(Change("a", A, B))
    before = order[: order.index("rename")]
    assert "contents" in before
    assert before[-2] == "journal.jsonl"
    assert before[-1].endswith("-1.part")
    assert order[order.index("rename") :] == ["rename", "repo", "journal.jsonl"]


def test_an_interrupt_while_undoing_waits_for_all_files(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = place.journal()
    journal.apply(Change("a", A, B))
    journal.apply(Change("b", None, B))
    real, calls = Repository.replace, 0

    def replace(self: Repository, *args: object, **more: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        real(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Repository, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        journal.undo()
    assert (place.read(), place.read("b")) == (A, None)
    assert journal.undone() == [1]


def test_an_interrupt_while_a_change_is_recorded_makes_none(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = place.journal()
    with monkeypatch.context() as patch:
        sync = os.fsync

        def fsync(fd: int) -> None:
            if os.readlink(f"/proc/self/fd/{fd}").endswith("journal.jsonl"):
                patch.setattr(os, "fsync", sync)
                raise KeyboardInterrupt

        patch.setattr(os, "fsync", fsync)
        with pytest.raises(KeyboardInterrupt):
            journal.apply(Change("a", A, B))
    assert place.read() == A
    journal.apply(Change("a", A, C))
    journal.close()
    again = place.journal()
    assert again.notes == []
    again.undo()
    assert place.read() == A


def test_a_disk_that_is_full_after_the_change(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = place.journal()
    real = Records.append

    def append(self: Records, line: dict[str, object]) -> None:
        if line["op"] in ("done", "undone"):
            raise RefusedError("no space")
        real(self, line)

    monkeypatch.setattr(Records, "append", append)
    journal.apply(Change("a", A, B))
    journal.apply(Change("a", B, C))
    assert journal.undo() == ["a"]
    assert place.read() == A
    monkeypatch.undo()
    journal.close()
    again = place.journal()
    assert (place.read(), again.undone()) == (A, [1])


def test_a_full_disk_leaves_the_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = place.journal()
    real, calls = os.write, 0

    def write(fd: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first is the record
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(RefusedError, match="No space"):
        journal.apply(Change("a", A, B))
    assert place.read() == A
    assert journal.turns() == []
    assert os.listdir(place.root) == ["a"]


# -- kill -9 at every call that changes the disk ----------------------------------------------


def outcomes(tmp_path: Path, before: Callable[[Place], None], act: Callable[[Place], None]) -> int:
    """Kill `act` at each step; afterwards the files are old or new, and undo leads to the old."""
    n = 0
    while True:
        folder = tmp_path / str(n)
        folder.mkdir()
        place = Place(folder)
        before(place)
        alive = not killed_at(n, partial(act, place))
        journal = place.journal()
        assert place.read() in (A, B), n
        assert place.read("x/b") in (None, C), n
        # a whole turn is old or new once the journal has been opened, or it can be undone
        while journal.turns():
            journal.undo()
        assert place.read() == A, n
        assert place.read("x/b") is None, n
        assert sorted(os.listdir(place.root)) == ["a"], n
        journal.close()
        shutil.rmtree(folder)
        n += 1
        if alive:
            return n


def changed(place: Place) -> None:
    journal = place.journal()
    journal.begin_turn()
    journal.apply(Change("a", A, B))
    journal.apply(Change("x/b", None, C))
    journal.close()


def test_killed_while_it_writes(tmp_path: Path) -> None:
    assert outcomes(tmp_path, lambda place: None, changed) > 20


def test_killed_while_it_undoes(tmp_path: Path) -> None:
    assert outcomes(tmp_path, changed, lambda place: void(place.journal().undo())) > 8


def test_killed_while_it_redoes(tmp_path: Path) -> None:
    def undone(place: Place) -> None:
        changed(place)
        journal = place.journal()
        journal.undo()
        journal.close()

    assert outcomes(tmp_path, undone, lambda place: void(place.journal().redo())) > 10


def void(_: object) -> None:
    """A call's result is not wanted."""


CONTENTS = st.none() | st.binary(max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "x/c"]), CONTENTS), max_size=6))
def test_apply_then_undo_is_identity(edits: list[tuple[str, bytes | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        journal = place.journal()
        journal.begin_turn()
        for path, after in edits:
            journal.apply(Change(path, place.read(path), after))
            assert place.read(path) == after
        states = {path: place.read(path) for path in ("a", "b", "x/c")}
        if journal.turns():
            journal.undo()
            assert place.read("a") == A
            assert (place.read("b"), place.read("x/c")) == (None, None)
            journal.redo()
            assert {path: place.read(path) for path in states} == states
        journal.close()


def test_what_was_changed_with_leave_is_changed_back_without(place: Place) -> None:
    (place.root / ".env").write_bytes(A)
    place.repository.named.add(".env")
    journal = place.journal()
    journal.apply(Change(".env", A, B))
    journal.close()
    place.repository.named.clear()
    again = place.journal()
    with pytest.raises(RefusedError, match="secrets"):
        again.apply(Change(".env", B, C))
    again.undo()
    assert place.read(".env") == A


def test_a_journal_with_a_damaged_record_is_refused_and_kept(place: Place) -> None:
    journal = place.journal()
    journal.apply(Change("a", A, B))
    journal.close()
    path = place.state / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"x" + b"".join(lines[1:]))
    before = path.read_bytes()
    with pytest.raises(RefusedError, match="damaged"):
        place.journal()
    assert path.read_bytes() == before


def patched(old: bytes, diff: str) -> bytes:
    """What `patch` makes of a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        path.write_bytes(old)
        subprocess.run(
            ["patch", "--quiet", "--binary", "--fuzz=0", str(path)],
            input=diff.encode(), check=True, capture_output=True,
        )  # fmt: skip
        return path.read_bytes()


NUMBERS = [f"line {n}\n" for n in range(60)]


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 59), max_size=4), st.lists(st.integers(0, 59), max_size=4),
    st.booleans(),
)  # fmt: skip
def test_a_diff_is_one_that_patch_takes(gone: list[int], put: list[int], end: bool) -> None:
    lines = [line for n, line in enumerate(NUMBERS) if n not in gone]
    for n in put:
        lines.insert(n, f"new {n}\n")
    old, new = "".join(NUMBERS).encode(), "".join(lines).encode()[: None if end else -1]
    if old == new:
        assert Change("f", old, new).diff == ""
        return
    assert patched(old, Change("f", old, new).diff) == new


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
def test_the_diff_of_a_very_different_file_takes_no_time() -> None:
    old = "".join(f"{n}\n" for n in range(30_000)).encode()
    new = b"0\n1\n" + "".join(f"{n * n}\n" for n in range(3, 30_000)).encode() + b"29999\n"
    with at_most(2):
        diff = Change("f", old, new).diff
    assert patched(old, diff) == new


def test_the_diff_says_where_no_newline_is() -> None:
    diff = Change("a", b"x\ny", b"x\nz\n").diff
    assert diff.splitlines() == [
        "--- a/a",
        "+++ b/a",
        "@@ -1,2 +1,2 @@",
        " x",
        "-y",
        "\\ No newline at end of file",
        "+z",
    ]
    assert Change("a", None, b"x\n").diff.startswith("--- /dev/null\n+++ b/a\n")
