"""Indexes on disk: what is kept, what is made again, and what damage cannot do."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentspec.context import store as module
from agentspec.context import tokenfile
from agentspec.context.index import SEPARATOR
from agentspec.context.store import (
    IndexStore,
    StoredIndex,
    default_directory,
    tokenizer_identity,
)
from agentspec.context.tokenfile import Record
from agentspec.context.workspace import Workspace
from agentspec.errors import InvalidRequestError
from agentspec.testing.scripted import ScriptedTokenizer

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs openat")

VOCAB = 300


class Counting(ScriptedTokenizer):
    """Bytes as ids; remembers what it was asked."""

    def __init__(self, vocab: int = VOCAB) -> None:
        super().__init__(vocab)
        self.asked: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.asked.append(text)
        return list(text.encode())


class Place:
    """A repository and a store folder below one temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cache = folder / "repository", folder / "cache"
        self.root.mkdir()
        self.tokenizer = Counting()
        self.clock = 1_000_000_000

    def put(self, path: str, text: str, *, recent: bool = False) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
        if not recent:  # long enough ago that the mtime can be trusted
            self.clock += 1
            os.utime(file, (self.clock, self.clock))

    def store(self, identity: str = "t", limit: int = 1 << 20, **caps: int) -> IndexStore:
        return IndexStore(self.cache, identity, self.tokenizer, limit_bytes=limit, **caps)

    def open(self, identity: str = "t") -> StoredIndex:
        self.tokenizer.asked.clear()
        return self.store(identity).open(Workspace(self.root))

    @property
    def file(self) -> Path:
        (found,) = self.cache.glob("*" + tokenfile.SUFFIX)
        return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Place(tmp_path)


def texts(index: StoredIndex) -> dict[str, str]:
    return {name: bytes(run.tolist()).decode() for name, run in index.documents()}


# What is kept.


def test_a_file_is_tokenised_once(place: Place) -> None:
    place.put("a.py", "first")
    place.put("b/c.py", "second")
    expected = {"file:a.py": "first", "file:b/c.py": "second"}
    assert texts(place.open()) == expected
    assert sorted(place.tokenizer.asked) == ["first", "second"]
    again = place.open()
    assert texts(again) == expected
    assert place.tokenizer.asked == []
    assert all(run.dtype == np.int32 for _, run in again.documents())


def test_only_what_changed_is_tokenised_again(place: Place) -> None:
    for name in "abcd":
        place.put(name, name * 3)
    place.open()
    place.put("a", "new")  # the same size
    place.put("e", "eee")
    (place.root / "b").unlink()
    os.utime(place.root / "c", (place.clock + 5,) * 2)  # touched, not changed
    (place.root / "d").rename(place.root / "f")
    index = place.open()
    assert sorted(place.tokenizer.asked) == ["eee", "new"]
    assert list(texts(index).items()) == [
        ("file:f", "ddd"), ("file:a", "new"), ("file:e", "eee"), ("file:c", "ccc"),
    ]  # fmt: skip


def test_refresh_says_how_much_changed_and_reads_nothing_else(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put("a", "aaa")
    place.put("b", "bbb")
    index = place.open()
    monkeypatch.setattr(index.workspace, "read", None)
    assert index.refresh() == 0
    monkeypatch.undo()
    place.put("a", "new")
    place.put("c", "ccc")
    (place.root / "b").unlink()
    assert index.refresh() == 3
    assert texts(index) == {"file:a": "new", "file:c": "ccc"}


def test_a_file_changed_twice_in_one_tick_of_the_clock_is_seen(place: Place) -> None:
    place.put("a", "old", recent=True)
    before = (place.root / "a").stat()
    index = place.open()
    place.put("a", "new", recent=True)
    os.utime(place.root / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    index.refresh()
    assert texts(index) == {"file:a": "new"}


def test_nothing_is_written_when_nothing_changed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put("a", "old", recent=True)
    index = place.open()
    monkeypatch.setattr(tokenfile, "write", None)
    assert index.refresh() == 0
    index.save()


def test_the_same_content_is_tokenised_once(place: Place) -> None:
    place.put("a", "text")
    place.put("b", "text")
    assert texts(place.open()) == {"file:a": "text", "file:b": "text"}
    assert place.tokenizer.asked == ["text"]


def test_files_that_may_not_be_indexed_are_read_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put("binary", "a\0b")
    place.put("empty", "")
    index = place.open()
    assert index.documents() == []
    again = place.open()
    monkeypatch.setattr(again.workspace, "read", None)
    assert again.refresh() == 0


def test_a_deadline_leaves_the_oldest_for_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(4):
        place.put(str(i), str(i))
    slow = place.tokenizer.encode
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time, time_ns=time.time_ns)
    monkeypatch.setattr("agentspec.context.store.time", clock)

    def encode(text: str) -> list[int]:
        nonlocal now
        now += 0.06
        return slow(text)

    place.tokenizer.encode = encode  # type: ignore[method-assign]
    index = place.store().open(Workspace(place.root), seconds=0.1)
    assert list(texts(index)) == ["file:2", "file:3"]
    assert index.pending == 2
    assert index.refresh() == 2
    assert (list(texts(index)), index.pending) == ([f"file:{i}" for i in range(4)], 0)


def test_sessions_and_tool_outputs_are_kept_the_newest_last(place: Place) -> None:
    place.put("a", "aaa")
    index = place.open()
    index.add_session("1", [1, 2])
    index.add_session("2", np.array([3]))
    index.add_tool("7", [4])
    index.add_session("1", [5])
    index.save()
    found = [(name, run.tolist()) for name, run in place.open().documents()]
    assert found == [
        ("session:2", [3]), ("session:1", [5]), ("tool:7", [4]), ("file:a", list(b"aaa")),
    ]  # fmt: skip


def test_sessions_are_capped_the_newest_kept(place: Place) -> None:
    index = place.store(session_tokens=5, tool_tokens=0).open(Workspace(place.root))
    for i in range(4):
        index.add_session(str(i), [i, i])
    index.add_tool("x", [1])
    assert [name for name, _ in index.documents()] == ["session:2", "session:3"]
    index.add_session("long", range(9))
    assert [run.tolist() for _, run in index.documents()] == [[4, 5, 6, 7, 8]]


@pytest.mark.parametrize("tokens", [[VOCAB], [1, -1], [0.5], [[1]], [(1 << 32) + 1]])
def test_ids_that_are_none_are_refused(place: Place, tokens: Sequence[int]) -> None:
    index = place.open()
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        index.add_session("x", tokens)
    assert index.documents() == []


def test_a_caller_may_change_what_it_gave(place: Place) -> None:
    given = np.array([1, 2], dtype=np.int32)
    index = place.open()
    index.add_session("x", given)
    given[:] = 9
    assert index.documents()[0][1].tolist() == [1, 2]


def test_names_that_are_no_text_are_kept_and_can_be_shown(place: Place) -> None:
    path = os.path.join(os.fsencode(place.root), b"\xff\n.py")
    Path(os.fsdecode(path)).write_text("x")
    os.utime(path, (5, 5))
    place.open()
    index = place.open()
    assert place.tokenizer.asked == []
    ((name, _),) = index.documents()
    assert name == "file:\\udcff\\n.py"
    name.encode("utf-8")


# The index over it.


def test_the_index_holds_every_document_and_knows_its_source(place: Place) -> None:
    place.put("a", "abc")
    place.put("b", "xyz")
    stored = place.open()
    stored.add_session("s", [1, 2, 3])
    index = stored.index()
    assert stored.index() is index
    expected = [1, 2, 3, SEPARATOR, *b"abc", SEPARATOR, *b"xyz", SEPARATOR]
    assert index.tokens.tolist() == expected
    match = index.find(list(b"xy"))
    assert match is not None
    assert stored.source_at(match.start) == "file:b"
    assert [stored.source_at(i) for i in (0, 3, 4, 11, 12, -1)] == [
        "session:s", "session:s", "file:a", "file:b", "", "",
    ]  # fmt: skip


def test_changes_are_appended_until_half_is_waste(place: Place) -> None:
    place.put("a", "a" * 10)
    place.put("b", "b" * 10)
    stored = place.open()
    index = stored.index()
    place.put("a", "A" * 10)
    stored.refresh()
    assert stored.index() is index
    assert bytes(index.tokens[22:32].tolist()) == b"A" * 10
    assert (stored.source_at(5), stored.source_at(25)) == ("file:a", "file:a")
    place.put("a", "n" * 10)
    place.put("b", "m" * 10)
    stored.refresh()
    rebuilt = stored.index()
    assert rebuilt is not index
    assert bytes(t for t in rebuilt.tokens.tolist() if t >= 0) == b"n" * 10 + b"m" * 10
    assert stored.source_at(11) == "file:b"


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=12))
def test_any_changes_leave_every_document_findable(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int]]
) -> None:
    place = Place(tmp_path_factory.mktemp("place"))
    stored = place.open()
    for at, (name, size) in enumerate(changes):
        if size:
            place.put(name, chr(65 + at) * size)
        else:
            (place.root / name).unlink(missing_ok=True)
        stored.refresh()
        tokens = stored.index().tokens.tolist()
        live = sum(len(run) + 1 for _, run in stored.documents())
        assert len(tokens) <= max(2 * live, 1)
        for name_of, run in stored.documents():
            places = [
                i
                for i in range(len(tokens))
                if tokens[i : i + len(run) + 1] == [*run.tolist(), SEPARATOR]
            ]
            assert any(stored.source_at(i) == name_of for i in places)


def test_memory_stays_within_the_budget(place: Place) -> None:
    stored = place.open()
    run = np.random.default_rng(0).integers(0, VOCAB, 200_000)
    stored.add_session("s", run.astype(np.int32))
    stored.save()
    stored = place.open()
    n = len(stored.index())
    assert n > 199_999
    assert 4 * n < stored.nbytes <= 32 * n


# The file.


def test_only_the_owner_can_read_it(place: Place) -> None:
    place.put("a", "x")
    before = os.umask(0)
    try:
        place.open()
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(place.file.stat().st_mode) == 0o600


def test_another_tokenizer_or_workspace_has_another_file(place: Place, tmp_path: Path) -> None:
    place.put("a", "x")
    place.open("one")
    place.open("two")
    (tmp_path / "other").mkdir()
    place.store("one").open(Workspace(tmp_path / "other")).add_session("s", [1])
    place.tokenizer = Counting(VOCAB + 1)
    place.open("one")
    assert place.tokenizer.asked == ["x"]
    assert len(list(place.cache.iterdir())) == 3


def test_a_file_under_anothers_name_is_a_miss(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.put("a", "x")
    place.open("one")
    place.file.rename(place.store("two").path_of(Workspace(place.root)))
    assert texts(place.open("two")) == {"file:a": "x"}
    assert place.tokenizer.asked == ["x"]
    assert "another workspace or tokenizer" in caplog.text


def filled(place: Place) -> bytes:
    place.put("a", "abc")
    place.put("b", "defg")
    index = place.open()
    index.add_session("s", [1, 2])
    index.save()
    return place.file.read_bytes()


def sealed(meta: bytes, tokens: Sequence[int], n_tokens: int | None = None) -> bytes:
    """A file with a right checksum, whatever it says."""
    run = np.array(tokens, dtype="<i4")
    fixed = tokenfile._FIXED.pack(
        tokenfile.MAGIC, tokenfile.VERSION, len(meta), len(run) if n_tokens is None else n_tokens
    )
    return fixed + tokenfile._checksum(fixed, meta, [run]) + meta + run.tobytes()


def rows(key: str, *records: object) -> bytes:
    return json.dumps({"key": key, "records": records}).encode()


def _json(value: str) -> bytes:
    return json.dumps(value).encode()


HOSTILE: dict[str, Callable[[str], bytes]] = {
    "empty": lambda key: b"",
    "other magic": lambda key: b"PK\3\4" + bytes(100),
    "id beyond the vocabulary": lambda key: sealed(
        rows(key, ["session", "s", 1, 0, 0, ""]), [VOCAB]
    ),
    "negative id": lambda key: sealed(rows(key, ["session", "s", 1, 0, 0, ""]), [-1]),
    "negative count": lambda key: sealed(
        rows(key, ["tool", "s", -1, 0, 0, ""], ["session", "s", 2, 0, 0, ""]), [1]
    ),
    "count beyond the end": lambda key: sealed(rows(key, ["session", "s", 9, 0, 0, ""]), [1]),
    "huge count": lambda key: sealed(rows(key, ["session", "s", 10**30, 0, 0, ""]), [1]),
    "tokens of nobody": lambda key: sealed(rows(key), [1]),
    "one name twice": lambda key: sealed(
        rows(key, ["session", "s", 1, 0, 0, ""], ["session", "s", 1, 0, 0, ""]), [1, 2]
    ),
    "unknown kind": lambda key: sealed(rows(key, ["url", "s", 1, 0, 0, ""]), [1]),
    "a truth value for a count": lambda key: sealed(rows(key, ["tool", "s", True, 0, 0, ""]), [1]),
    "a float for a count": lambda key: sealed(rows(key, ["tool", "s", 1.0, 0, 0, ""]), [1]),
    "short record": lambda key: sealed(rows(key, ["tool", "s", 1]), [1]),
    "records are a mapping": lambda key: sealed(b'{"key":%s,"records":{}}' % _json(key), []),
    "meta is a list": lambda key: sealed(b"[]", []),
    "meta is no JSON": lambda key: sealed(b"{", []),
    "meta is no ASCII": lambda key: sealed(b"\xff", []),
    "meta is nested": lambda key: sealed(b"[" * 200_000, []),
    "meta with a huge number": lambda key: sealed(b"1" * 100_000, []),
    "huge length": lambda key: sealed(rows(key), [], n_tokens=1 << 61),
    "length that overflows": lambda key: sealed(rows(key), [], n_tokens=(1 << 64) - 1),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_a_miss_with_one_warning_and_is_made_again(
    place: Place, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    filled(place)
    place.file.write_bytes(HOSTILE[case](place.store()._key(Workspace(place.root))))
    with caplog.at_level(logging.WARNING):
        assert texts(place.open()) == {"file:a": "abc", "file:b": "defg"}
        assert len(caplog.records) == 1
        place.open()
    assert place.tokenizer.asked == []
    assert len(caplog.records) == 1


def test_a_damaged_file_of_an_empty_workspace_is_made_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    index = place.open()
    index.add_session("s", [1])
    index.save()
    place.file.write_bytes(b"damage")
    place.open()
    place.open()
    assert len(caplog.records) == 1


def test_a_sealed_file_is_read(place: Place) -> None:
    filled(place)
    key = place.store()._key(Workspace(place.root))
    place.file.write_bytes(sealed(rows(key, ["session", "s", 2, 0, 0, ""]), [7, 8]))
    assert place.open().documents()[0][1].tolist() == [7, 8]


@pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
def test_what_is_no_file_is_a_miss(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    whole = filled(place)
    path = place.file
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        (tmp_path / "elsewhere").write_bytes(whole)
        path.symlink_to(tmp_path / "elsewhere")
    assert texts(place.open()) == {"file:a": "abc", "file:b": "defg"}
    assert "made again" in caplog.text
    if kind == "link":
        assert (tmp_path / "elsewhere").read_bytes() == whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, str]:
    place = Place(tmp_path_factory.mktemp("whole"))
    return place.cache / "x", filled(place), place.store()._key(Workspace(place.root))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_bytes_are_a_miss_or_the_same(
    whole: tuple[Path, bytes, str], data: st.DataObject
) -> None:
    path, content, key = whole
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(damaged) - 1, 0)))
        how = data.draw(st.sampled_from(["flip", "cut", "insert", "delete", "append"]))
        if how == "flip" and damaged:
            damaged[at] ^= data.draw(st.integers(1, 255))
        elif how == "cut":
            del damaged[at:]
        elif how == "insert":
            damaged[at:at] = data.draw(st.binary(max_size=8))
        elif how == "delete":
            del damaged[at : at + 4]
        else:
            damaged += data.draw(st.binary(max_size=8))
    path.write_bytes(bytes(damaged))
    try:
        records = tokenfile.read(path, key, VOCAB, 1 << 20)
    except ValueError:
        assert damaged != content
        return
    assert [(r.kind, r.name, r.tokens.tolist()) for r in records] == [
        ("session", "s", [1, 2]), ("file", "a", list(b"abc")), ("file", "b", list(b"defg")),
    ]  # fmt: skip


def test_every_truncation_addition_and_flipped_byte_is_a_miss(
    whole: tuple[Path, bytes, str],
) -> None:
    path, content, key = whole
    for n in range(len(content)):
        flipped = bytearray(content)
        flipped[n] ^= 1 << (n % 8)
        for damaged in (content[:n], bytes(flipped), content + content[: n + 1]):
            path.write_bytes(damaged)
            with pytest.raises(ValueError):
                tokenfile.read(path, key, VOCAB, 1 << 20)


def test_another_version_is_a_miss(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(place)
    before = place.file
    monkeypatch.setattr(tokenfile, "VERSION", tokenfile.VERSION + 1)
    with pytest.raises(ValueError, match="version"):
        tokenfile.read(before, "", VOCAB, 1 << 20)


# When it cannot be written.


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_costs_one_warning(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    old = filled(place)

    def full(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    index = place.open()
    for text in ["new", "newer"]:
        place.put("a", text)
        index.refresh()
    assert texts(index)["file:a"] == "newer"
    assert len(caplog.records) == 1
    assert place.file.read_bytes() == old
    assert list(place.cache.iterdir()) == [place.file]
    monkeypatch.undo()
    index.save()  # what could not be kept then is kept now
    assert texts(place.open())["file:a"] == "newer"
    assert place.tokenizer.asked == []


def test_a_folder_that_cannot_be_made_costs_one_warning(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    place.cache = tmp_path / "file" / "below"
    place.put("a", "x")
    index = place.open()
    index.refresh()
    index.add_session("s", [1])
    index.save()
    assert [name for name, _ in index.documents()] == ["session:s", "file:a"]
    assert len([r for r in caplog.records if "cannot be kept" in r.message]) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_that_may_not_be_written_costs_one_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    filled(place)
    place.cache.chmod(0o500)
    place.put("a", "new")
    try:
        assert texts(place.open())["file:a"] == "new"
    finally:
        place.cache.chmod(0o700)
    assert len(caplog.records) == 1


def test_more_than_the_limit_is_not_kept(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.put("a", "x" * 5000)
    store = place.store(limit=1000)
    assert store.open(Workspace(place.root)).documents()
    assert "more than may be kept" in caplog.text
    assert not place.cache.exists()


# Others on the same folder.


def test_the_least_recently_used_go_first_and_never_those_in_use(
    place: Place, tmp_path: Path
) -> None:
    roots = [tmp_path / f"r{i}" for i in range(4)]
    for root in roots:
        root.mkdir()
        (root / "f").write_bytes(b"x" * 1000)
        place.store().open(Workspace(root))
    files = [place.store().path_of(Workspace(root)) for root in roots]
    each = files[0].stat().st_size
    assert 4000 < each < 5000
    for i, file in enumerate(files):
        os.utime(file, (1000 + i, 1000 + i))
    (place.cache / "notes.txt").write_bytes(bytes(50_000))
    store = place.store(limit=4 * each + 2000)
    index = store.open(Workspace(roots[0]))
    for _ in range(2):
        assert files[0].stat().st_mtime > 10_000
        os.utime(files[0], (1, 1))
        index.refresh()
    os.utime(files[0], (1, 1))  # in use, whatever its time
    store.open(Workspace(roots[2]))
    for left in ([0, 1, 2, 3], [0, 2, 3], [0, 2], [0, 2]):
        assert [i for i, file in enumerate(files) if file.exists()] == left
        index.add_session(f"{time.monotonic_ns()}", [1] * 1200)
        index.save()
    assert (place.cache / "notes.txt").exists()


def test_what_a_killed_writer_left_is_removed_when_it_is_old(place: Place) -> None:
    filled(place)
    old, new = (place.cache / f"{tokenfile.PREFIX}{name}{tokenfile.PART}" for name in "xy")
    old.touch()
    new.touch()
    os.utime(old, (1000, 1000))
    place.put("a", "changed")
    place.open()
    assert (old.exists(), new.exists()) == (False, True)


WRITER = """
import sys
import numpy as np
from pathlib import Path
from agentspec.context import tokenfile
from agentspec.context.tokenfile import Record
path, mark, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
for i in range(rounds):
    run = np.full(20_000, (mark + i) % 250, dtype=np.int32)
    tokenfile.write(path, "key", [Record("session", str(run[0]), run)], 1 << 20)
"""


def start(path: Path, mark: int, rounds: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, str(path), str(mark), str(rounds)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    return writer


def check(path: Path) -> None:
    """Raises when the file is anything but what one writer wrote in one go."""
    (record,) = tokenfile.read(path, "key", VOCAB, 1 << 20)
    assert record.tokens.tolist() == [int(record.name)] * 20_000


def test_kill_in_the_middle_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    tokenfile.write(
        path, "key", [Record("session", "7", np.full(20_000, 7, dtype=np.int32))], 1 << 20
    )
    rng = random.Random(0)
    for mark in range(8):
        writer = start(path, mark * 30, 1_000_000)
        try:
            time.sleep(rng.random() * 0.05)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
        check(path)


def test_two_writers_never_leave_a_torn_file(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    writers = [start(path, mark, 60) for mark in (0, 100)]
    seen = 0
    try:
        while any(writer.poll() is None for writer in writers):
            if path.exists():
                check(path)
                seen += 1
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    check(path)
    assert seen > 5
    assert [writer.returncode for writer in writers] == [0, 0]
    assert list(tmp_path.iterdir()) == [path]


# What it is named by.


def test_the_identity_of_a_tokenizer_follows_its_pieces() -> None:
    def identity(vocab: int, words: dict[int, bytes]) -> str:
        return tokenizer_identity(ScriptedTokenizer(vocab, words=words))

    same = identity(270, {260: b"ab"})
    assert same == identity(270, {260: b"ab"})
    assert len({same, identity(271, {260: b"ab"}), identity(270, {260: b"ac"})}) == 3


def test_everything_stays_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from platformdirs import user_cache_path

    assert default_directory().parent == user_cache_path("agentspec", appauthor=False)
    assert IndexStore(None, "t", Counting()).directory == default_directory()
    assert module.LIMIT_BYTES == 512 << 20
