"""The cache of one sequence of a transformers model, cut and copied without reading it again.

Attention layers keep keys and values in buffers that grow by half, so that one more row costs no
copy of the others (transformers' own layers copy all of them) and a cut is a number. Layers with a
sliding window keep everything too and show the window only: so they can be cut like the others.
Recurrent layers are transformers' own; their state is kept at checkpoints.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import cache_utils

from agentspec.errors import CancelledError, UnsupportedError

_STEP = 256
_NOTHING = -1
"""The window of a layer that keeps nothing of its own."""


class Growing(cache_utils.CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one attention layer, [1, heads, rows, width each].

    `window` is how many tokens a row sees, itself included, 0: all. `stopped` is asked at every
    pass and raises.
    """

    is_croppable = True

    def __init__(self, window: int, stopped: Callable[[], None]) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window > 0
        self.rows = 0
        self.where: Any = None
        """Set while a pass is captured: a tensor of the cells that its rows take."""
        self._stopped = stopped
        self.moves = 0
        """How often the buffers were made anew."""
        self._buffers: tuple[Any, Any] | None = None

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        self._reserve(key_states.shape[-2], key_states, value_states)

    def _reserve(self, rows: int, key_states: Any, value_states: Any) -> None:
        old = self._buffers
        if old is not None and rows <= old[0].shape[-2]:
            return
        size = max(rows, self.rows * 3 // 2) + _STEP
        size -= size % _STEP
        self._remake(size, (key_states, value_states))
        self.is_initialized = True

    def reserve(self, cells: int) -> None:
        """Have room for so many rows, and show all of it to a pass that is captured."""
        if self._buffers is not None and self._buffers[0].shape[-2] != cells:
            self._remake(cells, self._buffers)

    def _remake(self, cells: int, like: tuple[Any, Any]) -> None:
        """Put the rows into new buffers of so many cells, of the shape and type of `like`."""
        old, buffers = self._buffers, []
        for at, states in enumerate(like):
            shape = (*states.shape[:-2], cells, states.shape[-1])
            # cells behind the rows are hidden by masks, which do not hide what is no number
            buffer = torch.zeros(shape, dtype=states.dtype, device=states.device)
            if old is not None:
                buffer[..., : self.rows, :] = old[at][..., : self.rows, :]
            buffers.append(buffer)
        self._buffers = buffers[0], buffers[1]
        self.moves += 1

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        if self.where is not None:
            assert self._buffers is not None
            for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
                buffer.index_copy_(-2, self.where, states)
            return self._buffers
        self._stopped()
        count = key_states.shape[-2]
        end = self.rows + count
        self._reserve(end, key_states, value_states)
        assert self._buffers is not None
        keys, values = self._buffers
        keys[..., self.rows : end, :] = key_states
        values[..., self.rows : end, :] = value_states
        self.rows = end
        begin = self.seen_from(end - count)
        return keys[..., begin:end, :], values[..., begin:end, :]

    def seen_from(self, rows: int) -> int:
        """The first cell that the row behind so many rows sees."""
        return max(0, rows - self.window + 1) if self.window else 0

    def states(self) -> tuple[Any, Any] | None:
        """Keys and values of all rows, None while there are none."""
        if self._buffers is None or not self.rows:
            return None
        keys, values = self._buffers
        return keys[..., : self.rows, :], values[..., : self.rows, :]

    def fill(self, keys: Any, values: Any) -> None:
        """Hold copies of these and nothing else."""
        self.rows, count = 0, keys.shape[-2]
        self._reserve(count, keys, values)
        assert self._buffers is not None
        for buffer, states in zip(self._buffers, (keys, values), strict=True):
            buffer[..., :count, :] = states
        self.rows = count

    def cut(self, rows: int) -> None:
        self.rows = max(0, min(self.rows, rows))

    def move(self, start: int, nodes: Any) -> None:
        """Put the rows `nodes` behind `start` in their order, right behind it, and cut there."""
        if self._buffers is not None:
            for buffer in self._buffers:
                buffer[..., start : start + len(nodes), :] = buffer.index_select(
                    -2, nodes.to(buffer.device) + start
                )
        self.cut(start + len(nodes))

    def reset(self) -> None:
        self.rows = 0

    def crop(self, tokens_to_remove: int) -> None:
        self.cut(self.rows - abs(tokens_to_remove))

    def get_seq_length(self) -> int:
        return self.rows

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        # a tensor of positions in the first releases of transformers 5
        count = query_length if isinstance(query_length, int) else int(query_length.shape[0])
        begin = self.seen_from(self.rows)
        return self.rows + count - begin, begin

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1


@dataclass(frozen=True, slots=True)
class Layout:
    """What the layers of a model keep: a window for attention, None for a recurrent state."""

    windows: tuple[int | None, ...]

    @property
    def recurrent(self) -> bool:
        return None in self.windows

    @property
    def spans(self) -> frozenset[int]:
        """The windows of the attention layers, 0 where one sees everything."""
        return frozenset(w for w in self.windows if w is not None and w != _NOTHING)


def layout_of(config: Any) -> Layout:
    """Raises UnsupportedError, naming it, for a kind of layer that this backend cannot keep."""
    text = config.get_text_config(decoder=True)
    told = getattr(text, "layer_types", None) or ()
    chunked = bool(getattr(text, "attention_chunk_size", None)) or "chunked_attention" in told
    windows: list[int | None] = []
    for layer in cache_utils.DynamicCache(config=text).layers:
        kind = type(layer).__name__
        if kind == "DynamicLayer":
            windows.append(0)
        elif kind == "DynamicSlidingWindowLayer" and not chunked:
            windows.append(int(layer.sliding_window))
        elif kind == "DummyLayer":
            windows.append(_NOTHING)
        elif kind.startswith("LinearAttention"):
            windows.append(None)
        else:
            named = "chunked attention" if chunked else kind
            raise UnsupportedError(
                f"the torch backend cannot keep the cache of {text.model_type}: it knows no layer "
                f"of the kind {named}; load a GGUF of this model with llama.cpp"
            )
    layout = Layout(tuple(windows))
    if len(layout.spans) > 2 or (len(layout.spans) == 2 and 0 not in layout.spans):
        raise UnsupportedError(
            f"the torch backend cannot keep the cache of {text.model_type}: its layers have "
            "several sliding windows; load a GGUF of this model with llama.cpp"
        )
    return layout


class SavedState:
    """What a checkpoint kept: the recurrent layers' state; `intact` until it was cut below."""

    def __init__(self, length: int, layers: Sequence[dict[str, Any]]) -> None:
        self.length = length
        self.layers = layers
        self.intact = True

    @property
    def size(self) -> int:
        """Bytes of its own."""
        return sum(
            tensor.numel() * tensor.element_size()
            for layer in self.layers
            for name, tensor in tensors_of(layer)
            if name not in _APPENDED
        )


# transformers grows these by making new ones, so that an old one can be kept as it is
_APPENDED = ("keys", "values")


class TorchSequence:
    """One sequence: the layers' caches and how many tokens of it count.

    Layers may hold more rows than `length`: those of a tree, of an early exit, or of a pass that
    failed. `settle` drops them.
    """

    def __init__(
        self, config: Any, layout: Layout, device: Any, stopped: Callable[[], None]
    ) -> None:
        self.device = device
        self.length = 0
        self.ahead = 0
        """Rows of an early exit behind them."""
        self.exit_layer = 0
        self.tree: tuple[int, ...] | None = None
        """Parents of the rows of the last pass that are no part of the sequence yet."""
        self.torn = False
        """True while a pass changes recurrent state."""
        self.saved: weakref.WeakSet[SavedState] = weakref.WeakSet()
        self._arguments = config, layout, device, stopped
        given = cache_utils.DynamicCache(config=config).layers
        layers = [
            own if window is None or window == _NOTHING else Growing(window, stopped)
            for own, window in zip(given, layout.windows, strict=True)
        ]
        self.growing = [layer for layer in layers if isinstance(layer, Growing)]
        self.recurrent = [
            layer for layer, window in zip(layers, layout.windows, strict=True) if window is None
        ]
        self.cache = cache_utils.Cache(layers=layers)

    def settle(self) -> None:
        """Drop all rows that are not part of the sequence."""
        self.tree, self.ahead = None, 0
        for layer in self.growing:
            layer.cut(self.length)

    def cut(self, length: int) -> None:
        """`settle` at a shorter length; recurrent state is not looked at."""
        self.length = length
        self.settle()
        for saved in self.saved:
            if saved.length > length:
                saved.intact = False

    def put_back(self, length: int, ahead: int) -> None:
        """Drop what a failed pass has left behind `length` tokens and `ahead` rows of an exit."""
        self.cut(length)
        if ahead:
            # the rows are still in the buffers: a cut moves a number
            self.ahead = ahead
            for layer in self.growing[: self.exit_layer]:
                layer.rows = length + ahead

    def cut_ahead(self, rows: int) -> None:
        """Keep so many rows of an early exit."""
        self.ahead = rows
        for layer in self.growing[: self.exit_layer]:
            layer.cut(self.length + rows)

    def keep(self, nodes: Sequence[int]) -> None:
        """Make these rows of the tree part of the sequence, and drop the others."""
        start = self.length
        if list(nodes) != list(range(len(nodes))):
            wanted = torch.tensor(list(nodes), dtype=torch.long)
            for layer in self.growing:
                layer.move(start, wanted)
        self.length = start + len(nodes)
        self.settle()

    def clear(self) -> None:
        """Be empty; what recurrent layers keep is made anew."""
        for saved in self.saved:
            saved.intact = False
        fresh = TorchSequence(*self._arguments)
        self.growing, self.recurrent, self.cache = fresh.growing, fresh.recurrent, fresh.cache
        self.length, self.torn = 0, False
        self.settle()

    def checkpoint(self) -> SavedState:
        saved = SavedState(self.length, [_copied(state_of(layer)) for layer in self.recurrent])
        self.saved.add(saved)
        return saved

    def restore(self, saved: SavedState) -> None:
        for layer, state in zip(self.recurrent, saved.layers, strict=True):
            state_of(layer).update(_copied(state))
        self.torn = False
        self.cut(saved.length)

    def copy(self) -> TorchSequence:
        new = TorchSequence(*self._arguments)
        for mine, its in zip(self.growing, new.growing, strict=True):
            mine.cut(self.length)
            states = mine.states()
            if states is not None:
                its.fill(*states)
        for own, other in zip(self.recurrent, new.recurrent, strict=True):
            state_of(other).update(_copied(state_of(own)))
        new.length = self.length
        return new


def state_of(layer: Any) -> dict[str, Any]:
    """Everything that a layer of transformers holds, by name."""
    held: dict[str, Any] = layer.__dict__
    return held


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a recurrent layer, copied where transformers changes it in place."""

    def copied(name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if name in _APPENDED else value.clone()
        if isinstance(value, dict):
            return {key: copied(name, inner) for key, inner in value.items()}
        return value

    return {name: copied(name, value) for name, value in state.items()}


def tensors_of(state: dict[str, Any]) -> Sequence[tuple[str, Any]]:
    """The tensors in a layer's state and their names, `name.key` for those in a dict."""
    found: list[tuple[str, Any]] = []
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            found.append((name, value))
        elif isinstance(value, dict):
            found += [(f"{name}.{k}", v) for k, v in value.items() if isinstance(v, torch.Tensor)]
    return found


def stop_when(flag: Sequence[bool]) -> Callable[[], None]:
    """A check that raises CancelledError when `flag[0]` is set."""

    def stopped() -> None:
        if flag[0]:
            raise CancelledError("the pass was cancelled")

    return stopped
