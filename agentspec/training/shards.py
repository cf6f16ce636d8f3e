"""What a target says behind windows, and its hidden states there: made once, read in batches."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentspec.backends.base import Rows
from agentspec.errors import BackendError
from agentspec.files import replacing
from agentspec.replay.store import ArrayStore
from agentspec.training.batch import Batch
from agentspec.training.windows import Window

if TYPE_CHECKING:
    from agentspec.backends.torch import TorchBackend
    from agentspec.backends.torch_pass import Features

_CACHE_NAMES = ("cache", "past_key_values", "cache_params")


class Continuations:
    """The target's own greedy continuations of batches of windows, kept from run to run.

    All windows of a batch go through the target at once, since a pass over one row costs nearly
    what one over sixteen does. The last bits depend on who is in a batch: batches are kept whole.
    """

    def __init__(self, target: TorchBackend, count: int, store: ArrayStore) -> None:
        self._target = target
        self._count = count
        self._store = store

    def of(self, windows: Sequence[Window]) -> tuple[Any, Any]:
        """Tokens of windows and continuations, long [rows, length]; where each row ends.

        A row ends with its first token that ends an answer, if there is one. Raises BackendError.
        """
        key = {
            "model": self._target.identity,
            "dtype": str(self._target.dtype),
            "count": self._count,
            "windows": hashlib.sha256(json.dumps([w.ids for w in windows]).encode()).hexdigest(),
        }
        before = torch.tensor([w.ids for w in windows])
        known = self._store.get(key)
        flat = None if known is None else known.get("said")
        if flat is None or len(flat) != len(windows) * self._count:
            said = self._say(before)
            self._store.put(key, {"said": said.numpy().astype(np.int32).reshape(-1)})
        else:
            said = torch.from_numpy(flat.reshape(len(windows), -1).astype(np.int64))
        ending = torch.tensor(sorted(self._target.tokenizer.eos_ids), dtype=torch.long)
        ended = torch.isin(said, ending)
        first = torch.where(ended.any(-1), ended.int().argmax(-1) + 1, self._count)
        return torch.cat([before, said], dim=-1), first + before.shape[1]

    def _say(self, before: Any) -> Any:
        from transformers import DynamicCache

        model = self._target.inner
        takes = inspect.signature(type(model).forward).parameters
        name = next((n for n in _CACHE_NAMES if n in takes), _CACHE_NAMES[1])
        cache = DynamicCache(config=model.config)
        ids, said = before.to(self._target.device), []
        try:
            with torch.inference_mode():
                for _ in range(self._count):
                    named = {"input_ids": ids, name: cache, "use_cache": True, "logits_to_keep": 1}
                    ids = model(**named).logits[:, -1].argmax(-1, keepdim=True)
                    said.append(ids.cpu())
        except (RuntimeError, ValueError, TypeError) as error:
            raise BackendError(
                f"{self._target.path.name} cannot continue {len(before)} texts at once: "
                f"{' '.join(str(error).split())[:200]}"
            ) from error
        return torch.cat(said, dim=-1).clone()


class Shards:
    """Batches with hidden states, each computed when it is first asked for and kept in a folder.

    `layer` None keeps what the head reads; else what lies behind that many layers, which must be
    among the target's `taps`, or with `behind_norm` what an exit there gives to the head. One batch
    is in memory at a time.
    """

    def __init__(
        self,
        target: TorchBackend,
        batches: Sequence[Sequence[Window]],
        continuations: Continuations,
        folder: Path,
        *,
        layer: int | None = None,
        behind_norm: bool = False,
    ) -> None:
        self._target = target
        self._batches = batches
        self._continuations = continuations
        self._folder = folder
        self._layer = layer
        self._behind_norm = behind_norm
        self._latest: tuple[int, Batch] | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def rows(self, number: int) -> int:
        return len(self._batches[number])

    def tokens(self, number: int) -> tuple[Any, Any, int]:
        """Tokens, where each row ends, and where its continuation begins."""
        windows = self._batches[number]
        tokens, ends = self._continuations.of(windows)
        return tokens, ends, len(windows[0].ids)

    def __getitem__(self, number: int) -> Batch:
        if self._latest is not None and self._latest[0] == number:
            return self._latest[1]
        self._latest = None
        tokens, ends, first = self.tokens(number)
        path = self._folder / f"states-{number:05d}.safetensors"
        states = self._kept(path, tokens)
        if states is None:
            states = torch.stack([self._read(row, self._wanted) for row in tokens.tolist()])
            self._keep(path, tokens, states)
        device = self._target.device
        batch = Batch(tokens.to(device), first, ends.to(device), states.to(device))
        self._latest = number, batch
        return batch

    def all(self) -> Iterator[Batch]:
        """One after the other, each computed or read when it is its turn."""
        return (self[number] for number in range(len(self)))

    def prepare(self) -> Iterator[int]:
        """Compute what is not kept yet, batch by batch; how many are done."""
        for number in range(len(self)):
            self[number]
            yield number + 1

    def exit_states(self, number: int, layer: int) -> tuple[Any, Any]:
        """Of the first text of a batch: what lies behind a layer, before the norm and behind it."""
        text = self.tokens(number)[0][0].tolist()

        def both(features: Features) -> Any:
            return torch.cat([features.taps[self._target.taps.index(layer)], features.last], -1)

        before, behind = self._read(text, both, layer).chunk(2, dim=-1)
        return before, behind

    def _wanted(self, features: Features) -> Any:
        if self._layer is None or self._behind_norm:
            return features.last
        return features.taps[self._target.taps.index(self._layer)]

    def _read(
        self, tokens: Sequence[int], wanted: Callable[[Features], Any], layer: int | None = None
    ) -> Any:
        """Hidden states of one text, [tokens, width], on the CPU."""
        exit_layer = self._layer if layer is None else layer
        target, found = self._target, []
        seq = target.open()
        try:
            for at in range(0, len(tokens), target.max_rows):
                part = tokens[at : at + target.max_rows]
                rows = Rows(seq, part, logits_from=len(part), hidden=True, exit_layer=exit_layer)
                found.append(wanted(target.forward([rows]).features()).cpu().clone())
        finally:
            target.drop(seq)
        return torch.cat(found)

    def _kept(self, path: Path, tokens: Any) -> Any:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            found = load_file(path)
        except (OSError, ValueError, SafetensorError):
            return None
        same = torch.equal(found.get("tokens", torch.empty(0)), tokens)
        return found["states"] if same and "states" in found else None

    def _keep(self, path: Path, tokens: Any, states: Any) -> None:
        from safetensors.torch import save

        try:
            with replacing(path, sync=False) as file:
                file.write(save({"tokens": tokens.contiguous(), "states": states.contiguous()}))
        except OSError as error:
            raise BackendError(
                f"hidden states cannot be kept in {path.parent}: {error.strerror or error}"
            ) from error
