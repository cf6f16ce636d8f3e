"""Which stretches of texts are gone on from, and which are held out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentspec.errors import InvalidRequestError
from agentspec.replay.store import ArrayStore
from agentspec.testing.scripted import ScriptedTokenizer
from agentspec.training.windows import (
    GRAIN,
    Window,
    batches,
    held_out,
    session_windows,
    text_windows,
)

TOKENIZER = ScriptedTokenizer(300, eos_ids=frozenset({299}))


def test_a_text_is_cut_into_windows_without_gaps(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    text = "".join(chr(97 + i % 26) for i in range(3 * 32 + 20))
    path.write_text(text)
    found = text_windows(TOKENIZER, [path], 32)
    assert [token for w in found for token in w.ids] == TOKENIZER.encode(text[:96])
    assert {w.group for w in found} == {str(path)}
    path.write_text(text[: GRAIN + 3])
    (short,) = text_windows(TOKENIZER, [path], 32)
    assert list(short.ids) == TOKENIZER.encode(text[3 : GRAIN + 3])
    path.write_text("short")
    assert text_windows(TOKENIZER, [path], 32) == []


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "b.txt", tmp_path / "absent"):
        with pytest.raises(InvalidRequestError, match="cannot be read as text") as caught:
            text_windows(TOKENIZER, [path], 32)
        assert "\n" not in str(caught.value)


def test_a_folder_is_its_text_files_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="holds no text file"):
        text_windows(TOKENIZER, [tmp_path], 32)
    (tmp_path / "in").mkdir()
    for name, text in (("in/c.py", "c" * 32), ("b.txt", "b" * 32), (".env", "KEY=" + "k" * 32)):
        (tmp_path / name).write_text(text)
    (tmp_path / "a.bin").write_bytes(b"\0" * 64)
    found = text_windows(TOKENIZER, [tmp_path], 32)
    assert [w.group for w in found] == [str(tmp_path / name) for name in ("b.txt", "in/c.py")]
    assert [TOKENIZER.decode(w.ids) for w in found] == [b"b" * 32, b"c" * 32]


def test_windows_of_a_session_end_where_answers_are(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    said = [
        {"role": "user", "content": "u" * 40},
        {"role": "assistant", "content": "a" * 50},
        {"role": "user", "content": "w" * 30},
        {"role": "assistant", "content": "b" * 10},
    ]
    path.write_text(json.dumps({"id": "one", "messages": said}) + "\n")
    store = ArrayStore(tmp_path / "store")
    found = session_windows(TOKENIZER, [path], 32, 20, identity="x", store=store)
    texts = [TOKENIZER.decode(w.ids).decode() for w in found]
    assert {w.group for w in found} == {"s/one"}
    # before the first answer, within it after 20 and 40 tokens, before the second one
    assert [text.rstrip("\n").endswith("assistant") for text in texts] == [True, False, False, True]
    assert texts[1].endswith("assistant\n" + "a" * 20)
    assert texts[2].endswith("a" * 32)


groups = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=4), st.integers(1, 12), min_size=1, max_size=12
)


@given(groups)
def test_what_is_held_out_is_not_learnt_from(sizes: dict[str, int]) -> None:
    windows = [Window((i,) * GRAIN, name) for name, n in sizes.items() for i in range(n)]
    few = len(sizes) < 5
    if few and all(n == 1 for n in sizes.values()):
        with pytest.raises(InvalidRequestError, match="too few to learn"):
            held_out(windows)
        return
    learnt, held = held_out(windows)
    assert sorted(map(repr, [*learnt, *held])) == sorted(map(repr, windows))
    assert learnt
    assert held
    if not few:
        assert not {w.group for w in learnt} & {w.group for w in held}


@given(st.lists(st.sampled_from([16, 32, 48]), max_size=40), st.integers(1, 5), st.integers(0, 9))
def test_batches_hold_all_windows_once_by_length(lengths: list[int], size: int, seed: int) -> None:
    windows = [Window((i,) * length, "g") for i, length in enumerate(lengths)]
    found = batches(windows, size, seed)
    assert found == batches(windows, size, seed)
    assert sorted(w.ids for batch in found for w in batch) == sorted(w.ids for w in windows)
    assert all(len({len(w.ids) for w in batch}) == 1 <= len(batch) <= size for batch in found)
    full = [len(batch) == size for batch in found]
    assert full == sorted(full, reverse=True)
