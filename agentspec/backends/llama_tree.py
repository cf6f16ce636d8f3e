"""The branches of a tree in llama.cpp's unified cache: each leaf is a sequence id of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from agentspec.backends.base import SeqId
from agentspec.errors import BackendError, DecodeError, UnsupportedError


@dataclass(frozen=True, slots=True)
class Tree:
    """The rows of a tree: what each follows, how deep it stands, and the leaves behind it.

    `leaves[i]` are numbers from 0 on, in the order in which the leaves stand among the rows.
    """

    parents: Sequence[int]
    depths: Sequence[int]
    leaves: Sequence[Sequence[int]]
    count: int

    @classmethod
    def of(cls, parents: Sequence[int], most: int) -> Tree:
        """Raises UnsupportedError when `most` leaves are none, DecodeError for a wrong tree."""
        if not most:
            raise UnsupportedError(
                "this llama.cpp backend verifies chains only; trees need tree_leaves of at least 2 "
                "and a model without recurrent layers and sliding window"
            )
        depths: list[int] = []
        for i, parent in enumerate(parents):
            if not -1 <= parent < i:
                raise DecodeError(f"row {i} of a tree cannot follow row {parent}")
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        inner = set(parents)
        behind: list[list[int]] = [[] for _ in parents]
        count = 0
        for leaf in range(len(parents)):
            if leaf not in inner:
                row = leaf
                while row >= 0:
                    behind[row].append(count)
                    row = parents[row]
                count += 1
        if count > most:
            raise DecodeError(f"a tree of {count} leaves, the limit is {most} (tree_leaves)")
        return cls(parents, depths, behind, count)


class Branches:
    """Sequence ids `first` to `first + count - 1`, which hold the tree of the last pass.

    Between passes they share the oldest cells of one sequence, the owner's: to share all of a
    long text anew at each pass would cost more than the pass. The rows of a tree belong to these
    ids only, so the owner is as it was until a branch is committed, whatever happens before.
    """

    def __init__(self, lib: Any, memory: Any, first: int, count: int) -> None:
        self._lib = lib
        self._memory = memory
        self._first = first
        self.count = count
        self._owner: SeqId = -1
        self._shared = [0] * count
        """How many tokens of the owner each id holds."""
        self._tree: tuple[Tree, int] | None = None
        """The tree of the last pass, and the owner's length before it."""
        self._sure = True
        """False while ids are changed: what an interrupt leaves of that is not known."""

    def ids(self, tree: Tree) -> list[list[int]]:
        """The sequence ids of each row."""
        return [[self._first + leaf for leaf in leaves] for leaves in tree.leaves]

    def open(self, seq: SeqId, length: int, tree: Tree) -> None:
        """Let as many ids as the tree has leaves hold the `length` tokens of a sequence."""
        self.drop()
        if seq != self._owner:
            self._forget()
            self._owner = seq
        self._sure = False
        for leaf in range(tree.count):
            if self._shared[leaf] < length:
                self._copy(seq, self._first + leaf, self._shared[leaf], length)
                self._shared[leaf] = length
        self._tree = tree, length
        self._sure = True

    def commit(self, seq: SeqId, nodes: Sequence[int]) -> None:
        """Give the owner the rows of a path, and free the others."""
        if self._tree is None or seq != self._owner:
            raise BackendError(f"sequence {seq} has no tree of the last pass")
        tree, start = self._tree
        n = len(tree.parents)
        if any(not 0 <= b < n or tree.parents[b] != a for a, b in pairwise([-1, *nodes])):
            raise BackendError(f"rows {list(nodes)} are no path of the tree")
        self._sure = False
        self._tree = None
        if nodes:
            leaf = tree.leaves[nodes[-1]][0]
            self._copy(self._first + leaf, seq, start, start + len(nodes))
        for leaf in range(tree.count):
            self._cut(leaf, start)
        self._sure = True

    def drop(self) -> None:
        """Free the rows of a tree that was not committed."""
        if not self._sure:
            self._forget()
        if self._tree is not None:
            tree, start = self._tree
            self._sure = False
            self._tree = None
            for leaf in range(tree.count):
                self._cut(leaf, start)
            self._sure = True

    def cut(self, seq: SeqId, length: int) -> None:
        """Let go of what a sequence is about to lose."""
        if not self.count or seq != self._owner:
            return
        self.drop()
        self._sure = False
        for leaf, shared in enumerate(self._shared):
            if shared > length:
                self._cut(leaf, length)
        self._sure = True

    def _forget(self) -> None:
        self._sure = False
        self._tree = None
        for leaf in range(self.count):
            self._lib.llama_memory_seq_rm(self._memory, self._first + leaf, -1, -1)
            self._shared[leaf] = 0
        self._sure = True

    def _copy(self, source: int, to: int, start: int, end: int) -> None:
        self._lib.llama_memory_seq_cp(self._memory, source, to, start, end)

    def _cut(self, leaf: int, length: int) -> None:
        self._lib.llama_memory_seq_rm(self._memory, self._first + leaf, length, -1)
        self._shared[leaf] = length
