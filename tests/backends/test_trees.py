"""Trees over llama.cpp: branches give what chains give, and what is kept is the accepted one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentspec.backends.base import Output, Rows
from agentspec.control.controller import FixedController
from agentspec.engine.session import LiveSequence
from agentspec.errors import BackendError, DecodeError, RollbackError, UnsupportedError
from agentspec.testing.loop import Answer, Loop
from agentspec.testing.scripted import ScriptedProposer
from agentspec.types import Draft

# row 0 ─ 1 ─ 3 ─ 6
#       │   └ 4
#       └ 2 ─ 5
PARENTS = [-1, 0, 0, 1, 1, 2, 3]

F32 = {"type_k": "f32", "type_v": "f32", "flash_attn": False}
"""Nothing of attention is rounded to f16, so the order of cells makes no difference above CLOSE."""
CLOSE = 1e-4


def path(parents: Sequence[int], row: int) -> list[int]:
    rows = [row]
    while parents[rows[-1]] >= 0:
        rows.append(parents[rows[-1]])
    return rows[::-1]


def random_parents(rng: random.Random, leaves: int = 8) -> list[int]:
    while True:
        n = rng.randint(2, 12)
        parents = [-1, *(rng.randint(max(0, j - 4), j - 1) for j in range(1, n))]
        if n - len({parent for parent in parents if parent >= 0}) <= leaves:
            return parents


def check_branches(backend: Any, rng: random.Random, trees: int) -> None:
    """Every row of a tree is bit-equal to that row of a chain of the same row count."""
    seq = backend.open()
    vocab = backend.vocab_size
    backend.forward([Rows(seq, [rng.randrange(vocab) for _ in range(20)], logits_from=20)])
    for _ in range(trees):
        parents = random_parents(rng)
        tokens = [rng.randrange(vocab) for _ in parents]
        output = backend.forward([Rows(seq, tokens, logits_from=0, parents=parents)])
        rows = [output.logits(i).copy() for i in range(len(tokens))]
        assert backend.length(seq) == 20, "the tree is in the sequence before it is committed"
        for i, row in enumerate(rows):
            branch = path(parents, i)
            chain = [tokens[j] for j in branch]
            chain += [rng.randrange(vocab) for _ in range(len(tokens) - len(chain))]
            output = backend.forward([Rows(seq, chain, logits_from=0)])
            assert np.array_equal(output.logits(len(branch) - 1), row), (parents, i)
            backend.rollback(seq, 20)


@pytest.mark.parametrize("kind", ["dense", "dense_q"])
def test_a_branch_gives_what_a_chain_gives(load: Any, tiny: Any, kind: str) -> None:
    check_branches(load(tiny(kind)), random.Random(1), 12)


@pytest.mark.weights
def test_a_branch_of_a_real_model_gives_what_a_chain_gives(load: Any, weights: Any) -> None:
    check_branches(load(weights("smollm2-135m")), random.Random(2), 3)


def check_plain_passes(load: Any, file: Path) -> None:
    rng = random.Random(3)
    logits = []
    text = [rng.randrange(250) for _ in range(60)]
    for leaves in (0, 8):
        backend = load(file, tree_leaves=leaves)
        assert backend.capabilities.tree == (leaves > 0)
        seq = backend.open()
        at, rows = 0, []
        for n in (17, 1, 4, 2, 1, 8, 16):
            output = backend.forward([Rows(seq, text[at : at + n], logits_from=0)])
            rows += [output.logits(i).copy() for i in range(n)]
            at += n
        logits.append(rows)
    assert all(np.array_equal(a, b) for a, b in zip(*logits, strict=True))


@pytest.mark.parametrize("kind", ["dense", "dense_q"])
def test_plain_passes_are_the_same_with_and_without_leaves(load: Any, tiny: Any, kind: str) -> None:
    check_plain_passes(load, tiny(kind))


@pytest.mark.weights
def test_plain_passes_of_a_real_model_are_the_same(load: Any, weights: Any) -> None:
    check_plain_passes(load, weights("smollm2-135m"))


# Texts with trees in them, replayed with other tokens in all rows that were not kept.


class Log:
    """Passes everything on; writes down passes, kept branches and cuts of one sequence."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.events: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, rows: Sequence[Rows]) -> Output:
        start = self._backend.length(rows[0].seq)
        output: Output = self._backend.forward(rows)
        logits = [output.logits(i).copy() for i in range(len(output))]
        self.events.append(("pass", (start, rows[0], logits)))
        return output

    def commit_path(self, seq: int, nodes: Sequence[int]) -> None:
        self._backend.commit_path(seq, nodes)
        self.events.append(("commit", list(nodes)))

    def rollback(self, seq: int, length: int) -> None:
        self._backend.rollback(seq, length)
        self.events.append(("cut", length))

    def replay(self, fresh: Any, rng: random.Random) -> int:
        """Bit-equality of every kept row; how many there were."""
        seq = fresh.open()
        compared = 0
        for (what, value), after in zip(self.events, [*self.events[1:], ("", None)], strict=True):
            if what == "commit":
                fresh.commit_path(seq, value)
            elif what == "cut":
                fresh.rollback(seq, value)
            else:
                start, rows, logits = value
                assert start == fresh.length(seq)
                kept = set(range(len(rows.tokens)))
                if after[0] == "commit" or rows.parents is not None:
                    kept = set(after[1] if after[0] == "commit" else ())
                elif after[0] == "cut":
                    kept = set(range(after[1] - start))
                tokens = [
                    token if i in kept else rng.randrange(fresh.vocab_size)
                    for i, token in enumerate(rows.tokens)
                ]
                first = rows.first_logits_row
                again = fresh.forward([Rows(seq, tokens, first, rows.parents)])
                for i in kept & set(range(first, len(tokens))):
                    assert np.array_equal(again.logits(i - first), logits[i - first])
                    compared += 1
        fresh.drop(seq)
        return compared


def forest(truth: Sequence[int], vocab: int, seed: int) -> ScriptedProposer:
    """Right branches among wrong ones, chains in between, and now and then nothing."""

    def guess(text: Sequence[int], room: int) -> Draft:
        rng = random.Random(seed * 1009 + len(text))
        kind = rng.randrange(5)
        parents = random_parents(rng) if kind else [j - 1 for j in range(rng.randint(0, 6))]
        parents = [parent - 1 if kind and parent > 0 else parent for parent in parents]
        n = len(parents)
        depths = Draft((0,) * n, ("",) * n, (None,) * n, tuple(parents)).depths
        ahead = truth[len(text) :]
        tokens = tuple(
            ahead[d] if d < len(ahead) and rng.random() < 0.7 else rng.randrange(vocab)
            for d in depths
        )
        return Draft(tokens, ("x",) * n, (None,) * n, tuple(parents))

    return ScriptedProposer(guess)


def check_text(load: Any, file: Path, n: int, close: float, **settings: Any) -> None:
    """A greedy text with trees, its cache, and a replay of its passes."""
    settings["chunk"] = 256
    prompt = [random.Random(n).randrange(200) for _ in range(9)]
    plain = Loop(load(file, **settings)).answer(prompt, max_tokens=n)
    backend = load(file, **settings)
    log = Log(backend)
    loop = Loop(log)
    proposer = forest([*prompt, *plain.tokens], backend.vocab_size, 1)
    answer: Answer = loop.answer(
        prompt, [proposer], controller=FixedController(16, match_factor=0.0), max_tokens=n
    )
    assert not answer.stats.notes
    trees = [verdict for verdict in answer.verdicts if verdict.draft.parents is not None]
    assert len(trees) > 2
    assert any(verdict.path != tuple(range(verdict.accepted)) for verdict in trees)
    assert log.replay(load(file, **settings), random.Random(7)) >= n
    # the cache holds what a fresh one holds: as many cells, and they say the same up to rounding
    fresh = load(file, **settings)
    seq = fresh.open()
    text = loop.sequence.tokens
    fresh.forward([Rows(seq, text[:-1], logits_from=len(text) - 1)])
    ours = backend.forward([Rows(loop.sequence.seq, text[-1:])]).logits(0).copy()
    theirs = fresh.forward([Rows(seq, text[-1:])]).logits(0).copy()
    assert np.abs(ours - theirs).max() < close
    assert len(backend._state(loop.sequence.seq, 0)) == len(fresh._state(seq, 0))
    if answer.tokens != plain.tokens:
        at = next(
            i for i, (a, b) in enumerate(zip(answer.tokens, plain.tokens, strict=True)) if a != b
        )
        fresh.rollback(seq, len(prompt) + at - 1)
        row = fresh.forward([Rows(seq, text[len(prompt) + at - 1 :][:1])]).logits(0)
        assert row.max() - row[answer.tokens[at]] < close, "not a tie of rounding"


def test_a_text_with_trees(load: Any, tiny: Any) -> None:
    check_text(load, tiny("dense"), 120, CLOSE, **F32)


@pytest.mark.weights
def test_a_text_of_a_real_model_with_trees(load: Any, weights: Any) -> None:
    check_text(load, weights("smollm2-135m"), 60, 1.5)


def test_rejected_branches_leave_no_cell_behind(load: Any, tiny: Any) -> None:
    """The context can be filled to its end, whatever trees were there, kept or not."""
    backend = load(tiny(), n_ctx=128)
    n_ctx, rng = backend.n_ctx, random.Random(5)
    seq = backend.open()
    while (length := backend.length(seq)) < n_ctx - 1:
        if n_ctx - length > 13:
            parents = random_parents(rng)
            tokens = [rng.randrange(200) for _ in parents]
            backend.forward([Rows(seq, tokens, parents=parents)])
            way = rng.randrange(5)
            if way:
                backend.commit_path(seq, path(parents, rng.randrange(len(parents))))
            if way == 2:
                backend.rollback(seq, max(0, backend.length(seq) - rng.randrange(6)))
        else:
            backend.forward([Rows(seq, [rng.randrange(200) for _ in range(n_ctx - length)])])
    assert backend.length(seq) == n_ctx


def test_a_sequence_that_is_dropped_takes_its_branches_along(load: Any, tiny: Any) -> None:
    backend, fresh = load(tiny(), **F32), load(tiny(), **F32)
    for text in ([1, 2, 3], [4, 5, 6, 7], [8, 9]):
        seq = backend.open()
        backend.forward([Rows(seq, text)])
        output = backend.forward([Rows(seq, [7, 8, 9], logits_from=0, parents=[-1, 0, 0])])
        rows = [output.logits(i).copy() for i in range(3)]
        for row, branch in zip(rows, ([7], [7, 8], [7, 9]), strict=True):
            check_row(fresh, [*text, *branch], row)
        backend.commit_path(seq, [0, 1])
        backend.drop(seq)


def test_two_sequences_take_turns_with_their_trees(load: Any, tiny: Any) -> None:
    backend = load(tiny(), max_seqs=2, **F32)
    rng = random.Random(6)
    texts: dict[int, list[int]] = {backend.open(): [], backend.open(): []}
    for _ in range(40):
        seq = rng.choice([*texts])
        if rng.random() < 0.2:
            cut = rng.randint(0, len(texts[seq]))
            backend.rollback(seq, cut)
            del texts[seq][cut:]
        parents = random_parents(rng)
        tokens = [rng.randrange(200) for _ in parents]
        backend.forward([Rows(seq, tokens, parents=parents)])
        if rng.random() < 0.8:
            kept = path(parents, rng.randrange(len(parents)))
            backend.commit_path(seq, kept)
            texts[seq] += [tokens[j] for j in kept]
        assert backend.length(seq) == len(texts[seq])
        if len(texts[seq]) > 80:
            backend.rollback(seq, 5)
            del texts[seq][5:]
    fresh = load(tiny(), **F32)
    for seq, text in texts.items():
        assert backend.length(seq) == len(text)
        row = backend.forward([Rows(seq, [7])]).logits(0).copy()
        new = fresh.open()
        expected = fresh.forward([Rows(new, [*text, 7])]).logits(0)
        assert np.abs(row - expected).max() < CLOSE
        fresh.drop(new)


# Whatever breaks off a pass over a tree, or the keeping of a branch.


class Bombed:
    """llama.cpp whose calls that change sequences are interrupted, once, before or behind one."""

    def __init__(self, lib: Any, at: int, behind: bool) -> None:
        self._lib, self._at, self._behind, self.calls = lib, at, behind, 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._lib, name)
        if name not in ("llama_memory_seq_cp", "llama_memory_seq_rm", "llama_decode"):
            return function

        def call(*args: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            if number == self._at and not self._behind:
                raise KeyboardInterrupt
            result = function(*args)
            if number == self._at:
                raise KeyboardInterrupt
            return result

        return call


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_an_interrupt_at_any_call(load: Any, tiny: Any, behind: bool) -> None:
    fresh = load(tiny(), **F32)
    prompt = [1, 2, 3, 4, 5]
    for at in range(200):
        backend = load(tiny(), **F32)
        live = LiveSequence(backend)
        live.start(prompt)
        lib = backend._lib
        bombed = Bombed(lib, at, behind)
        backend._lib = backend._branches._lib = bombed
        broke = False
        try:
            for last, recovered in ((5, 20), (3, 21)):
                live.verify(range(10, 16), parents=[parent - 1 for parent in PARENTS[1:]])
                rows = path(PARENTS, last)[1:]
                live.commit([*(9 + row for row in rows), recovered], [row - 1 for row in rows])
                live.verify([7, 8])
                live.commit([7, 9])
        except KeyboardInterrupt:
            broke = True
        backend._lib = backend._branches._lib = lib
        live.settle()
        whole = [*prompt, 11, 14, 20, 7, 9, 10, 12, 21, 7, 9]
        assert live.tokens == whole[: len(live.tokens)]
        for _ in range(2):
            # a tree again, over the same ids, and then a plain row
            output = live.verify([3, 4, 5], parents=[-1, -1, 0])
            seen = [output.logits(i).copy() for i in range(4)]
            for row, branch in zip(seen, ([], [3], [4], [3, 5]), strict=True):
                check_row(fresh, [*live.tokens, *branch], row)
            live.commit([4, 6], [1])
            assert backend.length(live.seq) == len(live.tokens) - 1
        assert len(backend._state(live.seq, 0)) == state_size(fresh, len(live.tokens) - 1)
        backend.close()
        if not broke:
            assert at > 10
            return
    pytest.fail("the bomb went off in every run")


def check_row(fresh: Any, tokens: Sequence[int], row: Any) -> None:
    seq = fresh.open()
    assert np.abs(fresh.forward([Rows(seq, tokens)]).logits(0) - row).max() < CLOSE
    fresh.drop(seq)


def state_size(fresh: Any, n: int) -> int:
    seq = fresh.open()
    fresh.forward([Rows(seq, [1] * n, logits_from=n)])
    size = len(fresh._state(seq, 0))
    fresh.drop(seq)
    return size


def test_a_cancelled_pass_over_a_tree_leaves_the_sequence(load: Any, tiny: Any) -> None:
    backend = load(tiny())
    seq = backend.open()
    backend.forward([Rows(seq, [1, 2, 3])])
    backend._lib = Cancelling(backend._lib, backend)
    with pytest.raises(Exception, match="cancelled"):
        backend.forward([Rows(seq, [4, 5, 6], parents=[-1, 0, 0])])
    backend._lib = backend._lib.lib
    assert backend.length(seq) == 3
    with pytest.raises(BackendError, match="no tree"):
        backend.commit_path(seq, [0])
    assert len(backend._state(seq, 0)) == state_size(load(tiny()), 3)


class Cancelling:
    """Sets the abort byte as a pass begins."""

    def __init__(self, lib: Any, backend: Any) -> None:
        self.lib, self._backend = lib, backend

    def __getattr__(self, name: str) -> Any:
        if name == "llama_decode":
            self._backend.cancel()
        return getattr(self.lib, name)


# What it takes and what it refuses.


@pytest.mark.parametrize("kind", ["recurrent", "hybrid", "swa"])
@pytest.mark.parametrize("swa_full", [False, True])
def test_models_without_trees(load: Any, tiny: Any, kind: str, swa_full: bool) -> None:
    backend = load(tiny(kind), swa_full=swa_full)
    assert not backend.capabilities.tree
    assert backend.capabilities.max_leaves == 1
    seq = backend.open()
    with pytest.raises(UnsupportedError, match="tree_leaves"):
        backend.forward([Rows(seq, [1, 2], parents=[-1, -1])])
    with pytest.raises(UnsupportedError, match="tree_leaves"):
        backend.commit_path(seq, [0])
    assert backend.length(seq) == 0


@pytest.mark.parametrize(("leaves", "seqs", "taken"), [(0, 1, 1), (1, 1, 1), (8, 1, 8), (8, 60, 4)])
def test_leaves(load: Any, tiny: Any, leaves: int, seqs: int, taken: int) -> None:
    backend = load(tiny(), tree_leaves=leaves, max_seqs=seqs)
    assert backend.capabilities.max_leaves == taken
    assert backend.capabilities.tree == (taken > 1)
    assert backend.capabilities.max_seqs == seqs


def test_trees_that_are_none(load: Any, tiny: Any) -> None:
    backend = load(tiny(), tree_leaves=2, max_seqs=2)
    seq, other = backend.open(), backend.open()
    backend.forward([Rows(seq, [1, 2, 3])])
    for parents in ([-1, -1, -1], [-1, 2, 0], [-1, 0, 3], [-2, 0, 0], [-1, -1]):
        with pytest.raises(DecodeError):
            backend.forward([Rows(seq, [1, 2, 3], parents=parents)])
    with pytest.raises(DecodeError, match="one tree"):
        backend.forward([Rows(s, [1, 2], parents=[-1, -1]) for s in (seq, other)])
    with pytest.raises(BackendError, match="no tree"):
        backend.commit_path(seq, [0])
    backend.forward([Rows(seq, [4, 5, 6], parents=[-1, 0, 0]), Rows(other, [9])])
    assert (backend.length(seq), backend.length(other)) == (3, 1)
    for nodes in ([1], [0, 1, 2], [0, 3], [-1], [0, 0]):
        with pytest.raises(BackendError, match="no path"):
            backend.commit_path(seq, nodes)
    with pytest.raises(BackendError, match="no tree"):
        backend.commit_path(other, [0])
    with pytest.raises(RollbackError):
        backend.rollback(seq, 5)
    assert backend.length(seq) == 3


def test_a_tree_beside_a_chain_of_another_sequence(load: Any, tiny: Any) -> None:
    backend, fresh = load(tiny(), max_seqs=2, **F32), load(tiny(), **F32)
    seq, other = backend.open(), backend.open()
    backend.forward([Rows(seq, [1, 2, 3])])
    output = backend.forward(
        [Rows(other, [9, 8]), Rows(seq, [4, 5, 6], logits_from=0, parents=[-1, 0, 0])]
    )
    rows = [output.logits(i).copy() for i in range(4)]
    backend.commit_path(seq, [0, 2])
    assert (backend.length(seq), backend.length(other)) == (5, 2)
    texts = ([9, 8], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 6])
    for row, text in zip(rows, texts, strict=True):
        check_row(fresh, text, row)
    check_row(fresh, [1, 2, 3, 4, 6, 7], backend.forward([Rows(seq, [7])]).logits(0).copy())


def test_a_tree_that_was_not_committed_is_gone(load: Any, tiny: Any) -> None:
    backend = load(tiny())
    seq = backend.open()
    backend.forward([Rows(seq, [1, 2, 3])])
    drops: list[Callable[[], Any]] = [
        lambda: backend.forward([Rows(seq, [3])]),
        lambda: backend.rollback(seq, 3),
        lambda: backend.rollback(seq, backend.length(seq)),
        lambda: backend.commit_path(seq, []),
    ]
    for drop in drops:
        backend.forward([Rows(seq, [1, 2], parents=[-1, -1])])
        drop()
        with pytest.raises(BackendError, match="no tree"):
            backend.commit_path(seq, [0])
    assert backend.length(seq) == 3
    assert len(backend._state(seq, 0)) == state_size(load(tiny()), 3)
