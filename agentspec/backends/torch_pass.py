"""Rows of one sequence through a transformers model: masks, positions, exits, hidden states."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from agentspec.backends.torch_attention import APART, MOST_APART, NAME, visible
from agentspec.backends.torch_cache import Layout, TorchSequence
from agentspec.backends.torch_graphs import Replays

_CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""What the releases of transformers 5 call the cache."""


@dataclass(frozen=True, slots=True)
class Features:
    """Hidden states of all rows of one part of a pass, [rows, width] each, on the device.

    `last` is what the head reads, behind the final norm; `taps[i]` is behind the first
    `backend.taps[i]` layers, 0 the embeddings; None where an exit ended before them.
    """

    last: Any
    taps: tuple[Any, ...] = ()

    def copy(self) -> Features:
        """The same in memory of its own."""
        taps = tuple(states.clone() if states is not None else None for states in self.taps)
        return Features(self.last.clone(), taps)


class Model:
    """A causal language model of transformers, and where in it its layers are.

    `layers` is how many there are, 0 when they are not found: then there is no early exit.
    """

    def __init__(self, model: Any, layout: Layout, device: Any) -> None:
        self.model = model
        self.size = sum(weight.numel() for weight in model.parameters())
        """Weights, as many as the model was loaded with."""
        self.device = device
        self._layout = layout
        self._base = model.base_model
        self._takes = _parameters(model), _parameters(self._base)
        self._cache_name = next(
            (name for name in _CACHE_NAMES if name in self._takes[0]), _CACHE_NAMES[1]
        )
        config = model.config.get_text_config(decoder=True)
        self._own_masks = not layout.recurrent
        self._eager = model.config._attn_implementation not in (NAME, APART)
        self._apart = model.config._attn_implementation == APART
        heads = int(getattr(config, "num_attention_heads", 1))
        groups = int(getattr(config, "num_key_value_heads", None) or heads)
        self._each = 1 if self._eager else max(1, heads // groups)
        self._owner, self._name, blocks = _blocks(self._base, int(config.num_hidden_layers))
        self._exits = {} if blocks is None else {len(blocks): blocks}
        self.layers = 0 if blocks is None else len(blocks)
        self.taps: tuple[int, ...] = ()
        self._hooks: list[Any] = []
        self._seen: dict[int, Any] = {}
        self._watch = False
        self._hooks.append(self._base.register_forward_hook(self._on_last))
        self.replays: Replays | None = None

    def tap(self, layers: Sequence[int]) -> None:
        """Keep what is behind the first n layers, for each n of `layers`."""
        blocks: Any = self._exits[self.layers] if self.layers else ()
        for hook in self._hooks[1:]:
            hook.remove()
        del self._hooks[1:]
        self.taps = tuple(layers)
        for n in self.taps:
            if n == 0:
                self._hooks.append(
                    blocks[0].register_forward_pre_hook(self._before, with_kwargs=True)
                )
            else:
                self._hooks.append(blocks[n - 1].register_forward_hook(self._behind(n)))

    def run(
        self,
        sequence: TorchSequence,
        tokens: Sequence[int],
        first: int,
        *,
        parents: Sequence[int] | None = None,
        features: bool = False,
        exit_layer: int | None = None,
    ) -> tuple[Any, Features | None]:
        """Append rows to the layers of a sequence; the logits of those from `first` on.

        The sequence's own length stays. Logits are [rows, vocabulary], None when none are asked.
        """
        replays = self.replays
        if replays is None or exit_layer is not None or not replays.takes(sequence, len(tokens)):
            return self._run(sequence, tokens, first, parents, features, exit_layer)
        logits, found = replays.run(
            sequence,
            tokens,
            parents,
            (features, self.taps),
            lambda inputs: self._call(sequence, inputs, True, features),
            lambda: self._run(sequence, tokens, 0, parents, features, None),
        )
        return (logits[first:] if first < len(tokens) else None), found

    def _run(
        self,
        sequence: TorchSequence,
        tokens: Sequence[int],
        first: int,
        parents: Sequence[int] | None,
        features: bool,
        exit_layer: int | None,
    ) -> tuple[Any, Features | None]:
        start, count = sequence.length + sequence.ahead, len(tokens)
        named: dict[str, Any] = {
            "input_ids": torch.tensor([list(tokens)], dtype=torch.long, device=self.device),
        }
        positions: Sequence[int] = range(start, start + count)
        if self._own_masks and (parents is not None or self._needs_mask(start, count)):
            named["attention_mask"], positions = self._masks(start, count, parents)
        named["position_ids"] = torch.tensor(
            [list(positions)], dtype=torch.long, device=self.device
        )
        asked = first < count
        if asked:
            named["logits_to_keep"] = (
                0 if first == 0 else torch.arange(first, count, device=self.device)
            )
        with self._up_to(exit_layer):
            logits, found = self._call(sequence, named, asked, features)
        if asked and len(logits) != count - first:
            logits = logits[first:]
        return logits, found

    def _call(
        self, sequence: TorchSequence, inputs: dict[str, Any], asked: bool, features: bool
    ) -> tuple[Any, Features | None]:
        """One call of the model, or of the layers alone where no logits are asked."""
        called, takes = (self.model, self._takes[0]) if asked else (self._base, self._takes[1])
        named = {"use_cache": True, self._cache_name: sequence.cache, **inputs}
        self._watch = features
        try:
            out = called(**{name: value for name, value in named.items() if name in takes})
            logits = out.logits[0] if asked else None
            found = None
            if features:
                found = Features(self._seen[-1], tuple(self._seen.get(n) for n in self.taps))
            return logits, found
        finally:
            self._watch = False
            self._seen.clear()

    def _needs_mask(self, start: int, count: int) -> bool:
        if self._apart:
            return count > MOST_APART
        return start > 0 and count > 1

    def capture(self, *, graphs: bool = True) -> None:
        """Replay small passes of the whole model; without `graphs` as if, for tests."""
        spread = getattr(self.model, "hf_device_map", None)
        if self._own_masks and not self._apart and not spread:
            self.replays = Replays(
                self.device,
                self._layout.spans,
                shaped=self._shaped,
                mapped=self._mapped,
                capture=graphs,
            )

    def run_singly(
        self, sequence: TorchSequence, tokens: Sequence[int], first: int, *, features: bool
    ) -> tuple[Any, Features | None]:
        """`run` in passes of one row, for models that begin anew at several; the length grows."""
        logits, found = [], []
        for i, token in enumerate(tokens):
            told, states = self.run(sequence, [token], 0 if i >= first else 1, features=features)
            sequence.length += 1
            logits += [told] if told is not None else []
            found += [states] if states is not None else []
        joined = torch.cat(logits) if logits else None
        if not features:
            return joined, None
        taps = tuple(torch.cat([f.taps[i] for f in found]) for i in range(len(self.taps)))
        return joined, Features(torch.cat([f.last for f in found]), taps)

    def head(self, hidden: Any) -> Any:
        """Logits of hidden states behind the final norm."""
        config = self.model.config.get_text_config(decoder=True)
        logits = self.model.get_output_embeddings()(hidden)
        if scale := getattr(config, "logit_scale", None):
            logits = logits * scale
        if scaling := getattr(config, "logits_scaling", None):
            logits = logits / scaling
        if cap := getattr(config, "final_logit_softcapping", None):
            logits = torch.tanh(logits / cap) * cap
        return logits

    def _masks(
        self, start: int, count: int, parents: Sequence[int] | None
    ) -> tuple[Any, Sequence[int]]:
        masks: dict[int, Any] = {}
        positions: Sequence[int] = ()
        for window in self._layout.spans:
            seen, positions = visible(start, count, window, parents, self.device)
            masks[window] = self._shaped(seen)
        return self._mapped(masks), positions

    @staticmethod
    def _mapped(masks: dict[int, Any]) -> Any:
        if len(masks) == 1:
            return next(iter(masks.values()))
        # models whose attention layers differ take one mask per kind, and there are two kinds
        return {"full_attention": masks[0], "sliding_attention": masks[max(masks)]}

    def _shaped(self, seen: Any) -> Any:
        if self._eager:
            dtype = self.model.dtype
            mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
            return mask.masked_fill_(~seen, torch.finfo(dtype).min)[None, None]
        return seen.repeat(self._each, 1)[None, None]

    @contextmanager
    def _up_to(self, exit_layer: int | None) -> Iterator[None]:
        """The model with its first layers only; what comes behind them stays."""
        if exit_layer is None or exit_layer == self.layers:
            yield
            return
        whole = self._exits[self.layers]
        if exit_layer not in self._exits:
            self._exits[exit_layer] = whole[:exit_layer]
        setattr(self._owner, self._name, self._exits[exit_layer])
        try:
            yield
        finally:
            setattr(self._owner, self._name, whole)

    # what hooks see

    def _on_last(self, _module: Any, _given: Any, output: Any) -> None:
        if self._watch:
            self._seen[-1] = output[0][0]

    def _before(self, _module: Any, given: Any, named: Any) -> None:
        if self._watch:
            self._seen[0] = (given[0] if given else named["hidden_states"])[0]

    def _behind(self, n: int) -> Any:
        def hook(_module: Any, _given: Any, output: Any) -> None:
            if self._watch:
                self._seen[n] = (output[0] if isinstance(output, tuple) else output)[0]

        return hook

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _parameters(module: Any) -> frozenset[str]:
    """The names of the arguments that a module's forward takes."""
    found = inspect.signature(type(module).forward).parameters
    return frozenset(found) - {"self"}


def _blocks(base: Any, count: int) -> tuple[Any, str, Any]:
    """The module list of a model's layers, whose attribute it is and under which name."""
    for owner in (base, getattr(base, "language_model", None), getattr(base, "decoder", None)):
        for name, child in owner.named_children() if owner is not None else ():
            if isinstance(child, torch.nn.ModuleList) and len(child) == count:
                return owner, name, child
    return None, "", None
