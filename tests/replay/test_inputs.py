"""Which sessions of which files are read, in whose ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.backends.base import Tokenizer
from agentspec.errors import InvalidRequestError
from agentspec.replay import inputs
from agentspec.replay.inputs import Vocabulary, read_sessions, vocabulary_of
from agentspec.replay.store import ArrayStore
from agentspec.testing.scripted import ScriptedTokenizer


class Bytes(Vocabulary):
    """A vocabulary of bytes that counts how often it is opened."""

    opened = 0

    def __call__(self) -> Tokenizer:
        Bytes.opened += 1
        special = {256: "<|im_start|>", 257: "<|im_end|>"}
        return ScriptedTokenizer(258, special=special, eos_ids=frozenset({257}))

    def identity(self) -> str:
        return "bytes"


VOCABULARY = Bytes(Path("unused"))
NOTHING_KEPT = ArrayStore(None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of three sessions each; ids repeat from file to file."""
    for name in ("one", "two"):
        lines = []
        for id in ("a", "b", "c"):
            said = [{"role": "user", "content": "go"},
                    {"role": "assistant", "content": f"{name} {id}"}]  # fmt: skip
            lines.append(json.dumps({"id": id, "messages": said}))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def listed(path: Path, *rows: tuple[str, str]) -> Path:
    path.write_text(json.dumps([list(row) for row in rows]))
    return path


def read(files: list[Path], **named: Any) -> list[tuple[str, str]]:
    found = read_sessions(files, VOCABULARY, NOTHING_KEPT, **named)
    return [(session.source, session.id) for session in found]


ALL = [(name, id) for name in ("one", "two") for id in ("a", "b", "c")]


def test_all_sessions_of_a_folder(folder: Path) -> None:
    assert read([folder]) == ALL
    found = read_sessions([folder], VOCABULARY, NOTHING_KEPT)
    start, stop = found[4].turns[0]
    assert bytes(found[4].ids[start : stop - 1]) == b"two b"


def test_sessions_to_leave_are_left_out(folder: Path, tmp_path: Path) -> None:
    leave = listed(tmp_path / "leave.list", ("one.jsonl", "b"), ("two.jsonl", "c"))
    assert read([folder], leave=leave) == [row for row in ALL if row not in
                                           {("one", "b"), ("two", "c")}]  # fmt: skip
    # a session of the same id in another file is another one, and one that is absent is no error
    leave = listed(tmp_path / "leave.list", ("one.jsonl", "a"), ("three.jsonl", "b"))
    assert read([folder], leave=leave) == ALL[1:]


def test_a_sample_names_what_is_read(folder: Path, tmp_path: Path) -> None:
    sample = listed(folder / "sample.list", ("two.jsonl", "a"), ("one.jsonl", "c"))
    assert read([folder], sample=sample) == [("one", "c"), ("two", "a")]
    # without files those beside it, in its order
    assert read([], sample=sample) == [("two", "a"), ("one", "c")]
    leave = listed(tmp_path / "leave.list", ("two.jsonl", "a"))
    assert read([], sample=sample, leave=leave) == [("one", "c")]


def test_what_is_wrong_with_a_list_is_said(folder: Path, tmp_path: Path) -> None:
    sample = listed(folder / "sample.list", ("two.jsonl", "x"))
    with pytest.raises(InvalidRequestError, match=r"two\.jsonl has no session 'x'"):
        read([folder], sample=sample)
    with pytest.raises(InvalidRequestError, match=r"missing\.list"):
        read([folder], leave=tmp_path / "missing.list")
    (tmp_path / "bad.list").write_text("{}")
    with pytest.raises(InvalidRequestError, match=r"bad\.list is not a list"):
        read([folder], leave=tmp_path / "bad.list")


def test_ids_are_kept_and_the_vocabulary_opened_when_needed(folder: Path, tmp_path: Path) -> None:
    store = ArrayStore(tmp_path / "store")
    Bytes.opened = 0
    first = read_sessions([folder], VOCABULARY, store)
    assert Bytes.opened == 1
    assert read_sessions([folder], VOCABULARY, store) == first
    assert Bytes.opened == 1


def test_the_vocabulary_is_that_of_a_file_of_the_pair_or_of_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    assert vocabulary_of(str(file)) == Vocabulary(file)
    from agentspec.models import catalog

    there: dict[str, Path] = {"qwen2.5-coder-0.5b": tmp_path / "small.gguf"}
    monkeypatch.setattr(catalog, "locate", lambda entry: there.get(entry.name))
    assert vocabulary_of(None) == Vocabulary(tmp_path / "small.gguf")
    there["qwen2.5-coder-1.5b"] = tmp_path / "large.gguf"
    assert vocabulary_of(None) == Vocabulary(tmp_path / "large.gguf")
    there.clear()
    other = catalog.Resolved(tmp_path / "other.gguf")
    monkeypatch.setattr(catalog, "default_target", lambda: other)
    assert vocabulary_of(None) == Vocabulary(tmp_path / "other.gguf")


def test_a_vocabulary_travels_to_other_processes(tmp_path: Path) -> None:
    import pickle

    one = inputs.Vocabulary(tmp_path / "a")
    assert pickle.loads(pickle.dumps(one)) == one
    assert hash(one) == hash(inputs.Vocabulary(tmp_path / "a"))
