"""EAGLE checkpoints as they are published: which weights they hold, and whether for this target.

EAGLE-1 (Li et al. 2024, arXiv 2401.15077): `fc` over embedding and last hidden state, decoder
layers `layers.N.*` of which the first has no norm in front of its attention; embeddings and head
are the target's. EAGLE-3 (Li et al. 2025, arXiv 2503.01840): `fc` over hidden states of a low, a
middle and a high layer, one layer `midlayer.*` (or `layers.0.*`) whose attention reads normed
embedding and feature side by side, a norm and a head of its own over a part of the vocabulary,
`d2t` and `t2d` between the two. Names as SafeAILab/EAGLE writes and vLLM reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentspec.backends.pickles import pickles
from agentspec.backends.torch_heads import BASE, IDENTITY, names_of, plain_name, width_of
from agentspec.errors import ModelFileError, ModelNotFoundError, PairMismatchError, line_of

if TYPE_CHECKING:
    from agentspec.backends.torch import TorchBackend

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")
_IGNORED = ("rotary_emb.inv_freq",)
_SAMPLE = 64
_ALIKE, _SAME = 0.5, 0.999
"""Mean cosines of embeddings: the least of those trained further, and of the same but rounded."""


@dataclass(frozen=True, slots=True)
class EagleFiles:
    """A checkpoint that fits a target: its shapes, and its weights under EAGLE's own names.

    `taps` are the layers of the target whose hidden states it reads, none in EAGLE-1. Layers are
    `layers.N.*`, the first one too. `ids` are the target's ids of its vocabulary, None where the
    two are the same.
    """

    version: int
    width: int
    heads: int
    groups: int
    head_dim: int
    layers: int
    eps: float
    act: str
    rope: Mapping[str, Any]
    taps: tuple[int, ...]
    norm_before_residual: bool
    weights: Mapping[str, Any] = field(repr=False)
    ids: Any = field(repr=False)


def read_eagle(folder: Path, target: TorchBackend) -> EagleFiles:
    """Read a checkpoint's folder.

    Raises ModelNotFoundError, ModelFileError for a file that is damaged, pickled, quantised or of
    another layout, PairMismatchError for one that was made for another model.
    """
    config = _config(folder)
    weights, told = _weights(folder)
    config.update({name: told[name] for name in (BASE, IDENTITY) if name in told})
    version = 3 if "layers.0.hidden_norm.weight" in weights else 1
    reader = _Reader(folder, config, weights, target)
    return reader.eagle3() if version == 3 else reader.eagle1()


def _config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ModelNotFoundError(f"there is no folder {folder} with an EAGLE checkpoint")
    path = folder / "config.json"
    try:
        told = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"{folder} is no EAGLE checkpoint: it has no config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"cannot read {path}: {line_of(error, 200)}") from error
    if not isinstance(told, dict):
        raise ModelFileError(f"{path} is no configuration")
    # vLLM wraps those of EAGLE-1, speculators those of EAGLE-3
    for name in ("model", "transformer_layer_config"):
        if isinstance(told.get(name), dict):
            told = {**told, **told[name]}
            if name == "transformer_layer_config":
                told.setdefault("norm_before_residual", True)
    return told


def _weights(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """All tensors by the names that EAGLE gives them, and what the files say of themselves."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = pickles(folder)
        if pickled:
            raise ModelFileError(
                f"{folder} holds its weights as {pickled[0].name}, a pickle, which is never opened "
                f"here; convert it: agentspec models convert-eagle {folder}"
            )
        raise ModelFileError(f"{folder} holds no weights (*.safetensors)")
    found: dict[str, Any] = {}
    told: dict[str, str] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                told |= opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (OSError, ValueError, SafetensorError) as error:
            raise ModelFileError(f"cannot read {file}: {line_of(error, 200)}") from error
        for name, tensor in tensors.items():
            own = name.removeprefix("model.")
            if own.startswith("midlayer."):
                own = "layers.0." + own.removeprefix("midlayer.")
            found[own] = tensor
    return {name: t for name, t in found.items() if not name.endswith(_IGNORED)}, told


class _Reader:
    """Takes the weights one by one, and says which is not as it has to be."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        weights: dict[str, Any],
        target: TorchBackend,
    ) -> None:
        self._folder = folder
        self._config = config
        self._left = weights
        self._target = target
        self._taken: dict[str, Any] = {}
        self._check_base()
        self._theirs = width_of(target)
        self._width = self._whole("hidden_size")
        self._heads = self._whole("num_attention_heads")
        self._groups = self._whole("num_key_value_heads", self._heads)
        self._dim = self._whole("head_dim", max(1, self._width // self._heads))
        if self._heads % self._groups:
            raise self._wrong(f"{self._heads} heads do not share {self._groups} of keys evenly")
        vocab = self._whole("vocab_size", target.vocab_size)
        if vocab != target.vocab_size:
            raise self._other(f"a vocabulary of {vocab}", f"one of {target.vocab_size}")

    def eagle1(self) -> EagleFiles:
        theirs = self._theirs
        if self._width != theirs:
            raise self._other(f"hidden states of {self._width}", f"hidden states of {theirs}")
        self._take("fc.weight", self._width, 2 * self._width)
        self._maybe("fc.bias", self._width)
        # the head is the target's, and the first layer has no norm in front of its attention
        # whatever the file holds: so all who run these read them
        for name in ("lm_head.weight", "layers.0.input_layernorm.weight"):
            self._left.pop(name, None)
        count = self._layers(self._width, first_norm=False)
        self._embeddings()
        return self._finished(1, count, (), None)

    def eagle3(self) -> EagleFiles:
        taps = self._taps()
        told = self._config.get("target_hidden_size")
        theirs = self._theirs
        if told is not None and told != theirs:
            raise self._other(f"hidden states of {told}", f"hidden states of {theirs}")
        self._take("fc.weight", self._width, len(taps) * theirs)
        self._maybe("fc.bias", self._width)
        self._take("layers.0.hidden_norm.weight", self._width)
        count = self._layers(2 * self._width, first_norm=True)
        self._take("norm.weight", self._width)
        vocab = self._target.vocab_size
        ours = self._whole("draft_vocab_size", vocab)
        self._take("lm_head.weight", ours, self._width)
        ids = self._ids(ours, vocab)
        self._embeddings()
        return self._finished(3, count, taps, ids)

    def _finished(self, version: int, layers: int, taps: tuple[int, ...], ids: Any) -> EagleFiles:
        if self._left:
            raise self._wrong(f"nothing is known of its weight {min(self._left)}")
        eps = self._config.get("rms_norm_eps", 1e-6)
        act = self._config.get("hidden_act", "silu")
        if not isinstance(eps, float) or not 0 < eps < 1 or not isinstance(act, str):
            raise self._wrong(f"rms_norm_eps is {eps!r} and hidden_act {act!r}")
        rope = {name: self._config[name] for name in _ROPE if self._config.get(name) is not None}
        before = self._config.get("norm_before_residual", False) is True
        return EagleFiles(
            version, self._width, self._heads, self._groups, self._dim, layers, eps, act, rope,
            taps, before, self._taken, ids,
        )  # fmt: skip

    def _layers(self, first: int, *, first_norm: bool) -> int:
        """Take every decoder layer; the attention of the first one reads rows of `first`."""
        numbers = {name.split(".")[1] for name in self._left if name.startswith("layers.")}
        count = len(numbers)
        if numbers != {str(i) for i in range(count)} or not count:
            raise self._wrong(f"its layers are {', '.join(sorted(numbers)) or 'none'}")
        wide, own = self._heads * self._dim, self._groups * self._dim
        for i in range(count):
            of, width = f"layers.{i}.", self._width
            read = width if i else first
            for name, rows in (("q_proj", wide), ("k_proj", own), ("v_proj", own)):
                self._take(f"{of}self_attn.{name}.weight", rows, read)
                self._maybe(f"{of}self_attn.{name}.bias", rows)
            self._take(f"{of}self_attn.o_proj.weight", width, wide)
            self._maybe(f"{of}self_attn.o_proj.bias", width)
            inner = self._left.get(f"{of}mlp.gate_proj.weight")
            between = len(inner) if inner is not None and inner.dim() == 2 else 0
            for name, rows, columns in (
                ("gate_proj", between, width),
                ("up_proj", between, width),
                ("down_proj", width, between),
            ):
                self._take(f"{of}mlp.{name}.weight", rows, columns)
                self._maybe(f"{of}mlp.{name}.bias", rows)
            self._take(f"{of}post_attention_layernorm.weight", width)
            if i or first_norm:
                self._take(f"{of}input_layernorm.weight", width)
        return count

    def _check_base(self) -> None:
        """Most files do not say which model they were trained for; where they do, it counts."""
        identity, named = self._config.get(IDENTITY), self._config.get(BASE)
        verifier = self._config.get("speculators_config")
        verifier = verifier.get("verifier") if isinstance(verifier, dict) else None
        if named is None and isinstance(verifier, dict):
            named = verifier.get("name_or_path")
        if identity is not None and identity == self._target.identity:
            return
        if isinstance(named, str) and named and plain_name(named) not in names_of(self._target):
            raise PairMismatchError(
                f"the EAGLE checkpoint {self._folder} was trained for {named}, the target is "
                f"{self._target.path.name}; if it is the same model, write that name into its "
                "config.json"
            )

    def _taps(self) -> tuple[int, ...]:
        """Behind how many of the target's layers the hidden states are that it was trained on.

        Files count in two ways: from a 1 on they name the layer whose output is meant, else the
        layer in front of which it is taken (SGLang, pull request 25454). Without any: 2, the
        middle, 3 before the end.
        """
        nested = self._config.get("eagle_config")
        nested = nested if isinstance(nested, dict) else {}
        if nested.get("use_aux_hidden_state") is False:
            raise self._wrong("it reads the last hidden state only, which is not supported")
        name = "eagle_aux_hidden_state_layer_ids"
        told = self._config.get(name) or nested.get(name)
        layers = self._target.layers
        if told is None:
            found = [2, layers // 2, layers - 3]
        elif isinstance(told, list) and all(type(i) is int for i in told):
            found = [i + 1 for i in told] if told[0] == 1 else told
        else:
            raise self._wrong(f"{name} is {told!r}")
        if not all(0 <= i <= layers for i in found):
            raise self._other(f"hidden states behind layers {found}", f"{layers} layers")
        return tuple(found)

    def _ids(self, ours: int, vocab: int) -> Any:
        """The target's id of each id of the draft vocabulary."""
        apart, known = self._left.pop("d2t", None), self._left.pop("t2d", None)
        if apart is None:
            if ours != vocab:
                raise self._wrong(f"it drafts {ours} of {vocab} tokens and has no d2t")
            return None
        if apart.is_floating_point() or apart.shape != (ours,):
            raise self._wrong(f"d2t is {_named(apart)} instead of {ours} whole numbers")
        ids = apart.long() + torch.arange(ours)
        if int(ids.min()) < 0 or int(ids.max()) >= vocab or len(ids.unique()) != ours:
            raise self._wrong(f"d2t does not lead to {ours} tokens of a vocabulary of {vocab}")
        if known is not None and (
            known.shape != (vocab,) or not torch.equal(known.nonzero()[:, 0], ids.sort().values)
        ):
            raise self._wrong("d2t and t2d contradict each other")
        return None if ours == vocab and torch.equal(ids, torch.arange(vocab)) else ids

    def _embeddings(self) -> None:
        """The embeddings of the file, where it has some: they tell which model it was made for."""
        self._maybe("embed_tokens.weight", self._target.vocab_size, self._width)
        own = self._taken.get("embed_tokens.weight")
        if own is None:
            if self._width != self._theirs:
                raise self._other(
                    f"embeddings of {self._width} and holds none", f"some of {self._theirs}"
                )
            return
        if self._width != self._theirs:
            return
        ids = torch.linspace(0, len(own) - 1, min(_SAMPLE, len(own))).long()
        theirs = self._target.embed(ids.tolist()).float().cpu()
        alike = torch.nn.functional.cosine_similarity(own[ids].float(), theirs)
        used = theirs.abs().sum(-1) > 0  # some pad a vocabulary with zeros
        mean = float(alike[used].mean()) if used.any() else 0.0
        if not mean > _ALIKE:
            raise self._other("the embeddings it was trained on", "quite different ones")
        if mean > _SAME:
            # but for rounding they are the target's: one copy does for both
            del self._taken["embed_tokens.weight"]

    def _whole(self, name: str, otherwise: int | None = None) -> int:
        value = self._config.get(name)
        value = otherwise if value is None else value
        if type(value) is not int or value < 1:
            raise self._wrong(f"its config.json gives {name} as {value!r}")
        return value

    def _maybe(self, name: str, *shape: int) -> None:
        if name in self._left:
            self._take(name, *shape)

    def _take(self, name: str, *shape: int) -> None:
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise self._wrong(f"it has no weight {name}")
        if tensor.dtype not in _FLOATS:
            raise self._wrong(f"{name} is {_named(tensor)}; quantised ones are not read")
        if tensor.shape != shape:
            raise self._wrong(f"{name} is {_named(tensor)} instead of {list(shape)}")
        self._taken[name] = tensor

    def _wrong(self, what: str) -> ModelFileError:
        return ModelFileError(
            f"{self._folder} is no EAGLE checkpoint that {self._target.path.name} can use: {what}"
        )

    def _other(self, wants: str, has: str) -> PairMismatchError:
        return PairMismatchError(
            f"the EAGLE checkpoint {self._folder} was made for another model: it wants {wants}, "
            f"{self._target.path.name} has {has}"
        )


def _named(tensor: Any) -> str:
    return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
