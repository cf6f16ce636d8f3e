"""The draft layers of EAGLE-1 and EAGLE-3, fed with the hidden states of the target's own passes.

Row i of the layers is made of the hidden state of token i and the embedding of token i + 1, at
position i; it gives the law of token i + 2, and the feature that stands for the hidden state of
token i + 1 in rows that are drafted behind it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from agentspec.backends.torch_eagle_net import EagleNet
from agentspec.errors import BackendError, CancelledError, DecodeError, line_of

if TYPE_CHECKING:
    from agentspec.backends.torch import TorchBackend
    from agentspec.backends.torch_trail import Rows


class _Laws:
    """The laws behind rows of one pass, on the device until somebody asks."""

    def __init__(self, net: EagleNet, features: Any) -> None:
        self._net = net
        self._logits = net.logits(features).float()
        self._best: tuple[int, list[list[int]], list[list[float]]] = 0, [], []

    def top(self, row: int, k: int) -> list[tuple[int, float]]:
        k = min(k, self._logits.shape[-1])
        if self._best[0] < k:
            # one transfer for all rows of the pass
            with torch.inference_mode():
                found = torch.log_softmax(self._logits, -1).topk(k)
                ids = self._net.target_ids(found.indices)
            self._best = k, ids.tolist(), found.values.tolist()
        _, ids, logs = self._best
        return [(i, math.exp(log)) for i, log in zip(ids[row][:k], logs[row][:k], strict=True)]

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = self._logits[row].cpu().numpy()
        where = self._net.files.ids
        if where is None:
            return found
        full = np.full(self._net.vocab_size, -np.inf, dtype=np.float32)
        full[where.numpy()] = found
        return full


class EagleLaw(NamedTuple):
    """q at one position."""

    laws: _Laws
    row: int

    def top(self, k: int) -> Sequence[tuple[int, float]]:
        """The k likeliest tokens and their probabilities, the likeliest first."""
        return self.laws.top(self.row, k)

    def logits(self) -> npt.NDArray[np.float32]:
        """Logits over the target's vocabulary, minus infinity for what is not in its own."""
        return self.laws.logits(self.row)


def _never() -> bool:
    return False


class EagleReading:
    """The draft layers behind one text: a `Reading` of `agentspec.propose.eagle`.

    Rows of the committed text stay in the layers' KV cache from turn to turn, up to the first
    token that differs; rows of drafted tokens are dropped before the next `read`. Where the hidden
    state of a token was never seen (a sequence that came from disk), its row is left out.
    `spent` is told the seconds and rows of every pass.
    """

    def __init__(self, net: EagleNet, *, chunk: int = 512) -> None:
        self.net = net
        self._chunk = chunk
        self._caches = net.caches()
        self._text: list[int] = []
        self._at: list[int] = []  # the position of each cached row of the text
        self._last: Any = None
        self._lines: list[npt.NDArray[np.bool_]] = []  # which drafted rows each one sees
        self._depths: list[int] = []
        self._features: list[Any] = []
        self._cancelled: Callable[[], bool] = _never
        self.rows = 0
        self.spent: Callable[[float, int], None] | None = None

    @property
    def vocab_size(self) -> int:
        return self.net.vocab_size

    @property
    def pending(self) -> int:
        """Rows of the text that `read` has to read, at least one."""
        return max(1, len(self._text) - 1 - (self._at[-1] + 1 if self._at else 0))

    @property
    def read_up_to(self) -> tuple[int, ...]:
        """The positions of the rows in the cache."""
        return tuple(self._at)

    def begin(self, tokens: Sequence[int], cancelled: Callable[[], bool] = _never) -> None:
        """The committed tokens of a new turn."""
        self.cut()
        same = min(len(tokens), len(self._text))
        if list(tokens[:same]) != self._text[:same]:
            same = next(i for i in range(same) if tokens[i] != self._text[i])
        # row i holds token i + 1
        while self._at and self._at[-1] > same - 2:
            self._at.pop()
        self._shorten(len(self._at))
        self._text = list(tokens)
        self._cancelled = cancelled
        self._last = None

    def commit(self, tokens: Sequence[int]) -> None:
        """These follow, whatever was drafted."""
        self.cut()
        self._text += tokens
        self.net.trail.settle(self._text)

    def read(self) -> EagleLaw | None:
        """q behind the committed tokens, None where their hidden states are not there.

        Reads what it has not, a chunk in each pass. Raises CancelledError when the turn is
        cancelled, DecodeError with the cache unchanged.
        """
        self.cut()
        end = len(self._text) - 1
        start = self._at[-1] + 1 if self._at else 0
        if start >= end and self._last is not None:
            return self._law(self._last)
        if start >= end:
            # the feature behind the last row is not kept over turns
            start = max(0, end - 1)
            while self._at and self._at[-1] >= start:
                self._at.pop()
            self._shorten(len(self._at))
        kept, rows = self.net.trail.since(self._text, start), 0
        for stretch in kept:
            for at in range(stretch.start, stretch.end, self._chunk):
                if self._cancelled():
                    raise CancelledError("generation was cancelled while the prompt was read")
                self._append(at, min(at + self._chunk, stretch.end), stretch.rows)
                rows += self.rows
        self.rows = rows
        return self._law(self._last) if kept else None

    def grow(self, parents: Sequence[int], tokens: Sequence[int]) -> Sequence[EagleLaw]:
        """q behind each of these drafted tokens, in one pass.

        `parents[i]` is which of the tokens grown by earlier passes since `read` token i follows,
        -1 the committed ones. Raises DecodeError with the cache unchanged.
        """
        assert self._last is not None
        before, count = len(self._lines), len(tokens)
        lines, depths = [], []
        for i, parent in enumerate(parents):
            line = np.zeros(before + count, dtype=bool)
            if parent >= 0:
                line[: len(self._lines[parent])] = self._lines[parent]
            line[before + i] = True
            lines.append(line)
            depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
        cells = np.ones((count, len(self._at)), dtype=bool)
        seen = torch.from_numpy(np.concatenate([cells, np.stack(lines)], axis=1))
        start = len(self._text) - 1
        features = self._pass(
            torch.cat([self._features[p] if p >= 0 else self._last for p in parents]),
            tokens,
            [start + depth for depth in depths],
            seen,
        )
        self._lines += lines
        self._depths += depths
        self._features += features.split(1)
        laws = self._laws(features)
        return [EagleLaw(laws, i) for i in range(count)]

    def cut(self) -> None:
        """Drop the rows of drafted tokens."""
        self._lines, self._depths, self._features = [], [], []
        self._shorten(len(self._at))

    def end(self) -> None:
        """The turn is over; what is read of it stays."""
        self._cancelled = _never  # it knows the request, which nothing may keep
        self.cut()

    def close(self) -> None:
        """Free the cache."""
        self._caches, self._at, self._last = self.net.caches(), [], None

    def _append(self, at: int, upto: int, rows: Rows) -> None:
        """Read these rows of the text."""
        cells, count = len(self._at), upto - at
        seen = torch.ones(count, cells + count, dtype=torch.bool).tril(cells)
        tokens = self._text[at + 1 : upto + 1]
        features = self._pass(rows.between(at, upto), tokens, range(at, upto), seen)
        self._at += range(at, upto)
        self._last = features[-1:].clone()

    def _pass(
        self, features: Any, tokens: Sequence[int], positions: Sequence[int], seen: Any
    ) -> Any:
        started, held = time.perf_counter(), self._caches[0].rows
        try:
            with torch.inference_mode():
                # one row sees all there is when nothing else was drafted
                mask = None if len(tokens) == 1 and bool(seen.all()) else seen
                found = self.net.run(features, tokens, positions, mask, self._caches)
                if found.device.type == "cuda":
                    torch.cuda.synchronize(found.device)
        except BaseException as error:
            self._shorten(held)
            if isinstance(error, BackendError) or not isinstance(error, Exception):
                raise
            raise DecodeError(
                f"a pass of {len(tokens)} rows on an EAGLE layer failed: {line_of(error)}"
            ) from error
        self.rows = len(tokens)
        if self.spent is not None:
            self.spent(time.perf_counter() - started, self.rows)
        return found

    def _law(self, feature: Any) -> EagleLaw:
        return EagleLaw(self._laws(feature), 0)

    def _laws(self, features: Any) -> _Laws:
        with torch.inference_mode():
            return _Laws(self.net, features)

    def _shorten(self, rows: int) -> None:
        for cache in self._caches:
            cache.cut(rows)


def open_eagle(folder: str | Path, target: TorchBackend) -> EagleNet:
    """The draft layers of a checkpoint for a target, to make an `EagleReading` of for each text.

    Raises ModelNotFoundError, ModelFileError and PairMismatchError.
    """
    return EagleNet(Path(folder).expanduser(), target)


def pass_seconds(net: EagleNet, *, rounds: int = 5) -> float:
    """How long a pass of the layers over one row takes, the fastest of some."""
    found: list[float] = []
    with torch.inference_mode():
        feature = net.blank()
        caches = net.caches()
        for position in range(rounds + 1):
            started = time.perf_counter()
            _Laws(net, net.run(feature, [0], [position], None, caches)).top(0, 1)
            found.append(time.perf_counter() - started)
    return min(found[1:])
