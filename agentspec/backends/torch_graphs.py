"""CUDA graphs of small passes: a pass of a few rows is launched as one, not kernel by kernel.

A captured pass reads and writes fixed places, so it works on whole buffers: new keys and values
go where a tensor of positions says, and a mask hides what lies behind. Each is compared with the
pass it replaces before it is believed; a model whose passes cannot be captured runs without.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from agentspec.backends.torch_attention import visible
from agentspec.errors import CancelledError

if TYPE_CHECKING:
    from agentspec.backends.torch_cache import TorchSequence
    from agentspec.backends.torch_pass import Features

_log = logging.getLogger(__name__)

MOST_ROWS = 16
"""Rows of the largest pass that is captured: larger ones keep a GPU busy by themselves."""
_LEAST_CELLS = 1024
_OFF = 0.05
"""How far a captured pass may be off, as a share of the largest logit."""

Forward = Callable[[dict[str, Any]], tuple[Any, "Features | None"]]
"""A pass over given inputs: the logits of all rows, and the hidden states if they are wanted."""


@dataclass(slots=True)
class _Captured:
    """A pass with its inputs and outputs in fixed places; `play` runs it."""

    ids: Any
    positions: Any
    where: Any
    masks: dict[int, Any]
    play: Callable[[], None]
    logits: Any = None
    features: Features | None = None


class Replays:
    """The captured passes of one model, for each sequence and row count.

    `shaped` makes a mask of [rows, cells] what the model takes, `mapped` masks by window one
    argument. With `capture` off passes are run as they would be captured, for tests without CUDA.
    """

    def __init__(
        self,
        device: Any,
        spans: frozenset[int],
        *,
        shaped: Callable[[Any], Any],
        mapped: Callable[[dict[int, Any]], Any],
        capture: bool = True,
    ) -> None:
        self._device = device
        self._spans = spans
        self._shaped = shaped
        self._mapped = mapped
        self._capture = capture
        self._pool: Any = None
        self._made: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], _Captured]]
        self._made = weakref.WeakKeyDictionary()
        self.works = True
        self.played = 0

    def takes(self, sequence: TorchSequence, count: int) -> bool:
        """Whether a pass of the whole model over so many rows is one of those captured."""
        return self.works and sequence.length > 0 and count <= MOST_ROWS

    def run(
        self,
        sequence: TorchSequence,
        tokens: Sequence[int],
        parents: Sequence[int] | None,
        kind: tuple[Any, ...],
        forward: Forward,
        plain: Callable[[], tuple[Any, Features | None]],
    ) -> tuple[Any, Features | None]:
        """The pass, replayed, or `plain` at its first time. `kind` tells apart what is kept of it.

        The rows are in the layers afterwards, as behind `plain`.
        """
        start, count = sequence.length, len(tokens)
        cells = _LEAST_CELLS
        while cells < start + count:
            cells *= 2
        for layer in sequence.growing:
            layer.reserve(cells)
        # a buffer that has moved is not where a captured pass looks for it
        key = (sum(layer.moves for layer in sequence.growing), count, *kind)
        passes = self._made.setdefault(sequence.cache, {})
        if any(known[0] != key[0] for known in passes):
            passes.clear()
        made = passes.get(key)
        if made is not None:
            self._fill(made, start, tokens, parents)
            made.play()
            self.played += 1
        else:
            expected = plain()[0].clone()
            made = self._try(sequence, cells, start, tokens, parents, forward, expected)
            if made is None:
                for layer in sequence.growing:
                    layer.cut(start)
                return plain()
            passes[key] = made
        for layer in sequence.growing:
            layer.rows = start + count
        # who keeps hidden states must not find those of a later pass in their place
        return made.logits, made.features.copy() if made.features is not None else None

    def _try(
        self,
        sequence: TorchSequence,
        cells: int,
        start: int,
        tokens: Sequence[int],
        parents: Sequence[int] | None,
        forward: Forward,
        expected: Any,
    ) -> _Captured | None:
        """The captured pass when it gives what the plain one gave, else None for ever after.

        It writes the same keys and values to the same places as the plain one did.
        """
        try:
            made = self._make(sequence, cells, len(tokens), forward, start, tokens, parents)
            made.play()
            off = float((made.logits - expected).abs().max())
            scale = float(expected.abs().max())
            if not off <= _OFF * scale:
                raise RuntimeError(f"it is off by {off:.3g} of {scale:.3g}")
            return made
        except CancelledError:
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            self.works = False
            self._made.clear()
            _log.warning("passes are not captured as CUDA graphs: %s", " ".join(str(error).split()))
            return None

    def _make(
        self,
        sequence: TorchSequence,
        cells: int,
        count: int,
        forward: Forward,
        start: int,
        tokens: Sequence[int],
        parents: Sequence[int] | None,
    ) -> _Captured:
        device = self._device
        long = {"dtype": torch.long, "device": device}
        hidden = torch.zeros((count, cells), dtype=torch.bool, device=device)
        made = _Captured(
            torch.zeros((1, count), **long),
            torch.zeros((1, count), **long),
            torch.zeros(count, **long),
            {window: self._shaped(hidden).clone() for window in self._spans},
            lambda: None,
        )
        self._fill(made, start, tokens, parents)

        def once() -> None:
            for layer in sequence.growing:
                layer.where = made.where
            try:
                made.logits, made.features = forward(
                    {
                        "input_ids": made.ids,
                        "position_ids": made.positions,
                        "attention_mask": self._mapped(made.masks),
                    }
                )
            finally:
                for layer in sequence.growing:
                    layer.where = None

        made.play = self._captured(once) if self._capture else once
        return made

    def _captured(self, once: Callable[[], None]) -> Callable[[], None]:
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            # kernels are chosen and memory is taken at the first runs, which cannot be captured
            for _ in range(2):
                once()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            once()
        if self._pool is None:
            self._pool = graph.pool()
        replay: Callable[[], None] = graph.replay
        return replay

    def _fill(
        self, made: _Captured, start: int, tokens: Sequence[int], parents: Sequence[int] | None
    ) -> None:
        """Put a pass's inputs into their places."""
        count = len(tokens)
        positions: Sequence[int] = ()
        for window, mask in made.masks.items():
            seen, positions = visible(start, count, window, parents, self._device)
            cells = mask.shape[-1]
            whole = torch.zeros((count, cells), dtype=torch.bool, device=self._device)
            whole[:, start + count - seen.shape[1] : start + count] = seen
            mask.copy_(self._shaped(whole))
        made.ids.copy_(torch.tensor([list(tokens)], dtype=torch.long))
        made.positions.copy_(torch.tensor([list(positions)], dtype=torch.long))
        made.where.copy_(torch.arange(start, start + count))
