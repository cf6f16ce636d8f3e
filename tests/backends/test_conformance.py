"""What every backend promises, tried with llama.cpp and with torch over tiny models."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Rollback, Rows
from agentspec.engine.session import LiveSequence
from agentspec.errors import (
    BackendError,
    CancelledError,
    DecodeError,
    RollbackError,
    UnsupportedError,
)

Made = Callable[..., Any]

LLAMA = ("llama.cpp-dense", "llama.cpp-swa", "llama.cpp-recurrent", "llama.cpp-hybrid")
TORCH = tuple(
    f"torch-{kind}"
    for kind in (
        "llama", "qwen2", "mistral", "gemma2", "gemma3", "gpt2", "mamba", "lfm2", "falcon_h1",
    )
)  # fmt: skip
CUT = ("llama.cpp-dense", "llama.cpp-swa", *TORCH[:6])
KEPT = ("llama.cpp-recurrent", "llama.cpp-hybrid", *TORCH[6:])
TREES = ("llama.cpp-dense", *TORCH[:6])
MOVED = ("llama.cpp-swa",)
"""Cells come back in another order, and sums are taken in it."""
CLOSE = 1e-3


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    """A backend by name, e.g. "torch-gemma3"; all computed in float32."""
    opened: list[Any] = []

    def make(name: str, *, max_seqs: int = 4, seed: int = 0, **settings: Any) -> Any:
        library, _, kind = name.partition("-")
        told = {"n_ctx": 512, "n_threads": 1, "chunk": 64, "max_seqs": max_seqs, **settings}
        more = {"seed": seed} if seed else {}
        if library == "torch":
            folder = request.getfixturevalue("torch_folder")(kind, **more)
            from agentspec.backends.torch import TorchBackend, TorchSettings

            opened.append(TorchBackend(folder, TorchSettings(**told, device="cpu")))
        else:
            pytest.importorskip("llama_cpp")
            path = request.getfixturevalue("tiny")(kind, **more)
            from agentspec.backends.llama_cpp import LlamaCppBackend, LlamaSettings

            told |= {"type_k": "f32", "type_v": "f32", "flash_attn": False, "swa_full": False}
            opened.append(LlamaCppBackend(path, LlamaSettings(**told)))
        return opened[-1]

    try:
        yield make
    finally:
        for backend in opened:
            backend.close()


def near(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) > 0 and all(
        np.abs(a - b).max() < CLOSE for a, b in zip(left, right, strict=True)
    )


def equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) > 0 and all(
        np.array_equal(a, b) for a, b in zip(left, right, strict=True)
    )


# sequences


@pytest.mark.parametrize("name", [*LLAMA, *TORCH])
def test_sequences_do_not_mix(made: Made, feed: Any, words: Any, name: str) -> None:
    backend, alone = made(name), made(name)
    texts = [words(24, seed=i) for i in range(3)]
    seqs = [backend.open() for _ in texts]
    rows: list[list[Any]] = [[], [], []]
    for at in range(0, 24, 6):
        output = backend.forward(
            [Rows(s, t[at : at + 6], logits_from=0) for s, t in zip(seqs, texts, strict=True)]
        )
        for i in range(18):
            rows[i // 6].append(output.logits(i).copy())
    for got, text in zip(rows, texts, strict=True):
        assert near(got, feed(alone, alone.open(), text, (6,) * 4))
    assert not near(rows[0], rows[1])


@pytest.mark.parametrize("name", [*LLAMA, *TORCH])
def test_rows_are_those_asked_for(made: Made, feed: Any, words: Any, name: str) -> None:
    backend, alone = made(name), made(name)
    a, b, c = (backend.open() for _ in range(3))
    output = backend.forward(
        [
            Rows(a, words(5), logits_from=3),
            Rows(b, words(4, seed=1), logits_from=4),
            Rows(c, words(3)),
        ]
    )
    assert len(output) == 3
    rows = feed(alone, alone.open(), words(5))
    assert near([output.logits(i) for i in range(3)], [*rows[3:], rows[2]])
    assert [output.argmax(i) for i in range(3)] == [int(r.argmax()) for r in (*rows[3:], rows[2])]
    assert [backend.length(seq) for seq in (a, b, c)] == [5, 4, 3]
    assert output.logits(0).dtype == np.float32


@pytest.mark.parametrize("name", [*LLAMA, *TORCH])
def test_the_partition_of_a_text_does_not_matter(
    made: Made, feed: Any, words: Any, name: str
) -> None:
    backend, text = made(name), words(50)
    whole = feed(backend, backend.open(), text)
    for partition in ((1,) * 50, (20, 30), (7, 1, 12, 30)):
        seq = backend.open()
        assert near(feed(backend, seq, text, partition), whole)
        backend.drop(seq)


@pytest.mark.parametrize("name", [*LLAMA, *TORCH])
def test_a_fork_goes_its_own_way(made: Made, feed: Any, words: Any, name: str) -> None:
    backend, alone = made(name), made(name)
    seq = backend.open()
    feed(backend, seq, words(20))
    new = backend.fork(seq)
    left, right = feed(backend, seq, words(3, seed=1)), feed(backend, new, words(5, seed=2))
    assert (backend.length(seq), backend.length(new)) == (23, 25)
    for text, rows in ((words(3, seed=1), left), (words(5, seed=2), right)):
        clean = alone.open()
        feed(alone, clean, words(20))
        assert near(rows, feed(alone, clean, text))


def test_sequences_run_out_and_come_back(made: Made) -> None:
    for name in ("llama.cpp-dense", "torch-llama"):
        backend = made(name, max_seqs=2)
        first, second = backend.open(), backend.open()
        assert backend.capabilities.max_seqs == 2
        for more in (backend.open, lambda b=backend, f=first: b.fork(f)):
            with pytest.raises(BackendError, match=r"all 2 sequences .* max_seqs"):
                more()
        backend.drop(second)
        backend.drop(second)
        assert backend.fork(first) == second


@pytest.mark.parametrize("name", ["llama.cpp-dense", "torch-llama"])
def test_a_sequence_that_is_not_open(made: Made, name: str) -> None:
    """llama.cpp ends the process over an id it does not know."""
    backend = made(name, max_seqs=2)
    open_one = backend.open()
    uses: tuple[Callable[[int], Any], ...] = (
        backend.length,
        lambda seq: backend.forward([Rows(seq, [1])]),
        lambda seq: backend.rollback(seq, 0),
        backend.fork,
        backend.checkpoint,
        lambda seq: backend.commit_path(seq, []),
    )
    for wrong in (1, 2, -1, 10**6):
        for use in uses:
            with pytest.raises(BackendError, match="no open sequence"):
                use(wrong)
        backend.drop(wrong)
    assert backend.length(open_one) == 0
    assert backend.open() == 1
    with pytest.raises(BackendError):
        backend.open()


# passes that cannot be


@pytest.mark.parametrize("name", ["llama.cpp-dense", "torch-llama", "torch-lfm2"])
def test_what_cannot_be_computed_changes_nothing(
    made: Made, feed: Any, words: Any, name: str
) -> None:
    backend, alone = made(name, n_ctx=256), made(name)
    seq = backend.open()
    feed(backend, seq, words(10))
    vocab = backend.vocab_size
    for rows, said in (
        ([Rows(seq, [])], "1 to 64 rows"),
        ([Rows(seq, [1] * 65)], "1 to 64 rows"),
        ([Rows(seq, [vocab])], "vocabulary"),
        ([Rows(seq, [-1])], "vocabulary"),
        ([Rows(seq, [1]), Rows(seq, [2])], "twice"),
    ):
        with pytest.raises(DecodeError, match=said) as caught:
            backend.forward(rows)
        assert "\n" not in str(caught.value)
        assert backend.length(seq) == 10
    clean = alone.open()
    feed(alone, clean, words(10))
    assert near(feed(backend, seq, [3]), feed(alone, clean, [3]))
    while backend.length(seq) < 256:
        backend.forward([Rows(seq, [1] * min(64, 256 - backend.length(seq)))])
    with pytest.raises(DecodeError, match="KV cache of 256 tokens is full"):
        backend.forward([Rows(seq, [1])])


# taking back


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("prompt", [7, 90])
def test_a_cache_forgets_junk(made: Made, feed: Any, words: Any, name: str, prompt: int) -> None:
    backend = made(name)
    partition = (7,) if prompt == 7 else (40, 40, 10)
    rows = []
    for junk in (0, 1, 2, 5, 17):
        seq = backend.open()
        feed(backend, seq, words(prompt), partition)
        if junk:
            feed(backend, seq, words(junk, seed=9))
            backend.rollback(seq, prompt)
        assert backend.length(seq) == prompt
        rows.append(feed(backend, seq, words(7, seed=5), (1, 5, 1)))
        backend.drop(seq)
    assert all(equal(after, rows[0]) for after in rows[1:])


@pytest.mark.parametrize("name", CUT)
def test_a_cut_anywhere_is_right_or_refused(made: Made, feed: Any, words: Any, name: str) -> None:
    backend, fresh = made(name), made(name)
    text = words(300)
    for keep in (299, 250, 121, 17, 15, 1):
        seq, clean = backend.open(), fresh.open()
        feed(backend, seq, text, (60,) * 5)
        try:
            backend.rollback(seq, keep)
        except RollbackError:
            keep = 300
        assert backend.length(seq) == keep
        feed(fresh, clean, text[:keep], [60] * (keep // 60) + [keep % 60] * bool(keep % 60))
        tail = words(6, seed=3)
        assert near(feed(backend, seq, tail, (1, 5)), feed(fresh, clean, tail, (1, 5)))
        backend.drop(seq)
        fresh.drop(clean)
    if name.startswith("torch"):
        assert keep == 1


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("accepted", [0, 2, 5])
def test_a_state_that_cannot_be_cut_is_restored(
    made: Made, feed: Any, words: Any, name: str, accepted: int
) -> None:
    backend, fresh = made(name), made(name)
    assert backend.capabilities.rollback is Rollback.CHECKPOINT
    prompt, text = words(40), words(6, seed=5)
    live = LiveSequence(backend)
    live.start(prompt)
    live.verify(text[:accepted] + words(5 - accepted, seed=9))
    live.commit(text[: accepted + 1])
    assert backend.length(live.seq) == 40 + accepted
    after = live.verify(words(3, seed=7))
    rows = [after.logits(i).copy() for i in range(4)]
    clean = fresh.open()
    feed(fresh, clean, [*prompt, *text[:accepted]])
    assert near(rows, feed(fresh, clean, [text[accepted], *words(3, seed=7)]))


@pytest.mark.parametrize("name", KEPT)
def test_a_recurrent_state_cannot_be_cut(made: Made, feed: Any, words: Any, name: str) -> None:
    backend, fresh = made(name), made(name)
    seq, clean = backend.open(), fresh.open()
    feed(backend, seq, words(20))
    feed(fresh, clean, words(20))
    with pytest.raises(RollbackError, match="cannot cut sequence 0 from 20 to 12"):
        backend.rollback(seq, 12)
    assert equal(feed(backend, seq, [3]), feed(fresh, clean, [3]))
    backend.rollback(seq, 0)
    assert backend.length(seq) == 0
    assert near(feed(backend, seq, words(9)), feed(fresh, fresh.open(), words(9)))


@pytest.mark.parametrize("name", [*LLAMA, *TORCH])
def test_a_checkpoint_is_returned_to_twice(made: Made, feed: Any, words: Any, name: str) -> None:
    backend, fresh = made(name), made(name)
    seq, clean = backend.open(), fresh.open()
    feed(backend, seq, words(30))
    feed(fresh, clean, words(30))
    point = backend.checkpoint(seq)
    assert point.length == 30
    for junk in (3, 11):
        feed(backend, seq, words(junk, seed=9))
        backend.restore(point)
        assert backend.length(seq) == 30
    same = near if name in MOVED else equal
    assert same(feed(backend, seq, words(4, seed=5)), feed(fresh, clean, words(4, seed=5)))


@pytest.mark.parametrize("name", [*LLAMA, *TORCH])
def test_a_checkpoint_cut_below_is_refused(made: Made, feed: Any, words: Any, name: str) -> None:
    backend = made(name)
    seq = backend.open()
    feed(backend, seq, words(10))
    point = backend.checkpoint(seq)
    backend.rollback(seq, 0)
    feed(backend, seq, words(20, seed=4))
    with pytest.raises(RollbackError, match="cut below its checkpoint of 10"):
        backend.restore(point)
    assert backend.length(seq) == 20


@pytest.mark.parametrize("name", ["llama.cpp-dense", "torch-llama"])
@pytest.mark.parametrize("length", [-1, 6, 100])
def test_a_rollback_to_nowhere(made: Made, feed: Any, words: Any, name: str, length: int) -> None:
    backend = made(name)
    seq = backend.open()
    feed(backend, seq, words(5))
    with pytest.raises(RollbackError, match="has 5 tokens"):
        backend.rollback(seq, length)
    backend.rollback(seq, 5)
    assert backend.length(seq) == 5


# trees


def path_to(parents: Sequence[int], row: int) -> list[int]:
    rows = [row]
    while parents[rows[-1]] >= 0:
        rows.append(parents[rows[-1]])
    return rows[::-1]


def some_tree(rng: random.Random) -> list[int]:
    while True:
        n = rng.randint(2, 12)
        parents = [-1, *(rng.randint(max(-1, j - 4), j - 1) for j in range(1, n))]
        if n - len({parent for parent in parents if parent >= 0}) <= 8:
            return parents


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("prompt", [3, 40])
def test_a_branch_gives_what_a_chain_gives(
    made: Made, feed: Any, words: Any, name: str, prompt: int
) -> None:
    """Behind a prompt shorter and longer than the windows of some kinds."""
    backend, rng = made(name), random.Random(1)
    assert backend.capabilities.tree
    seq = backend.open()
    feed(backend, seq, words(prompt))
    for _ in range(8):
        parents = some_tree(rng)
        tokens = [rng.randrange(256) for _ in parents]
        output = backend.forward([Rows(seq, tokens, logits_from=0, parents=parents)])
        rows = [output.logits(i).copy() for i in range(len(tokens))]
        assert backend.length(seq) == prompt, "the tree is in the sequence before it is committed"
        for i, row in enumerate(rows):
            branch = path_to(parents, i)
            chain = feed(backend, seq, [tokens[j] for j in branch])
            assert near([row], chain[-1:]), (parents, i)
            backend.rollback(seq, prompt)


@pytest.mark.parametrize("name", TREES)
def test_a_kept_branch_is_the_text(made: Made, feed: Any, words: Any, name: str) -> None:
    backend, fresh, rng = made(name), made(name), random.Random(2)
    seq = backend.open()
    text = words(5)
    feed(backend, seq, text)
    for _ in range(25):
        parents = some_tree(rng)
        tokens = [rng.randrange(256) for _ in parents]
        backend.forward([Rows(seq, tokens, parents=parents)])
        way = rng.randrange(6)
        if way == 0:
            backend.commit_path(seq, [])
        elif way > 1:
            kept = path_to(parents, rng.randrange(len(parents)))
            backend.commit_path(seq, kept)
            text += [tokens[j] for j in kept]
        if way == 2:
            text = text[: max(1, len(text) - rng.randrange(4))]
            backend.rollback(seq, len(text))
        assert backend.length(seq) == len(text)
    clean = fresh.open()
    feed(fresh, clean, text, [1] * len(text))
    assert near(feed(backend, seq, [7, 8], (1, 1)), feed(fresh, clean, [7, 8], (1, 1)))


@pytest.mark.parametrize("name", TREES)
def test_trees_that_are_none(made: Made, feed: Any, words: Any, name: str) -> None:
    backend = made(name)
    seq = backend.open()
    feed(backend, seq, words(5))
    for parents in ([0, 0], [-1, 1], [-1, -2], [-1]):
        with pytest.raises(DecodeError):
            backend.forward([Rows(seq, [1, 2], parents=parents)])
    with pytest.raises(BackendError, match="no tree"):
        backend.commit_path(seq, [0])
    backend.forward([Rows(seq, [1, 2, 3], parents=[-1, 0, 0])])
    for nodes in ([1], [0, 0], [0, 1, 2], [0, 3], [-1]):
        with pytest.raises(BackendError, match="no path"):
            backend.commit_path(seq, nodes)
    backend.commit_path(seq, [0, 2])
    with pytest.raises(BackendError, match="no tree"):
        backend.commit_path(seq, [0])
    assert backend.length(seq) == 7
    other = backend.open()
    backend.forward([Rows(seq, [1, 2, 3], parents=[-1, 0, 0])])
    backend.forward([Rows(other, [1])])
    with pytest.raises(BackendError, match="no tree"):
        backend.commit_path(seq, [0])
    assert backend.length(seq) == 7


@pytest.mark.parametrize("name", KEPT)
def test_a_recurrent_model_takes_no_trees(made: Made, name: str) -> None:
    backend = made(name)
    seq = backend.open()
    assert not backend.capabilities.tree
    with pytest.raises(UnsupportedError):
        backend.forward([Rows(seq, [1, 2], parents=[-1, -1])])
    with pytest.raises(UnsupportedError):
        backend.commit_path(seq, [0])


# disk


@pytest.mark.parametrize("name", [*LLAMA, *TORCH])
def test_a_saved_sequence_comes_back(
    made: Made, feed: Any, words: Any, tmp_path: Path, name: str
) -> None:
    backend, other = made(name), made(name)
    seq = backend.open()
    feed(backend, seq, words(40), (30, 10))
    backend.save(seq, tmp_path / "turn")
    assert os.listdir(tmp_path) == ["turn"]
    expected = feed(backend, seq, words(6, seed=1))
    back = other.load(tmp_path / "turn")
    assert other.length(back) == 40
    same = near if name in MOVED else equal
    assert same(feed(other, back, words(6, seed=1)), expected)


@pytest.mark.parametrize("name", ["llama.cpp-dense", "torch-llama"])
def test_a_file_that_is_no_saved_sequence(
    made: Made, feed: Any, words: Any, tmp_path: Path, name: str
) -> None:
    backend = made(name, max_seqs=2)
    seq = backend.open()
    feed(backend, seq, words(30))
    good, bad = tmp_path / "good", tmp_path / "bad"
    backend.save(seq, good)
    raw = good.read_bytes()
    flipped = bytearray(raw)
    flipped[-100] ^= 4
    for content in (
        bytes(flipped), b"", b"GGUF", raw[:3], raw[:20], raw[: len(raw) // 2], raw[:-1],
        os.urandom(500), b"\xff" * 100, b"\2\0\0\0\0\0\0\0{}",
    ):  # fmt: skip
        bad.write_bytes(content)
        with pytest.raises(BackendError, match="sequence") as caught:
            backend.load(bad)
        assert "\n" not in str(caught.value)
    for missing in (tmp_path / "absent", tmp_path):
        with pytest.raises(BackendError, match="cannot read"):
            backend.load(missing)
    with pytest.raises(BackendError, match="no such folder"):
        backend.save(seq, tmp_path / "nowhere" / "turn")
    # nothing leaked: the second sequence is still free, and the first as it was
    back = backend.load(good)
    assert near(feed(backend, seq, [7]), feed(backend, back, [7]))


@pytest.mark.parametrize("name", ["llama.cpp-dense", "torch-llama"])
def test_a_sequence_of_another_model_or_too_long(
    made: Made, feed: Any, words: Any, tmp_path: Path, name: str
) -> None:
    backend = made(name)
    seq = backend.open()
    feed(backend, seq, words(300), (60,) * 5)
    backend.save(seq, tmp_path / "turn")
    other = made(name, seed=5)
    with pytest.raises(BackendError, match="another model"):
        other.load(tmp_path / "turn")
    small = made(name, n_ctx=256)
    with pytest.raises(BackendError, match="does not fit"):
        small.load(tmp_path / "turn")
    assert (other.open(), small.open()) == (0, 0)


# ending


@pytest.mark.parametrize("name", ["llama.cpp-dense", "torch-llama", "torch-lfm2"])
def test_a_cancel_is_heard_once(made: Made, feed: Any, words: Any, name: str) -> None:
    backend, alone = made(name), made(name)
    seq, clean = backend.open(), alone.open()
    feed(backend, seq, words(10))
    feed(alone, clean, words(10))
    backend.cancel()
    with pytest.raises(CancelledError):
        backend.forward([Rows(seq, [1])])
    assert backend.length(seq) == 10
    assert equal(feed(backend, seq, [3]), feed(alone, clean, [3]))


@pytest.mark.parametrize("name", ["llama.cpp-dense", "torch-llama"])
def test_a_closed_backend_says_so(made: Made, words: Any, name: str) -> None:
    backend = made(name)
    seq = backend.open()
    backend.close()
    backend.close()
    backend.drop(seq)
    backend.cancel()
    for use in (
        backend.open,
        lambda: backend.length(seq),
        lambda: backend.forward([Rows(seq, [1])]),
        lambda: backend.fork(seq),
    ):
        with pytest.raises(BackendError, match="closed"):
            use()
