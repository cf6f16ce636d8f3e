"""Medusa-1 heads over the hidden states of a target's own passes.

Head i is residual blocks, x + SiLU(W x + b), and a vocabulary head; it reads the hidden state
behind the final norm and guesses the token i + 2 places behind the row's own. Names as the
authors' code writes them (`0.0.linear.weight`, `0.1.weight`) or as vLLM reads them
(`blocks.0.layers.0.weight`, `lm_heads.0.weight`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentspec.backends.torch_heads import HeadFile, check_base, read_heads, width_of
from agentspec.backends.torch_inside import Heard
from agentspec.backends.torch_pass import Features
from agentspec.errors import ModelFileError

if TYPE_CHECKING:
    from agentspec.backends.base import SeqId
    from agentspec.backends.torch import TorchBackend

_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.weight")
_VLLM_BLOCK = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.weight")
_PREFIX = "medusa_heads."


class MedusaHeads:
    """The heads of a file on the device of their target, in its number format.

    Where the file has no vocabulary heads, the target's own is used. Raises what `read_heads` and
    `check_base` do, and ModelFileError, naming the tensor, for what does not fit the target.
    """

    def __init__(self, path: Path | HeadFile, target: TorchBackend) -> None:
        file = path if isinstance(path, HeadFile) else read_heads(path)
        named = _Names(file)
        check_base(file, target)
        self.count, self.layers = named.heads, named.layers
        self._target = target
        width, vocab = width_of(target), target.vocab_size
        told = file.whole("hidden_size")
        if told is not None and told != width:
            raise ModelFileError(f"{file.path} is for hidden states of {told}, not {width}")
        self._ids = self._token_map(file, vocab)
        rows = vocab if self._ids is None else len(self._ids)
        with torch.inference_mode():
            self._blocks = [self._block(file, named, layer, width) for layer in range(self.layers)]
            self._head = self._vocabulary(file, named, rows, width)
        file.check_all_used(named.used)
        self._heard: dict[SeqId, Heard] = {}
        self._stop = target.listen(self._hear)

    def heard(self, seq: SeqId) -> Heard | None:
        """The last pass over a sequence."""
        return self._heard.get(seq)

    def logits(self, states: Any, heads: int | None = None) -> Any:
        """What the first heads say of hidden states, [rows, width] to [heads, rows, vocabulary].

        The vocabulary is that of the file, which may be a part of the target's.
        """
        count = self.count if heads is None else heads
        with torch.inference_mode():
            x = states.to(self._target.dtype).expand(count, *states.shape)
            for weight, bias in self._blocks:
                moved = torch.bmm(x, weight[:count].transpose(1, 2))
                if bias is not None:
                    moved = moved + bias[:count, None]
                x = x + torch.nn.functional.silu(moved)
            if self._head is None:
                flat = self._target.head(x.reshape(-1, x.shape[-1]))
                return flat.reshape(count, len(states), -1)
            if self._head.dim() == 2:
                return torch.nn.functional.linear(x, self._head)
            return torch.bmm(x, self._head[:count].transpose(1, 2))

    def guesses(self, state: Any, heads: int, top: int) -> Sequence[Sequence[tuple[int, float]]]:
        """The likeliest `top` tokens of each of the first heads behind a hidden state."""
        with torch.inference_mode():
            chances = self.logits(state[None], heads)[:, 0].float().softmax(-1)
            best = chances.topk(min(top, chances.shape[-1]), -1)
            ids = best.indices if self._ids is None else self._ids[best.indices]
            tokens, values = ids.tolist(), best.values.tolist()
        return [list(zip(*row, strict=True)) for row in zip(tokens, values, strict=True)]

    def close(self) -> None:
        """Listen no more."""
        self._stop()
        self._heard.clear()

    def _hear(self, heard: Heard) -> None:
        # a copy: the next pass may be computed in the same place
        kept = Features(heard.features.last.clone())
        self._heard[heard.rows.seq] = Heard(heard.start, heard.rows, kept)

    def _block(self, file: HeadFile, named: _Names, layer: int, width: int) -> tuple[Any, Any]:
        heads = range(self.count)
        weights = [file.tensor(named.weight(head, layer), width, width) for head in heads]
        biases = [
            file.tensor(name, width)
            for name in (named.bias(head, layer) for head in heads)
            if name is not None
        ]
        if len(biases) not in (0, self.count):
            raise ModelFileError(f"some heads of {file.path} have a bias and some have none")
        return self._stacked(weights), self._stacked(biases) if biases else None

    def _vocabulary(self, file: HeadFile, named: _Names, rows: int, width: int) -> Any:
        names = [named.vocabulary(head) for head in range(self.count)]
        found = [name for name in names if name is not None]
        if not found:
            if self._ids is not None:
                raise ModelFileError(f"{file.path} has a token_map but no vocabulary heads")
            return None
        if named.shared is not None:
            return self._placed(self._mapped(file, found[0], rows, width))
        if len(found) != self.count:
            raise ModelFileError(
                f"{file.path} has {len(found)} vocabulary heads for {self.count} heads"
            )
        return self._stacked([self._mapped(file, name, rows, width) for name in found])

    def _mapped(self, file: HeadFile, name: str, rows: int, width: int) -> Any:
        whole = self._target.vocab_size
        if self._ids is not None and len(file.tensors.get(name, ())) == whole:
            return file.tensor(name, whole, width)[self._ids.cpu()]
        return file.tensor(name, rows, width)

    def _token_map(self, file: HeadFile, vocab: int) -> Any:
        """The target's ids of the tokens that the heads know; None: all of them."""
        ids = file.tensors.get("token_map")
        if ids is None:
            return None
        if ids.dim() != 1 or ids.is_floating_point() or not len(ids):
            raise ModelFileError(f"the token_map of {file.path} is no list of token ids")
        if int(ids.min()) < 0 or int(ids.max()) >= vocab:
            raise ModelFileError(
                f"the token_map of {file.path} names ids outside the target's vocabulary of {vocab}"
            )
        return ids.long().to(self._target.device)

    def _stacked(self, tensors: Sequence[Any]) -> Any:
        return self._placed(torch.stack([tensor.to(self._target.dtype) for tensor in tensors]))

    def _placed(self, tensor: Any) -> Any:
        return tensor.to(self._target.device, self._target.dtype).contiguous()


class _Names:
    """Which tensors make up which head, in whichever of the two layouts the file is.

    Raises ModelFileError where that cannot be told.
    """

    def __init__(self, file: HeadFile) -> None:
        self._file = file
        plain = {name.removeprefix(_PREFIX): name for name in file.tensors}
        self._plain = plain
        self.used: list[str] = ["token_map"]
        found = {m.groups() for m in map(_BLOCK.fullmatch, plain) if m}
        self._vllm = not found
        if self._vllm:
            found = {m.groups() for m in map(_VLLM_BLOCK.fullmatch, plain) if m}
        places = {(int(head), int(layer)) for head, layer in found}
        if not places:
            raise ModelFileError(f"{file.path} holds no Medusa heads (0.0.linear.weight, …)")
        self.heads = 1 + max(head for head, _ in places)
        self.layers = 1 + max(layer for _, layer in places)
        if len(places) != self.heads * self.layers:
            raise ModelFileError(
                f"some blocks of the {self.heads} heads of {file.path} are missing"
            )
        heads = file.whole("medusa_num_heads", "num_heads")
        # published configurations name fewer heads than the file has, and its users all of them
        if heads is not None and heads > self.heads:
            raise ModelFileError(f"{file.path} holds {self.heads} heads, not {heads} as it says")
        layers = file.whole("medusa_num_layers", *["num_hidden_layers"] * self._vllm)
        if layers is not None and layers != self.layers:
            raise ModelFileError(
                f"the heads of {file.path} have {self.layers} blocks, not {layers} as it says"
            )
        # one vocabulary head may serve all: the original one of the target
        self.shared: str | None = None
        if self._vllm and "lm_head.weight" in plain:
            self.shared = "lm_head.weight"
        elif self._vllm and str(file.told.get("original_lm_head")).lower() == "true":
            self.shared = "lm_heads.0.weight" if "lm_heads.0.weight" in plain else None

    def weight(self, head: int, layer: int) -> str:
        return self._use(
            f"blocks.{head}.layers.{layer}.weight"
            if self._vllm
            else f"{head}.{layer}.linear.weight"
        )

    def bias(self, head: int, layer: int) -> str | None:
        return self._maybe(
            f"blocks.{head}.layers.{layer}.bias" if self._vllm else f"{head}.{layer}.linear.bias"
        )

    def vocabulary(self, head: int) -> str | None:
        if self.shared is not None:
            return self._use(self.shared)
        return self._maybe(
            f"lm_heads.{head}.weight" if self._vllm else f"{head}.{self.layers}.weight"
        )

    def _use(self, plain: str) -> str:
        name = self._plain.get(plain, plain)
        self.used.append(name)
        return name

    def _maybe(self, plain: str) -> str | None:
        return self._use(plain) if plain in self._plain else None
