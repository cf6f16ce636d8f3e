"""Logs that are damaged, and files that are none: sessions, or one line that says what is wrong."""

from __future__ import annotations

import copy
import gzip
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentspec.backends.base import Tokenizer
from agentspec.errors import AgentspecError, InvalidRequestError
from agentspec.replay import recording
from agentspec.replay.inputs import read_sessions
from agentspec.replay.logs import FORMS, Logs, detect, read_logs
from agentspec.replay.recording import Call, Recording, read_recordings, trace_files
from agentspec.replay.store import ArrayStore
from agentspec.testing.scripted import ScriptedTokenizer
from tests.replay.test_inputs import Bytes
from tests.replay.test_logs import (
    OPENCODE,
    claude,
    document,
    item,
    lines,
    message,
    read,
    result,
    text,
    use,
)

SESSION = [claude("user", "a", None, "hi"), claude("assistant", "b", "a", "hello")]
CLAUDE = [
    {"type": "summary", "summary": "a title", "leafUuid": "f"},
    claude("user", "a", None, "fix it"),
    claude("assistant", "b", "a", [text("I edit."), use("t1")]),
    claude("user", "c", "b", [result("t1", [text("done")])]),
    claude("assistant", "d", "c", "Fixed."),
]
CODEX = [
    {"timestamp": "t", "type": "session_meta", "payload": {"id": "1", "base_instructions": "x"}},
    item(**message("user", "fix it")),
    item(**message("assistant", "I look.")),
    item(type="function_call", name="shell", arguments='{"command": ["ls"]}', call_id="c1"),
    item(type="function_call_output", call_id="c1", output="a.py"),
    {"type": "compacted", "payload": {"message": "in short"}},
    item(**message("assistant", "Done.")),
]
SWE = {
    "trajectory": [{"response": "ls", "observation": "a.py", "query": []}],
    "history": [
        {"role": "user", "content": "fix it"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"function": {"name": "bash", "arguments": '{"command": "ls"}'}}],
        },
    ],
    "info": {"exit_status": "submitted"},
    "trajectory_format": "mini-swe-agent-1.1",
}
BENCH = {"sessions": [{"id": "rename", "plain": [{"text": "the answer"}]}]}
SAMPLES: dict[str, tuple[str, Any]] = {
    "claude-code": ("s.jsonl", CLAUDE),
    "codex": ("s.jsonl", CODEX),
    "opencode": ("s.json", {"info": {"id": "ses_1"}, "messages": OPENCODE}),
    "swe-agent": ("s.traj", SWE),
    "bench": ("s.json", BENCH),
}
NOTHING_KEPT = ArrayStore(None)


class Strict(ScriptedTokenizer):
    """Refuses what is not valid Unicode, as the tokenizers of models do."""

    def encode(self, text: str) -> list[int]:
        try:
            return super().encode(text)
        except UnicodeEncodeError:
            raise InvalidRequestError("the text has a lone surrogate") from None


class Vocabulary(Bytes):
    def __call__(self) -> Tokenizer:
        special = {256: "<|im_start|>", 257: "<|im_end|>"}
        return Strict(258, special=special, eos_ids=frozenset({257}))


VOCABULARY = Vocabulary(Path("unused"))
unix = pytest.mark.skipif(os.name == "nt", reason="no such files there")


def raw_of(name: str, data: Any) -> bytes:
    rows = data if name.endswith(".jsonl") and isinstance(data, list) else [data]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# -- how a file is written --------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FORMS if name != "bench"])
def test_a_mark_of_byte_order_costs_nothing(tmp_path: Path, name: str) -> None:
    file, data = SAMPLES[name]
    (tmp_path / file).write_bytes(b"\xef\xbb\xbf" + raw_of(file, data))
    logs = read(tmp_path / file)
    assert logs.recordings
    assert not [note for note in logs.notes if "JSON" in note]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_an_export_through_a_shell_of_windows(tmp_path: Path, encoding: str) -> None:
    file, data = SAMPLES["opencode"]
    (tmp_path / file).write_bytes(json.dumps(data, ensure_ascii=False).encode(encoding))
    assert [found.id for found in read(tmp_path / file).recordings] == ["ses_1"]


def test_zeros_that_a_crash_left(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    first, second = (json.dumps(one).encode() + b"\n" for one in SESSION)
    path.write_bytes(first + b"\0" * 500 + second + b"\0" * 50 + b"\n" + b"\0" * 9)
    logs = read(path)
    assert [said.content for said in logs.recordings[0].messages] == ["hi", "hello"]
    assert not logs.notes


def test_a_trace_with_a_mark_of_byte_order(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(said).encode() + b"\n")
    assert read_recordings([path])[0].messages[1].content == "b"


@pytest.mark.parametrize("name", FORMS)
def test_every_beginning_of_a_log(tmp_path: Path, name: str) -> None:
    file, data = SAMPLES[name]
    raw = raw_of(file, data)
    for end in range(0, len(raw), 7):
        (tmp_path / file).write_bytes(raw[:end])
        told(lambda: read_logs([tmp_path / file], FORMS[name]), file)
        told(lambda: read_sessions([tmp_path / file], VOCABULARY, NOTHING_KEPT), file)


def half(path: Path) -> None:
    with path.open("a") as file:
        file.write("{half")


def told(run: Callable[[], Any], name: str) -> Any:
    """What it returns, or None after an error of ours on one line that names the file."""
    try:
        return run()
    except AgentspecError as error:
        said = str(error)
    assert "\n" not in said
    assert name in said or "no session" in said
    return None


# -- what a name stands for -------------------------------------------------------------------


@unix
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s.jsonl")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(detect(tmp_path / "s.jsonl")))
    thread.daemon = True
    thread.start()
    thread.join(5)
    if thread.is_alive():
        os.close(os.open(tmp_path / "s.jsonl", os.O_WRONLY | os.O_NONBLOCK))
    assert found == [None]
    with pytest.raises(InvalidRequestError, match=r"cannot be opened \(1\)"):
        read_logs([tmp_path / "s.jsonl"], FORMS["codex"])
    # nor is one that lies among traces
    document(tmp_path / "t.json", [{"role": "user", "content": "a"}])
    assert trace_files([tmp_path]) == [tmp_path / "t.json"]


def test_folders_that_are_called_like_logs(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.json", "c.traj", "d.jsonl.gz"):
        (tmp_path / "logs" / name).mkdir(parents=True)
    lines(tmp_path / "logs" / "a.jsonl" / "s.jsonl", *SESSION)
    assert [found.where for found in read(tmp_path / "logs").recordings] == ["a.jsonl/s.jsonl"]
    document(tmp_path / "traces" / "t.json", [{"role": "user", "content": "a"}])
    (tmp_path / "traces" / "u.jsonl.gz").mkdir()
    assert trace_files([tmp_path / "traces"]) == [tmp_path / "traces" / "t.json"]


def test_where_one_stands_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my-logs"
    half(lines(folder / "s.jsonl", *SESSION))
    monkeypatch.chdir(folder)
    assert read(Path()).notes == ["left out of my-logs: lines that are not JSON (1)"]
    with pytest.raises(InvalidRequestError, match="my-logs holds no conversation of codex"):
        read_logs([Path()], FORMS["codex"])


@unix
def test_names_that_are_no_text_or_steer_a_terminal(tmp_path: Path) -> None:
    for name in (b"lo\xffgs", b"lo\x1b[31mgs", b"lo\ngs"):
        folder = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name)))
        try:
            folder.mkdir()
        except OSError:
            pytest.skip("the file system does not take such names")
        half(lines(folder / folder.name / f"{folder.name}.jsonl", *SESSION))
        logs = read(folder)
        (found,) = logs.recordings
        for shown in (*logs.notes, found.id, found.where):
            shown.encode()
        assert all(note.isprintable() for note in logs.notes)
        sessions = read_sessions([folder], VOCABULARY, NOTHING_KEPT)
        sessions[0].id.encode()
    trace = Path(os.fsdecode(os.fsencode(tmp_path) + b"/t\xff.jsonl"))
    trace.write_text('[{"role": "assistant", "content": "b"}]')
    (found,) = read_recordings([trace])
    (found.source + found.id).encode()


def test_a_folder_that_nobody_may_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines(tmp_path / "a" / "s.jsonl", *SESSION)
    (tmp_path / "b").mkdir()
    scandir = os.scandir

    def guarded(path: Any = ".") -> Any:
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert read(tmp_path).notes == [
        f"left out of {tmp_path.name}: folders that cannot be opened (1)"
    ]

    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", denied)
    monkeypatch.setattr(Path, "iterdir", denied)
    assert detect(tmp_path / "b") is None
    with pytest.raises(InvalidRequestError, match="Permission denied"):
        trace_files([tmp_path / "b"])


@pytest.mark.skipif(sys.platform != "linux", reason="a file whose reading fails")
def test_a_file_whose_reading_fails() -> None:
    path = Path("/proc/self/mem")
    assert detect(path) is None
    for name in FORMS:
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            read_logs([path], FORMS[name])
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_recordings([path])


def test_a_file_that_unpacks_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_FILE", 1 << 20)
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" * (64 << 20)))
    with pytest.raises(InvalidRequestError, match=r"t\.jsonl\.gz has more than 1 MiB"):
        read_recordings([path])
    path.write_bytes(gzip.compress(b"[]")[:-3])
    with pytest.raises(InvalidRequestError, match=r"t\.jsonl\.gz cannot be read"):
        read_recordings([path])


def test_thousands_of_files(tmp_path: Path) -> None:
    for n in range(2000):
        info = {"id": f"m{n:04}", "role": "user" if n % 2 else "assistant", "time": {"created": n}}
        document(tmp_path / "message" / "ses" / f"m{n:04}.json", info)
        document(tmp_path / "part" / f"m{n:04}" / "p.json", text(f"say {n}"))
    (found,) = read(tmp_path).recordings
    assert len(found.messages) == 2000


# -- what is in it ----------------------------------------------------------------------------


def test_parents_that_go_round_in_circles(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s.jsonl",
        claude("user", "a", "d", "one"),
        claude("assistant", "b", "b", "1"),
        claude("user", "c", "b", "two"),
        claude("assistant", "d", "c", "2"),
        claude("user", "c", "d", "three"),
        claude("assistant", "b", "c", "3", answer="msg_other"),
    )
    contents = [[said.content for said in one.messages] for one in read(path).recordings]
    assert contents == [["one", "1", "two", "2", "three", "3"]]


@pytest.mark.parametrize("depth", [50, 150, 320, 700, *range(880, 1000, 6)])
@pytest.mark.parametrize("form", ["claude-code", "codex", "text", "id", "trace", "tools"])
def test_what_is_nested_deeply(tmp_path: Path, form: str, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    said = '{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"'
    called = f'{said}, "tool_calls": [{{"name": "f", "arguments": {{"x": {deep}}}}}]}}'
    rows = {
        "claude-code": [
            json.dumps(SESSION[0]),
            json.dumps(claude("assistant", "b", "a", [use("t", x="DEEP")])),
        ],
        "codex": [json.dumps(CODEX[1]), json.dumps(item(type="function_call", name="f",
                                                        arguments="DEEP"))],
        "text": [json.dumps(CODEX[1]), json.dumps(item(type="function_call", name="f",
                                                       arguments=deep))],
        "id": [json.dumps(SESSION[0]),
               json.dumps(claude("assistant", "b", "a", "x", answer="DEEP", timestamp="DEEP"))],
        "trace": [f'{{"messages": [{called}]}}'],
        "tools": [f'{{"messages": [{said}}}], "tools": [{{"x": {deep}}}], "id": {deep}}}'],
    }[form]  # fmt: skip
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join(rows).replace('"DEEP"', deep) + "\n")
    found = told(lambda: read_sessions([path], VOCABULARY, NOTHING_KEPT), "s.jsonl")
    if depth == 50:
        assert found
    if form == "text":
        (call,) = read_logs([path], FORMS["codex"]).recordings[0].messages[1].calls
        assert call.arguments == (json.loads(deep) if depth == 50 else deep)


def test_halves_of_pairs_in_the_name_of_a_session(tmp_path: Path) -> None:
    from agentspec.control.prior import session_digest

    path = tmp_path / "t.jsonl"
    path.write_text('{"id": "\\ud800", "messages": [{"role": "assistant", "content": "b"}]}')
    (session,) = read_sessions([path], VOCABULARY, NOTHING_KEPT)
    assert session_digest(session.source, session.id)


def test_sessions_of_one_name_are_all_read(tmp_path: Path) -> None:
    for n in range(3):
        rows = [claude("user", "a", None, f"hi {n}"), claude("assistant", "b", "a", "hello")]
        lines(tmp_path / f"p{n}" / "s.jsonl", *rows)
    assert [one.id for one in read(tmp_path).recordings] == ["s", "s", "s"]
    assert len(read_sessions([tmp_path], VOCABULARY, NOTHING_KEPT)) == 3


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.just(-(1 << 70)),
    st.floats(),
    st.text(max_size=5),
    st.just("\ud800\x00\x1b[31m"),
    st.just([]),
    st.just({}),
    st.just([[{}]]),
    st.just({"text": 5, "type": "text"}),
    st.just([None, 5, "x", {"type": "text"}, {"type": "tool_use", "name": 5, "input": "x"}]),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*at, key))
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            found += places(inner, (*at, n))
    return found


def changed(value: Any, at: tuple[Any, ...], draw: Callable[[Any], Any]) -> None:
    *way, last = at
    for key in way:
        if not isinstance(value, (dict, list)):
            return
        try:
            value = value[key]
        except (LookupError, TypeError):
            return
    try:
        how = draw(st.sampled_from(["odd", "gone", "twice", "moved"]))
        if how == "odd":
            value[last] = copy.deepcopy(draw(ODD))  # it may be changed itself
        elif how == "gone":
            del value[last]
        elif how == "twice":
            value[last] = [value[last], value[last]]
        else:
            value[last] = {"id": value[last], "content": value[last], "text": value[last]}
    except (LookupError, TypeError):
        return


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_real_logs_with_something_else_in_them(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    file, sample = SAMPLES[name]
    made = copy.deepcopy(sample)
    for _ in range(data.draw(st.integers(1, 5))):
        changed(made, data.draw(st.sampled_from(places(sample))), data.draw)
    raw = raw_of(file, made)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(raw)))
        junk = data.draw(st.sampled_from([b"\0", b"\xff", b"\n", b'"', b"{", b"sk-secret", b""]))
        raw = raw[:at] + junk + raw[at + data.draw(st.integers(0, 3)) :]
    folder = tmp_path_factory.getbasetemp() / "mutated"
    folder.mkdir(exist_ok=True)
    path = folder / file
    path.write_bytes(raw)
    detect(path)
    logs = told(lambda: read_logs([path], FORMS[name]), file)
    for one in logs.recordings if isinstance(logs, Logs) else ():
        assert isinstance(one, Recording)
        assert all(isinstance(call, Call) for said in one.messages for call in said.calls)
        assert "sk-secret" not in " ".join(logs.notes)
    sessions = told(lambda: read_sessions([path], VOCABULARY, NOTHING_KEPT), file)
    for session in sessions or ():
        (session.id + session.source).encode()
    path.unlink()


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_real_traces_with_something_else_in_them(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sample = [
        {
            "id": "a",
            "messages": SWE["history"],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        }
    ]
    made = copy.deepcopy(sample)
    for _ in range(data.draw(st.integers(1, 5))):
        changed(made, data.draw(st.sampled_from(places(sample))), data.draw)
    folder = tmp_path_factory.getbasetemp() / "mutated-traces"
    folder.mkdir(exist_ok=True)
    path = folder / "t.jsonl"
    path.write_bytes(raw_of("t.jsonl", made))
    for session in told(lambda: read_sessions([path], VOCABULARY, NOTHING_KEPT), "t.jsonl") or ():
        (session.id + session.source).encode()
