"""A model of one's own behind the engine, a table of bigrams: python examples/custom_backend.py

Whatever satisfies `agentspec.backends.base.Backend` is a target: this one writes the word that
most often followed the last one in a text. It shows what the protocol asks for, and that drafts
save passes without changing what is written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from agentspec import Engine
from agentspec.backends.base import Capabilities, Checkpoint, Output, Rollback, Rows, SeqId
from agentspec.chat.template import load_template
from agentspec.errors import CancelledError, RollbackError, UnsupportedError

TEXT = """\
the cache keeps the keys and the values of the tokens. the draft is verified in one pass. the
tokens of the draft stand when the target would write them. the target writes one token more.
"""
START, END = "<|im_start|>", "<|im_end|>"


class Words:
    """The vocabulary: bytes, the marks of the chat template, and the words of a text."""

    def __init__(self, text: str) -> None:
        words = dict.fromkeys(re.findall(r"\s?\w+|\W", text))
        self.pieces = [bytes([n]) for n in range(256)] + [START.encode(), END.encode()]
        self.pieces += [word.encode() for word in words]
        self.ids = {piece: n for n, piece in enumerate(self.pieces) if n != 256 and n != 257}
        self.vocab_size, self.eos_ids = len(self.pieces), frozenset({257})

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        for word in re.findall(r"\s?\w+|\W", text):
            known = self.ids.get(word.encode())
            found += list(word.encode()) if known is None else [known]
        return found

    def encode_special(self, text: str) -> list[int]:
        parts = re.split(f"({re.escape(START)}|{re.escape(END)})", text)
        marks = {START: 256, END: 257}
        return [n for p in parts for n in ([marks[p]] if p in marks else self.encode(p))]

    def decode(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.pieces[n] for n in ids if not self.is_special(n))

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def is_special(self, token: int) -> bool:
        return token in (256, 257)


class Law:
    """The logits of one pass; a row is computed when it is asked for."""

    def __init__(self, table: npt.NDArray[np.float32], last: Sequence[int]) -> None:
        self._table, self._last = table, last

    def __len__(self) -> int:
        return len(self._last)

    def logits(self, i: int) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self._table[self._last[i]]
        return row

    def argmax(self, i: int) -> int:
        return int(self.logits(i).argmax())

    def hidden(self, i: int) -> npt.NDArray[np.float32]:
        raise UnsupportedError("a table has no hidden states")


class Bigrams:
    """A backend without a library: its cache is the tokens themselves."""

    capabilities = Capabilities(rollback=Rollback.TRIM, max_seqs=4)
    n_ctx, max_rows = 4096, 512

    def __init__(self, text: str) -> None:
        self.tokenizer = Words(text)
        self.vocab_size = n = self.tokenizer.vocab_size
        self.table = np.zeros((n, n), dtype=np.float32)
        tokens = self.tokenizer.encode(text)
        for (before, after), times in Counter(pairwise(tokens)).items():
            self.table[before, after] = times
        self.table[self.table.sum(axis=1) == 0, tokens[0]] = 1  # else as the text begins
        self.caches: dict[SeqId, list[int]] = {}
        self.passes = 0
        self._cancelled = False

    def open(self) -> SeqId:
        seq = next(n for n in range(self.capabilities.max_seqs) if n not in self.caches)
        self.caches[seq] = []
        return seq

    def drop(self, seq: SeqId) -> None:
        self.caches.pop(seq, None)

    def forward(self, rows: Sequence[Rows]) -> Output:
        if self._cancelled:
            self._cancelled = False
            raise CancelledError("the pass was cancelled")
        self.passes += 1
        last: list[int] = []
        for part in rows:
            self.caches[part.seq] += part.tokens
            last += part.tokens[part.first_logits_row :]
        return Law(self.table, last)

    def length(self, seq: SeqId) -> int:
        return len(self.caches[seq])

    def rollback(self, seq: SeqId, length: int) -> None:
        if length > len(self.caches[seq]):
            raise RollbackError(f"sequence {seq} is shorter than {length}")
        del self.caches[seq][length:]

    def fork(self, seq: SeqId) -> SeqId:
        new = self.open()
        self.caches[new] = list(self.caches[seq])
        return new

    def checkpoint(self, seq: SeqId) -> Checkpoint:
        return Checkpoint(seq, self.length(seq), tuple(self.caches[seq]))

    def restore(self, checkpoint: Checkpoint) -> None:
        assert isinstance(checkpoint.state, tuple)
        self.caches[checkpoint.seq] = list(checkpoint.state)

    def commit_path(self, seq: SeqId, nodes: Sequence[int]) -> None:
        raise UnsupportedError("this backend verifies chains only")

    def save(self, seq: SeqId, path: Path) -> None:
        raise UnsupportedError("a table is quicker than a file")

    def load(self, path: Path) -> SeqId:
        raise UnsupportedError("a table is quicker than a file")

    def cancel(self) -> None:
        self._cancelled = True

    def close(self) -> None:
        self.caches.clear()


def main() -> None:
    target = Bigrams(TEXT)
    template = load_template(None, bos="", eos=END, template="chatml")
    messages = [{"role": "user", "content": "What does the cache keep?"}]
    with Engine(target, template=template, model="bigrams") as engine:
        plain = engine.complete(messages, max_tokens=60, speculation=False)
        answer = engine.complete(messages, max_tokens=60)
    assert answer.text == plain.text
    print(answer.text)
    for name, one in (("plain", plain), ("accelerated", answer)):
        assert one.speculation is not None
        print(f"{name}: {one.usage.completion_tokens} tokens in {one.speculation.passes} passes")


if __name__ == "__main__":
    main()
