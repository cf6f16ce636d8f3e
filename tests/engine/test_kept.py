"""Sequences on disk: found again, or a miss; never a wrong token, never a crash."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.engine.kept import Kept, SessionStore, session_key
from agentspec.engine.session import LiveSequence
from agentspec.engine.sessions import SessionPool
from agentspec.errors import BackendError, ConfigError
from agentspec.testing.scripted import ScriptedBackend, hashed_law

pytestmark = pytest.mark.program

KEY = session_key("model", "template", "")
TOKENS = list(range(200))


def backend(**options: Any) -> ScriptedBackend:
    return ScriptedBackend(hashed_law(600), 600, **options)


def pool(of: ScriptedBackend, count: int = 3) -> SessionPool:
    return SessionPool(of, count)


class Task:
    age = 0
    id = "x"
    stats: Any = None


def read(over: SessionPool, tokens: list[int]) -> None:
    task = Task()
    slot = over.choose(task, tokens)
    assert slot is not None
    over.open(slot, tokens)
    while slot.sequence.unread:
        slot.sequence.read()
    over.give_back(task)


def kept(folder: Path, *runs: list[int], key: str = KEY, **options: Any) -> SessionStore:
    store = SessionStore(folder, key, **options)
    over = pool(backend())
    for tokens in runs:
        read(over, tokens)
    over.save(store)
    return store


def test_what_was_live_is_live_again(tmp_path: Path) -> None:
    other = [9, *TOKENS]
    kept(tmp_path / "s", TOKENS, other)
    after = backend()
    again = pool(after)
    assert again.restore(SessionStore(tmp_path / "s", KEY)) == 2
    assert again.latest.sequence.tokens == other
    for slot in again.slots[:2]:
        assert after.caches[slot.sequence.seq] == slot.sequence.tokens[:-1]
    assert max(slot.sequence.reusable([*TOKENS, 5, 5]) for slot in again.slots) == 199
    if os.name != "nt":
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
        for path in (tmp_path / "s").glob("*.json"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_conversation_that_went_on_replaces_what_it_was(tmp_path: Path) -> None:
    kept(tmp_path, TOKENS)
    store = kept(tmp_path, [*TOKENS, 1, 2, 3])
    assert [len(one.tokens) for one in store.found()] == [203]
    assert len(list(tmp_path.iterdir())) == 2
    kept(tmp_path, [7, *TOKENS])
    assert len(store.found()) == 2


def test_another_model_template_or_salt_finds_nothing_and_loses_nothing(tmp_path: Path) -> None:
    kept(tmp_path, TOKENS)
    for parts in (("other", "template", ""), ("model", "x", ""), ("model", "template", "s")):
        assert pool(backend()).restore(SessionStore(tmp_path, session_key(*parts))) == 0
    assert pool(backend()).restore(SessionStore(tmp_path, KEY)) == 1
    assert session_key("ab", "c") != session_key("a", "bc")


def test_short_ones_are_not_worth_it_and_large_ones_do_not_fit(tmp_path: Path) -> None:
    kept(tmp_path, TOKENS[:20])
    assert not list(tmp_path.iterdir())
    kept(tmp_path, TOKENS, [9, *TOKENS])
    assert pool(backend(n_ctx=300)).restore(SessionStore(tmp_path, KEY)) == 1


def test_the_oldest_go_when_the_budget_is_spent(tmp_path: Path) -> None:
    kept(tmp_path, TOKENS)
    one = sum(path.stat().st_size for path in tmp_path.iterdir())
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    store = kept(tmp_path, [9, *TOKENS], budget=int(one * 1.5))
    assert [found.tokens[0] for found in store.found()] == [9]
    assert len(list(tmp_path.iterdir())) == 2


@given(data=st.data())
def test_any_damage_is_a_miss(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("s")
    kept(folder, TOKENS)
    path = data.draw(st.sampled_from(sorted(folder.glob("*.json"))))
    content = bytearray(path.read_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "empty", "swap"]))
    if how == "flip":
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content = bytearray() if how == "empty" else content[::-1]
    path.write_bytes(content)
    logging.disable(logging.WARNING)
    try:
        after = backend()
        again = pool(after)
        again.restore(SessionStore(folder, KEY))
        for slot in again.slots:
            assert after.caches[slot.sequence.seq] == slot.sequence.tokens[:-1]
            assert slot.sequence.tokens in ([], TOKENS)
    finally:
        logging.disable(logging.NOTSET)


def test_a_state_that_is_refused_or_missing_is_removed_with_one_warning(
    tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    kept(tmp_path, TOKENS, [9, *TOKENS], [8, *TOKENS])

    def refuse(self: Any, path: Path) -> int:
        seq = self.open()
        self.caches[seq] = [1, 2]
        if path.stat().st_ino % 2:
            self.drop(seq)
            raise BackendError("damaged")
        return int(seq)

    monkeypatch.setattr(ScriptedBackend, "load", refuse)
    after = backend(max_seqs=3)
    again = pool(after)
    assert again.restore(SessionStore(tmp_path, KEY)) == 0
    assert len(caplog.records) == 1
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    read(again, TOKENS)
    assert sorted(after.caches) == [0, 1, 2]


def test_what_only_has_our_name_is_not_read(tmp_path: Path) -> None:
    kept(tmp_path, TOKENS)
    for number, suffix in enumerate((".session.json", ".turns.json")):
        name = f"{KEY[:16]}-{number}"
        huge = tmp_path / f"{name}0{suffix}"
        with huge.open("wb") as file:
            file.truncate(1 << 40)  # bytes that nothing is stored of
        os.mkfifo(tmp_path / f"{name}1{suffix}")
        (tmp_path / f"{name}2{suffix}").mkdir()
        (tmp_path / f"{name}3{suffix}").symlink_to("nothing")
    store = SessionStore(tmp_path, KEY)
    assert [found.tokens for found in store.found()] == [tuple(TOKENS)]
    assert store.note() == ""
    assert not [path for path in tmp_path.iterdir() if path.is_fifo()]


def test_a_state_in_the_place_of_another_is_a_miss(tmp_path: Path) -> None:
    over = pool(Filing(hashed_law(600), 600))
    read(over, TOKENS)
    read(over, [9, *TOKENS[1:]])
    over.save(SessionStore(tmp_path, KEY))
    one, other = sorted(tmp_path.glob("*.state"))
    assert one.stat().st_size != 0
    other.write_bytes(one.read_bytes())
    found = SessionStore(tmp_path, KEY).found()
    assert [kept.state for kept in found] == [one]
    assert one.read_bytes() == " ".join(map(str, found[0].tokens[:-1])).encode()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BackendError, match="cannot keep a session"):
        kept(tmp_path / "file" / "s", TOKENS)


# -- kill -9 ---------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing that would clean up runs."""


def dying(monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], int]:
    """From the at-th call on that writes anything, each raises and does nothing."""
    calls = 0

    def guard(real: Any, half: Any = None) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls - 1 == at and half is not None:
                half(*args)
            if calls - 1 >= at:
                raise Killed
            return real(*args, **named)

        return call

    class File:
        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, data: bytes) -> int:
            def half(data: Any) -> None:
                self._file.write(bytes(data)[: len(data) // 2])
                self._file.flush()

            return int(guard(self._file.write, half)(data))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    fdopen = os.fdopen
    monkeypatch.setattr(os, "fdopen", lambda *args: File(fdopen(*args)))
    for name in ("replace", "unlink", "fsync"):
        monkeypatch.setattr(os, name, guard(getattr(os, name)))
    monkeypatch.setattr(Path, "unlink", guard(Path.unlink))
    return lambda: calls


class Filing(ScriptedBackend):
    """Writes its states as llama.cpp's backend does."""

    def save(self, seq: int, path: Path) -> None:
        from agentspec.files import replacing

        with replacing(path) as file:
            file.write(" ".join(map(str, self.caches[seq])).encode())


@pytest.mark.parametrize("at", range(16))
def test_killed_at_any_write_the_next_start_has_one_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    longer = [*TOKENS, 1, 2, 3]
    over = pool(Filing(hashed_law(600), 600))
    read(over, TOKENS)
    store = SessionStore(tmp_path, KEY)
    over.save(store)
    read(over, longer)
    with monkeypatch.context() as patch:
        made = dying(patch, at)
        try:
            over.save(store)
        except Killed:
            assert made() >= at
    after = backend()
    again = pool(after)
    count = again.restore(SessionStore(tmp_path, KEY))
    found = [slot.sequence.tokens for slot in again.slots if slot.sequence.cached]
    assert 1 <= count == len(found) <= 2
    assert all(tokens in (TOKENS, longer) for tokens in found)
    # what lies about is removed once it is old
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    SessionStore(tmp_path, KEY).tidy()
    assert len(list(tmp_path.iterdir())) == 2 * count


# -- engines ---------------------------------------------------------------------------------------


def test_an_engine_goes_on_after_a_restart(chat: Any, tmp_path: Path) -> None:
    law = chat.writing("abcdef")
    talk = [{"role": "user", "content": "x" * 200}]

    def engine(key: str = KEY) -> Any:
        return chat.engine(law, max_sessions=2, sessions=SessionStore(tmp_path, key))

    with engine() as first:
        first.complete(talk)
    talk += [{"role": "assistant", "content": "abcdef"}, {"role": "user", "content": "more"}]
    with engine() as second:
        again = second.complete(talk)
        assert again.usage.prompt_tokens_details.cached_tokens > 200
        assert again.text == "abcdef"
    with engine(session_key("other")) as third:
        assert third.complete(talk).usage.prompt_tokens_details.cached_tokens == 0


def test_what_was_generated_is_still_known_after_a_restart(chat: Any, tmp_path: Path) -> None:
    """Tokens that encoding would not give: their text comes back, and they are reused."""
    law = chat.writing([*b"see", 260, *b" the end"])  # 260 is " the"
    talk = [{"role": "user", "content": "x" * 200}]
    with chat.engine(law, sessions=SessionStore(tmp_path, KEY)) as first:
        answer = first.complete(talk)
        held = len(first.tokens)
    talk += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "more"}]
    with chat.engine(law, sessions=SessionStore(tmp_path, KEY)) as second:
        again = second.complete(talk)
        assert again.usage.prompt_tokens_details.cached_tokens == held - 1
    note = next(tmp_path.glob("*.turns.json"))
    for content in (b"", b"1 x\n[]", note.read_bytes()[:-1]):
        note.write_bytes(content)
        chat.engine(law, sessions=SessionStore(tmp_path, KEY))
        assert not note.exists()
    for text in ("[1]", "[[1,2]]", '[[1,"a","zz",[65],"A"]]', "{}"):
        SessionStore(tmp_path, KEY).save_note(text)
        assert not chat.engine(law, sessions=SessionStore(tmp_path, KEY))._memory._answers


# -- several processes -----------------------------------------------------------------------------


def test_what_another_removes_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    kept(tmp_path, TOKENS, [9, *TOKENS], [8, *TOKENS])
    other = SessionStore(tmp_path, KEY)
    first, second, _ = other.found()
    real = Path.is_file

    def is_file(path: Path) -> bool:
        if path == first.state:
            other.forget(first)
        return real(path)

    def load(self: Any, path: Path) -> int:
        if path == second.state:
            other.forget(second)
            raise BackendError("cannot read the saved sequence: No such file")
        return ScriptedBackend.load(self, path)

    monkeypatch.setattr(Path, "is_file", is_file)
    monkeypatch.setattr(Filing, "load", load)
    assert pool(Filing(hashed_law(600), 600)).restore(SessionStore(tmp_path, KEY)) == 1
    assert not caplog.records


def test_two_at_a_time_lose_nothing_of_each_other(chat: Any, tmp_path: Path) -> None:
    """Also not which tokens an answer had that encoding would not give."""
    law = chat.writing([*b"see", 260, *b" the end"])
    talks = [[{"role": "user", "content": letter * 200}] for letter in "xyz"]

    def engine() -> Any:
        return chat.engine(law, max_sessions=3, sessions=SessionStore(tmp_path, KEY))

    with engine() as first:
        first.complete(talks[0])
    held = []
    with engine() as second, engine() as third, engine() as gone:
        for one, talk in ((second, talks[1]), (third, talks[2]), (gone, talks[0])):
            talk.append({"role": "assistant", "content": one.complete(talk).text})
            held.append(len(one.tokens))
        gone._store = None  # killed: it keeps nothing
    with engine() as last:
        for talk, length in zip([talks[1], talks[2], talks[0]], held, strict=True):
            again = last.complete([*talk, {"role": "user", "content": "more"}])
            assert again.usage.prompt_tokens_details.cached_tokens == length - 1
    # who has read them all replaces them
    assert len(list(tmp_path.glob("*.turns.json"))) == 1
    for n in range(20):
        SessionStore(tmp_path, KEY).save_note(f"[{n}]")
    assert len(list(tmp_path.glob("*.turns.json"))) == 8


# Keeps runs of one's own, begins that it shares with others, and notes; complains to stderr.
KEEPER = """
import logging, random, sys
from pathlib import Path
sys.path.insert(0, {root!r})
logging.basicConfig()
from agentspec.engine.kept import SessionStore
from tests.engine.test_kept import KEY, TOKENS, Filing, hashed_law, pool, read
own, chance = int(sys.argv[1]), random.Random(int(sys.argv[1]))
for n in range(int(sys.argv[2])):
    store = SessionStore(Path(sys.argv[3]), KEY, budget=40_000)
    over = pool(Filing(hashed_law(600), 600))
    over.restore(store)
    assert isinstance(store.note(), str)
    for _ in range(2):
        read(over, [*TOKENS, *[chance.choice([own, 7])] * chance.randrange(9)])
        read(over, [own, *TOKENS, n])
    over.save(store)
    store.save_note(f"[[{{own}}, {{n}}]]")
    print(n, flush=True)
"""


def test_processes_keep_to_one_folder_and_one_is_killed(tmp_path: Path) -> None:
    script = KEEPER.format(root=str(Path(__file__).parents[2]))

    def keeper(own: int, rounds: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, str(own), str(rounds), str(tmp_path)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path.parent
        )

    stay, killed = keeper(1, 60), keeper(2, 100_000)
    try:
        assert killed.stdout is not None
        for _ in range(10):
            killed.stdout.readline()
        killed.kill()
        out, err = stay.communicate(timeout=120)
    finally:
        for each in (stay, killed):
            each.kill()
            each.communicate()
    assert (stay.returncode, err) == (0, "")
    assert out.split()[-1] == "59"
    store, after = SessionStore(tmp_path, KEY), backend()
    again = pool(after)
    assert again.restore(store) > 0
    for slot in again.slots:
        assert after.caches[slot.sequence.seq] == slot.sequence.tokens[:-1]
    assert [1, 59] in json.loads(store.note())
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    store.tidy()
    left = [path.name.partition(".")[2] for path in tmp_path.iterdir()]
    assert left.count("state") == left.count("session.json") == len(store.found())
    assert set(left) == {"state", "session.json", "turns.json"}


def test_sessions_are_saved_where_and_when_asked(chat: Any, tmp_path: Path) -> None:
    engine = chat.engine(chat.writing("abcdef"))
    engine.complete([{"role": "user", "content": "x" * 200}])
    with pytest.raises(ConfigError, match="sessions_dir"):
        engine.save_sessions()
    engine.save_sessions(tmp_path / "s")
    assert len(list((tmp_path / "s").iterdir())) == 3
    key = engine._session_key
    other = chat.engine(chat.writing("abcdef"), sessions=SessionStore(tmp_path / "s", key))
    assert len(other.tokens) > 200


def test_a_sequence_that_cannot_be_loaded_is_empty_and_usable(tmp_path: Path) -> None:
    over = backend(max_seqs=1)
    live = LiveSequence(over)
    (tmp_path / "a").write_text("1 2 3")
    with pytest.raises(BackendError, match="holds 3 tokens instead of 1"):
        live.load(tmp_path / "a", [1, 2])
    assert live.start([4, 5, 6]) == 0
    live.load(tmp_path / "a", [1, 2, 3, 4])
    assert live.start([1, 2, 3, 4, 5]) == 3


def test_a_state_that_another_process_removes_meanwhile_is_passed_over(tmp_path: Path) -> None:
    over = pool(Filing(hashed_law(600), 600))
    read(over, TOKENS)
    over.save(SessionStore(tmp_path, KEY))

    class Late(SessionStore):
        def found(self) -> list[Kept]:
            found = super().found()
            for kept in found:
                SessionStore(tmp_path, KEY).forget(kept)
            return found

    after = backend()
    again = pool(after)
    assert again.restore(Late(tmp_path, KEY)) == 0
    assert not any(after.caches.values())
