"""Files of trained heads: read from safetensors, and only for the target that they name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.backends.pickles import SUFFIXES, pickles
from agentspec.errors import ModelFileError, ModelNotFoundError, PairMismatchError

if TYPE_CHECKING:
    from agentspec.backends.torch import TorchBackend

BASE = "base_model_name_or_path"
"""Under this key a file names the model it was trained for, as published ones do."""
IDENTITY = "base_identity"
"""The same as `TorchBackend.identity`, in files that were trained here."""
UNFINISHED = "unfinished"
"""The folder inside an output that a broken-off training goes on from."""

_FLOATS = ("torch.float32", "torch.bfloat16", "torch.float16")
_MOST_CONFIG = 1 << 20
_QUANTISED = re.compile(r"[-._](i?q\d\w*|f16|f32|bf16|fp16|fp32|mxfp4)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HeadFile:
    """The tensors of one file, and what it or the config.json beside it says of them."""

    path: Path
    told: Mapping[str, Any]
    tensors: dict[str, Any] = field(repr=False)

    def whole(self, *keys: str) -> int | None:
        """The first of these that is told, as a positive whole number. Raises ModelFileError."""
        for key in keys:
            value = self.told.get(key)
            if isinstance(value, str) and value.isascii() and value.isdigit():
                value = int(value)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ModelFileError(
                    f"{self.path} says {key} {value!r}; a number above 0 is wanted"
                )
            return value
        return None

    def tensor(self, name: str, *shape: int) -> Any:
        """One of its tensors, in a number format of weights. Raises ModelFileError, naming it."""
        found = self.tensors.get(name)
        if found is None:
            raise ModelFileError(f"{self.path} has no tensor {name}")
        if str(found.dtype) not in _FLOATS:
            raise ModelFileError(
                f"tensor {name} of {self.path} is {str(found.dtype).removeprefix('torch.')}; heads "
                "are float32, bfloat16 or float16"
            )
        if tuple(found.shape) != shape:
            raise ModelFileError(
                f"tensor {name} of {self.path} is {_shape(found.shape)}, this target needs "
                f"{_shape(shape)}"
            )
        return found

    def check_all_used(self, used: Sequence[str]) -> None:
        """Raises ModelFileError naming a tensor that is not among these."""
        strange = sorted(set(self.tensors) - set(used))
        if strange:
            raise ModelFileError(f"{self.path} holds {strange[0]}, which no head of this kind has")


def read_heads(path: Path) -> HeadFile:
    """The .safetensors file of this name, or the one in a folder.

    A config.json beside it counts where the file's own metadata says nothing. Raises
    ModelNotFoundError and ModelFileError, for pickles among others.
    """
    from safetensors import SafetensorError, safe_open

    file = _file(path)
    try:
        with safe_open(file, framework="pt") as opened:
            told = dict(opened.metadata() or {})
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelFileError(f"{file} is not a whole safetensors file: {reason}") from error
    return HeadFile(file, {**read_config(file.parent), **told}, tensors)


def is_eagle(path: Path) -> bool:
    """Whether a folder holds layers of EAGLE; False for whatever cannot be read.

    Of a pickle, which is not opened, the config.json tells: only EAGLE's gives a model's shape.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    if not files and pickles(path):
        told = read_config(path)
        return "hidden_size" in told or told.get("model_type") == "eagle"
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                names = {name.removeprefix("model.") for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError):
            continue
        if "fc.weight" in names:
            return True
    return False


def check_base(file: HeadFile, target: TorchBackend) -> None:
    """Raises PairMismatchError unless the target is the model that the heads were trained for.

    The name of a file counts without its organisation and without the number format of GGUF files.
    """
    identity, named = file.told.get(IDENTITY), file.told.get(BASE)
    if identity is not None and identity == target.identity:
        return
    if not isinstance(named, str) or not named.strip():
        raise PairMismatchError(
            f"{file.path} does not say which model its heads are for ({BASE}); convert it again "
            "with --base NAME"
        )
    if plain_name(named) not in names_of(target):
        raise PairMismatchError(
            f"the heads of {file.path} were trained for {named}, the target is "
            f"{target.path.name}; if it is the same model, convert them with --base "
            f"{target.path.name}"
        )


def names_of(target: TorchBackend) -> frozenset[str]:
    """The names that a loaded model goes by, as `plain_name` makes them."""
    found = [target.path.name]
    told = getattr(target.inner.config, "_name_or_path", "")
    found += [told] if isinstance(told, str) and told else []
    # the hub keeps models--org--name/snapshots/hash
    found += [part.split("--")[-1] for part in target.path.parts if part.startswith("models--")]
    return frozenset(map(plain_name, found))


def plain_name(name: str) -> str:
    """A model's name without organisation, ending and number format, in small letters."""
    last = name.rstrip("/\\").replace("\\", "/").rpartition("/")[2].removesuffix(".gguf")
    return _QUANTISED.sub("", last).lower()


def width_of(target: TorchBackend) -> int:
    """How wide the hidden states of a target are."""
    return int(target.inner.config.get_text_config(decoder=True).hidden_size)


def _file(path: Path) -> Path:
    if path.is_dir():
        found = sorted(path.glob("*.safetensors"))
        if len(found) == 1:
            return found[0]
        pickled = pickles(path)
        if not found and pickled:
            path = pickled[0]
        elif not found and (path / UNFINISHED).is_dir():
            raise ModelFileError(
                f"{path} holds a training that is not finished; go on with it: the same "
                "`agentspec train-heads` command again"
            )
        else:
            raise ModelFileError(
                f"{path} holds {len(found)} safetensors files; name the one with the heads"
            )
    if path.suffix in SUFFIXES:
        raise ModelFileError(
            f"{path} is a pickle, which is never opened here; "
            f"convert it: agentspec models convert-medusa {path}"
        )
    if not path.is_file():
        raise ModelNotFoundError(f"there are no heads at {path}")
    return path


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder, empty where there is none. Raises ModelFileError."""
    path = folder / "config.json"
    try:
        if not path.is_file() or path.stat().st_size > _MOST_CONFIG:
            return {}
        told = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read: {type(error).__name__}") from error
    return told if isinstance(told, dict) else {}


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "a single number"
