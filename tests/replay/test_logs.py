"""Logs of coding agents: small ones in the shapes as published, and what is wrong with others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentspec.errors import InvalidRequestError
from agentspec.replay.logs import FORMS, Logs, detect, files, read_logs
from agentspec.replay.recording import Call, Recording, Said

EDIT = {"file_path": "a.py", "old_string": "x", "new_string": "é"}


def lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    return path


def document(path: Path, data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), "utf-8")
    return path


def read(path: Path) -> Logs:
    """What `agentspec replay PATH` reads, its format found by looking."""
    form = detect(path)
    assert form is not None
    return read_logs([path], form)


def one(path: Path) -> Recording:
    (found,) = read(path).recordings
    return found


# -- Claude Code ------------------------------------------------------------------------------


def claude(kind: str, id: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": more.pop("answer", f"msg_{id}"), "model": more.pop("model", "m")}
    return {
        "type": kind, "uuid": id, "parentUuid": parent, "sessionId": "s", "isSidechain": False,
        "timestamp": f"2026-01-01T00:00:0{len(id)}Z", "cwd": "/w", "version": "2.1.0",
        "message": message, **more,
    }  # fmt: skip


def use(id: str, name: str = "Edit", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": given or EDIT}


def result(id: str, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_claude_code(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s1.jsonl",
        {"type": "summary", "summary": "a title", "leafUuid": "f"},
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
        claude("user", "a", None, "fix it"),
        # one answer, a record for each block
        claude("assistant", "b", "a", [{"type": "thinking", "thinking": "…"}], answer="msg_1"),
        claude("assistant", "c", "b", [text("I edit.")], answer="msg_1"),
        claude("assistant", "d", "c", [use("t1")], answer="msg_1"),
        {"type": "progress", "uuid": "e", "parentUuid": "d", "sessionId": "s", "data": {}},
        claude("user", "f", "e", [result("t1", [text("done"), {"type": "image", "source": {}}])]),
        claude("assistant", "g", "f", "Fixed."),
        {"type": "queue-operation", "operation": "enqueue", "sessionId": "s"},
    )
    found = one(path)
    assert (found.id, found.source, found.where) == ("s1", "claude-code", "s1.jsonl")
    assert found.messages == (
        Said("user", "fix it"),
        Said("assistant", "I edit.", (Call("Edit", EDIT),)),
        Said("tool", "done"),
        Said("assistant", "Fixed."),
    )


def test_claude_code_results_of_parallel_calls_hang_beside_the_branch(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s.jsonl",
        claude("user", "a", None, "look"),
        claude("assistant", "b", "a", [use("t1", "Read", path="1")], answer="msg_1"),
        claude("user", "c", "b", [result("t1", "one")]),
        claude("assistant", "d", "b", [use("t2", "Read", path="2")], answer="msg_1"),
        claude("user", "e", "d", [result("t2", "two")]),
        claude("assistant", "f", "e", "Both."),
    )
    assert one(path).messages == (
        Said("user", "look"),
        Said("assistant", "", (Call("Read", {"path": "1"}), Call("Read", {"path": "2"}))),
        Said("tool", "one"),
        Said("tool", "two"),
        Said("assistant", "Both."),
    )


def test_claude_code_takes_the_branch_that_was_written_to_last(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s.jsonl",
        claude("user", "a", None, "one"),
        claude("assistant", "b", "a", "1"),
        claude("user", "c", "b", "taken back"),
        claude("assistant", "d", "c", "never mind"),
        claude("user", "e", "b", "two"),
        claude("assistant", "f", "e", "2"),
    )
    assert [said.content for said in one(path).messages] == ["one", "1", "two", "2"]


def test_claude_code_subagents_and_compactions_are_conversations_of_their_own(
    tmp_path: Path,
) -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "x", "parentUuid": None,
                "logicalParentUuid": "b", "sessionId": "s"}  # fmt: skip
    lines(
        tmp_path / "p" / "s.jsonl",
        claude("user", "a", None, "long"),
        claude("assistant", "b", "a", "answer"),
        claude("user", "side", None, "look there", isSidechain=True),
        claude("assistant", "side2", "side", "found", isSidechain=True),
        boundary,
        claude("user", "c", "x", "what was said", isCompactSummary=True),
        claude("assistant", "d", "c", "on"),
        claude("assistant", "e", "d", "API Error: key sk-1", model="<synthetic>"),
    )
    lines(
        tmp_path / "p" / "s" / "subagents" / "agent-1.jsonl",
        claude("user", "a", None, "and here", isSidechain=True),
        claude("assistant", "b", "a", "nothing", isSidechain=True),
    )
    said = {r.id: [m.content for m in r.messages] for r in read(tmp_path).recordings}
    assert said == {
        "s": ["long", "answer"],
        "s-3": ["look there", "found"],
        "s-5": ["what was said", "on"],
        "agent-1": ["and here", "nothing"],
    }


def test_claude_code_goes_on_behind_a_line_that_was_lost(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "s.jsonl",
        claude("user", "a", None, "one"),
        claude("assistant", "b", "a", "1"),
        claude("user", "side", None, "look there", isSidechain=True),
        claude("assistant", "side2", "side", "found", isSidechain=True),
        claude("user", "c", "b", "two"),
        claude("assistant", "d", "c", "2"),
    )
    kept = path.read_text().splitlines()
    path.write_text("\n".join([*kept[:4], kept[4][:40], kept[5]]))
    logs = read(path)
    said = {found.id: [said.content for said in found.messages] for found in logs.recordings}
    assert said == {"s": ["one", "1", "2"], "s-3": ["look there", "found"]}
    assert logs.notes == ["left out of s.jsonl: lines that are not JSON (1)"]


# -- Codex ------------------------------------------------------------------------------------


def item(**payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:01Z", "type": "response_item", "payload": payload}


def message(role: str, words: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": words}]}


def test_codex(tmp_path: Path) -> None:
    meta = {"id": "1", "cwd": "/w", "base_instructions": {"text": "You are"}}
    path = lines(
        tmp_path / "2026" / "01" / "02" / "rollout-2026-01-02-1.jsonl",
        {"timestamp": "t", "type": "session_meta", "payload": meta},
        {"timestamp": "t", "type": "turn_context", "payload": {"model": "m"}},
        item(**message("developer", "rules")),
        item(**message("user", "fix it")),
        {
            "timestamp": "t",
            "type": "event_msg",
            "payload": {"type": "user_message", "message": "fix it"},
        },
        item(type="reasoning", summary=[], encrypted_content="gAAA"),
        item(**message("assistant", "I look.")),
        item(type="function_call", name="shell", arguments='{"command": ["ls"]}', call_id="c1"),
        item(type="custom_tool_call", name="apply_patch", input="*** Begin Patch", call_id="c2"),
        item(type="function_call_output", call_id="c1", output="a.py"),
        item(
            type="custom_tool_call_output",
            call_id="c2",
            output=[{"type": "input_text", "text": "ok"}],
        ),
        item(type="local_shell_call", action={"type": "exec", "command": ["ls"]}, call_id="c3"),
        item(
            type="local_shell_call_output", call_id="c3", output={"content": "a", "success": True}
        ),
        item(type="something_new", text="?"),
        item(**message("assistant", "Done.")),
    )
    found = one(tmp_path)
    assert (found.id, found.source) == (path.stem, "codex")
    assert found.where == "2026/01/02/rollout-2026-01-02-1.jsonl"
    assert found.messages == (
        Said("system", "You are"),
        Said("system", "rules"),
        Said("user", "fix it"),
        Said(
            "assistant",
            "I look.",
            (Call("shell", {"command": ["ls"]}), Call("apply_patch", {"input": "*** Begin Patch"})),
        ),
        Said("tool", "a.py"),
        Said("tool", "ok"),
        Said("assistant", "", (Call("local_shell", {"type": "exec", "command": ["ls"]}),)),
        Said("tool", "a"),
        Said("assistant", "Done."),
    )


def test_codex_as_it_was_before(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "rollout-1.jsonl",
        {"id": "1", "timestamp": "2025", "instructions": None, "git": {}},
        message("user", "fix it"),
        {"record_type": "state"},
        {"type": "function_call", "name": "shell", "arguments": "{broken", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": '{"output": "x"}'},
    )
    assert one(path).messages == (
        Said("user", "fix it"),
        Said("assistant", "", (Call("shell", "{broken"),)),
        Said("tool", '{"output": "x"}'),
    )


def test_codex_compacted(tmp_path: Path) -> None:
    history = [message("user", "what was said")]
    path = lines(
        tmp_path / "rollout-1.jsonl",
        item(**message("user", "one")),
        item(**message("assistant", "1")),
        {"type": "compacted", "payload": {"message": "", "replacement_history": history}},
        item(**message("assistant", "2")),
        {"type": "compacted", "payload": {"message": "in short"}},
        item(**message("assistant", "3")),
    )
    said = [[m.content for m in r.messages] for r in read(path).recordings]
    assert said == [["one", "1"], ["what was said", "2"], ["in short", "3"]]


# -- OpenCode ---------------------------------------------------------------------------------


def opencode_message(id: str, role: str, created: int, *parts: Any) -> dict[str, Any]:
    info = {"id": id, "sessionID": "ses_1", "role": role, "time": {"created": created}}
    told = [{"id": f"prt_{n}", "messageID": id, **part} for n, part in enumerate(parts)]
    return {"info": info, "parts": told}


def tool_part(name: str, status: str, **state: Any) -> dict[str, Any]:
    return {"type": "tool", "callID": "c", "tool": name, "state": {"status": status, **state}}


OPENCODE = [
    opencode_message(
        "msg_2",
        "assistant",
        2,
        {"type": "step-start", "snapshot": "x"},
        {"type": "reasoning", "text": "hm"},
        text("I look."),
        tool_part("read", "completed", input={"filePath": "a.py"}, output="x = 1", title="a.py"),
        tool_part("bash", "error", input={"command": "ls"}, error="no"),
        {"type": "step-finish", "reason": "tool-calls", "cost": 0},
        {"type": "step-start"},
        text("Done."),
        {"type": "patch", "hash": "x", "files": []},
    ),
    opencode_message("msg_1", "user", 1, text("fix it"), {"type": "file", "url": "data:…"}),
]
OPENCODE_SAID = (
    Said("user", "fix it"),
    Said(
        "assistant",
        "I look.",
        (Call("read", {"filePath": "a.py"}), Call("bash", {"command": "ls"})),
    ),
    Said("tool", "x = 1"),
    Said("tool", "no"),
    Said("assistant", "Done."),
)


@pytest.mark.parametrize("layout", ["storage/{}/{}", "storage/session/{}/{}", "{}/{}"])
def test_opencode_storage(tmp_path: Path, layout: str) -> None:
    for message in OPENCODE:
        info = message["info"]
        document(tmp_path / layout.format("message", "ses_1") / f"{info['id']}.json", info)
        for part in message["parts"]:
            name = f"{info['id']}/{part['id']}.json"
            document(tmp_path / layout.format("part", "") / name, part)
    found = one(tmp_path)
    assert (found.id, found.source) == ("ses_1", "opencode")
    assert found.messages == OPENCODE_SAID


def test_opencode_export(tmp_path: Path) -> None:
    path = document(tmp_path / "e.json", {"info": {"id": "ses_1"}, "messages": OPENCODE})
    assert one(path).id == "ses_1"
    assert one(path).messages == OPENCODE_SAID


# -- SWE-agent and our own --------------------------------------------------------------------


def test_swe_agent(tmp_path: Path) -> None:
    calls = [
        {
            "type": "function",
            "id": "c",
            "function": {"name": "bash", "arguments": '{"command": "ls"}'},
        }
    ]
    history = [
        {"role": "system", "content": "You are", "agent": "main", "message_type": "system_prompt"},
        {"role": "user", "content": [text("fix it")], "agent": "main"},
        {"role": "assistant", "content": "I look.", "action": "ls", "tool_calls": calls},
        {"role": "tool", "content": "a.py", "tool_call_ids": ["c"]},
        {"role": "assistant", "content": "Done.\n```\nsubmit\n```", "action": "submit"},
    ]
    run = {"trajectory": [], "history": history, "info": {"exit_status": "submitted"}}
    found = one(document(tmp_path / "repo__1.traj", run))
    assert (found.id, found.source) == ("repo__1", "swe-agent")
    assert found.messages == (
        Said("system", "You are"),
        Said("user", "fix it"),
        Said("assistant", "I look.", (Call("bash", {"command": "ls"}),)),
        Said("tool", "a.py"),
        Said("assistant", "Done.\n```\nsubmit\n```"),
    )
    mini = {"info": {}, "messages": history, "trajectory_format": "mini-swe-agent-1.1"}
    assert one(document(tmp_path / "mini" / "r.traj.json", mini)).messages == found.messages


def test_swe_agent_without_a_history(tmp_path: Path) -> None:
    steps = [
        {"query": [{"role": "user", "content": "fix"}], "response": "ls", "observation": "a.py"},
        {"response": "cat a.py", "observation": ""},
    ]
    found = one(document(tmp_path / "x.traj", {"trajectory": steps, "info": {}}))
    assert [said.content for said in found.messages] == ["fix", "ls", "a.py", "cat a.py"]


def test_a_report_of_bench(tmp_path: Path) -> None:
    from agentspec.bench.sessions import packaged_sessions

    first = packaged_sessions()[0]
    report = {"sessions": [{"id": first.id, "plain": [{"text": "the answer"}]}, {"id": "gone"}]}
    found = one(document(tmp_path / "bench.json", report))
    assert found.id == first.id
    assert [said.content for said in found.messages] == [
        *(message["content"] for message in first.messages),
        "the answer",
    ]
    assert found.tools == tuple(first.tools)


# -- all of them ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        {"messages": [{"role": "user", "content": "hi"}]},
        [{"role": "user", "content": "hi"}],
        {"id": "a", "source": "x", "messages": []},
        {"type": "text"},
        3,
    ],
)
def test_anything_else_is_no_log(tmp_path: Path, data: Any) -> None:
    assert detect(document(tmp_path / "a" / "m.json", data)) is None
    assert detect(lines(tmp_path / "a" / "m.jsonl", data, data)) is None
    assert detect(tmp_path / "a") is None


SESSION = [claude("user", "a", None, "hi"), claude("assistant", "b", "a", "hello")]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_links_lead_nowhere(tmp_path: Path) -> None:
    secret = lines(tmp_path / "elsewhere" / "secret.jsonl", *SESSION)
    inside = lines(tmp_path / "logs" / "s.jsonl", *SESSION)
    (tmp_path / "logs" / "link.jsonl").symlink_to(secret)
    (tmp_path / "logs" / "folder").symlink_to(secret.parent)
    os.mkfifo(tmp_path / "logs" / "pipe.jsonl")
    logs = read(tmp_path / "logs")
    assert [found.where for found in logs.recordings] == [inside.name]
    assert logs.notes == ["left out of logs: links or files that cannot be opened (2)"]
    # what was named itself may be a link
    (tmp_path / "named").symlink_to(tmp_path / "elsewhere")
    assert one(tmp_path / "named").where == "secret.jsonl"
    storage = tmp_path / "open" / "storage"
    (storage / "part").mkdir(parents=True)
    (storage / "message").symlink_to(secret.parent)
    assert detect(tmp_path / "open") is None


def test_lines_and_files_that_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 2000)
    long = claude("user", "x", "b", "y" * 5000)
    path = lines(tmp_path / "s.jsonl", SESSION[0], long, SESSION[1])
    logs = read(path)
    assert [said.content for said in logs.recordings[0].messages] == ["hi", "hello"]
    assert logs.notes == ["left out of s.jsonl: lines that are too long (1)"]
    monkeypatch.setattr(files, "MAX_DOCUMENT", 20)
    document(tmp_path / "run.traj", {"trajectory": [{"response": "long enough"}]})
    with pytest.raises(InvalidRequestError, match=r"run\.traj.*files that are too large \(1\)"):
        read_logs([tmp_path / "run.traj"], FORMS["swe-agent"])


@pytest.mark.parametrize("name", FORMS)
def test_nothing_found_is_said_in_a_line_without_what_the_files_hold(
    tmp_path: Path, name: str
) -> None:
    for ending in FORMS[name].endings:
        (tmp_path / f"x{ending}").write_text('{"api_key": "sk-secret"}\nsk-secret\n')
    with pytest.raises(InvalidRequestError) as caught:
        read_logs([tmp_path], FORMS[name])
    assert f"holds no conversation of {name}" in str(caught.value)
    assert "sk-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_oldest_come_first_whatever_they_are_called(tmp_path: Path) -> None:
    late = [claude("user", "a", None, "late"), claude("assistant", "b", "a", "yes")]
    late = [{**record, "timestamp": "2026-02"} for record in late]
    lines(tmp_path / "a.jsonl", *late)
    lines(tmp_path / "b.jsonl", *SESSION)
    assert [found.id for found in read(tmp_path).recordings] == ["b", "a"]


def test_a_session_that_was_resumed_counts_once(tmp_path: Path) -> None:
    more = [claude("user", "c", "b", "more"), claude("assistant", "d", "c", "yes")]
    other = [claude("user", "c", "b", "else"), claude("assistant", "d", "c", "no")]
    lines(tmp_path / "a.jsonl", *SESSION)
    lines(tmp_path / "b.jsonl", *SESSION, *more)
    lines(tmp_path / "c.jsonl", *SESSION, *more)
    lines(tmp_path / "d.jsonl", *SESSION, *other)
    logs = read(tmp_path)
    assert [found.id for found in logs.recordings] == ["b", "d"]
    assert logs.notes == ["left out: conversations that others begin with (2)"]


def test_text_that_is_not_valid_unicode_is_mended(tmp_path: Path) -> None:
    lone = "\ud800 é"
    path = lines(
        tmp_path / "s.jsonl",
        claude("user", "a", None, lone),
        claude("assistant", "b", "a", [text(lone), use("t", lone, **{lone: lone})]),
    )
    (asked, answered) = one(path).messages
    assert asked.content == answered.content == "? é"
    assert answered.calls == (Call("? é", {"? é": "? é"}),)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
WORDS = (
    "type",
    "message",
    "uuid",
    "parentUuid",
    "role",
    "content",
    "payload",
    "id",
    "name",
    "input",
    "arguments",
    "output",
    "tool_use_id",
    "text",
    "info",
    "parts",
    "state",
    "time",
    "history",
    "trajectory",
    "messages",
    "tool_calls",
    "function",
    "sessions",
    "plain",
)
KINDS = (
    "user",
    "assistant",
    "text",
    "tool_use",
    "tool_result",
    "response_item",
    "message",
    "function_call",
    "compacted",
    "tool",
    "step-start",
    "session_meta",
)
RECORD = st.recursive(
    JSON | st.sampled_from(KINDS),
    lambda inner: (
        st.dictionaries(st.sampled_from(WORDS), inner, max_size=6) | st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=40)
@given(st.lists(RECORD | st.binary(max_size=20), max_size=8))
def test_junk_raises_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, name: str, records: list[Any]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "junk"
    folder.mkdir(exist_ok=True)
    form = FORMS[name]
    raw = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in records]
    for ending in form.endings:
        joined = b"\n".join(raw) if ending == ".jsonl" else b"".join(raw[:1])
        (folder / f"x{ending}").write_bytes(joined)
    detect(folder)
    try:
        logs = read_logs([folder], form)
    except InvalidRequestError:
        logs = Logs([], [])
    for found in logs.recordings:
        "".join(said.content for said in found.messages).encode()
        assert any(said.role == "assistant" for said in found.messages)
    for file in folder.iterdir():
        file.unlink()


@settings(max_examples=40)
@given(st.data())
def test_junk_between_the_lines_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    junk = st.lists(st.sampled_from([b"{", b"null", b"[1]", b'{"type": "new"}', b"\xff\xfe", b""]))
    rows = [
        claude("user", "a", None, "hi"),
        claude("assistant", "b", "a", [text("x"), use("t")]),
        claude("user", "c", "b", [result("t", "y")]),
        claude("assistant", "d", "c", "z"),
    ]
    raw: list[bytes] = []
    for row in rows:
        raw += [*data.draw(junk), json.dumps(row).encode()]
    path = tmp_path_factory.getbasetemp() / "between.jsonl"
    path.write_bytes(b"\n".join([*raw, *data.draw(junk)]))
    (found,) = read_logs([path], FORMS["claude-code"]).recordings
    assert [said.content for said in found.messages] == ["hi", "x", "y", "z"]
