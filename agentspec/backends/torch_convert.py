"""Published heads and layers, pickles, as safetensors: no pickle is opened in this process."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agentspec.backends.torch_heads import BASE, read_config
from agentspec.errors import MissingExtraError, ModelFileError, ModelNotFoundError
from agentspec.files import replacing

FILE = "medusa_lm_head.pt"
"""What the authors' code calls it."""

_EAGLE = "pytorch_model.bin"
_EAGLE_NAMES = re.compile(
    r"fc\.(weight|bias)|(layers\.\d+|midlayer)\.[\w.]+|(norm|hidden_norm)\.weight"
    r"|(lm_head|embed_tokens)\.weight|d2t|t2d|rotary_emb\.inv_freq"
)
_NAMES = re.compile(
    r"\d+\.\d+\.linear\.(weight|bias)|\d+\.\d+\.weight"
    r"|blocks\.\d+\.layers\.\d+\.(weight|bias)|lm_heads\.\d+\.weight|lm_head\.weight|token_map"
)
_PREFIXES = ("medusa_heads.", "medusa_head.")
_MOST_HEADER = 16 << 20
_COPY = 8 << 20
_SECONDS = 900.0
_KEPT = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP", "TMP")
"""What of the environment a process needs to find its libraries; no keys, no proxies."""


@dataclass(frozen=True, slots=True)
class Converted:
    """Where the heads are now, how many and for which model, "" where nothing names it.

    `heads` of EAGLE are its layers. `isolated`: they were read in a process that had no network at
    all, not only a guard.
    """

    path: Path
    heads: int
    base: str
    isolated: bool


def convert_medusa(
    source: Path, out: Path | None = None, *, base: str | None = None, seconds: float = _SECONDS
) -> Converted:
    """Write the heads of `medusa_lm_head.pt`, or of a folder with it, to a safetensors file.

    `base` names the target where the config.json beside it does not, or wrongly. Raises
    ModelNotFoundError, ModelFileError for files that hold anything else, and MissingExtraError.
    """
    file = _found(source, FILE, "are no Medusa heads")
    out = out or file.with_suffix(".safetensors")
    named = base or read_config(file.parent).get(BASE)
    if not isinstance(named, str) or not named.strip():
        raise ModelFileError(
            f"nothing beside {file} says which model its heads are for; name it with --base"
        )

    def heads(tensors: Mapping[str, Any]) -> int:
        numbers = [m[1] for m in (re.match(r"(?:blocks\.)?(\d+)\.", n) for n in tensors) if m]
        if not numbers:
            raise ModelFileError(f"{file} holds no Medusa heads (0.0.linear.weight, …)")
        return 1 + max(map(int, numbers))

    kind = _Kind(_NAMES, _PREFIXES, "no Medusa head has", heads, "medusa_num_heads")
    count, isolated = _converted(file, out, {BASE: named}, kind, seconds)
    return Converted(out, count, named, isolated)


def convert_eagle(
    source: Path, out: Path | None = None, *, base: str | None = None, seconds: float = _SECONDS
) -> Converted:
    """Write the weights of an EAGLE folder's `pytorch_model.bin` to `model.safetensors` there.

    `base` names the target, which such folders mostly do not. `out` is another folder, which gets
    the config.json too. Raises as `convert_medusa` does.
    """
    file = _found(source, _EAGLE, "is no EAGLE checkpoint")
    config = file.parent / "config.json"
    if not read_config(file.parent):
        raise ModelFileError(f"{file.parent} is no EAGLE checkpoint: it has no config.json")
    folder = out or file.parent

    def layers(tensors: Mapping[str, Any]) -> int:
        if "fc.weight" not in tensors:
            raise ModelFileError(f"{file} holds no layers of EAGLE: it has no fc.weight")
        found = (re.match(r"(layers\.\d+|midlayer)\.", name) for name in tensors)
        return len({match[1] for match in found if match})

    kind = _Kind(_EAGLE_NAMES, ("model.",), "EAGLE's layers have not", layers)
    told = {BASE: base} if base else {}
    count, isolated = _converted(file, folder / "model.safetensors", told, kind, seconds)
    if folder != file.parent:
        try:
            with replacing(folder / "config.json") as new:
                new.write(config.read_bytes())
        except OSError as error:
            raise ModelFileError(f"{folder} cannot be written: {error.strerror}") from error
    return Converted(folder, count, base or "", isolated)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Which tensors a kind of file may hold, and how many heads or layers these are.

    `prefixes` are taken off their names; `key` is what the header tells the count under.
    """

    names: re.Pattern[str]
    prefixes: tuple[str, ...]
    otherwise: str
    count: Callable[[Mapping[str, Any]], int]
    key: str = ""


def _found(source: Path, name: str, what: str) -> Path:
    from importlib.util import find_spec

    if find_spec("torch") is None or find_spec("safetensors") is None:
        raise MissingExtraError("torch", "torch")
    file = source / name if source.is_dir() else source
    if not file.is_file():
        raise ModelNotFoundError(f"there {what} at {file}")
    return file


def _converted(
    file: Path, out: Path, told: Mapping[str, str], kind: _Kind, seconds: float
) -> tuple[int, bool]:
    """Write the tensors of a pickle; how many heads or layers, and whether without network."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".convert-", dir=out.parent) as folder:
            raw = Path(folder) / "tensors.safetensors"
            isolated = _unpickle(file, raw, seconds)
            return _rewrite(raw, out, {**told, "format": "pt"}, file, kind), isolated
    except OSError as error:
        raise ModelFileError(f"{out} cannot be written: {error.strerror or error}") from error


def _unpickle(source: Path, target: Path, seconds: float) -> bool:
    """Let another process write the tensors of a file; whether that had no network at all."""
    program = Path(__file__).with_name("_unpickle.py")
    command = [sys.executable, "-I", str(program), str(source.absolute()), str(target.absolute())]
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**environment, "OMP_NUM_THREADS": "1"},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelFileError(
            f"{source} was not read within {seconds:.0f} seconds; is it the right file?"
        ) from None
    said = " ".join(done.stdout.decode("utf-8", "replace").split())[:300]
    if done.returncode or said not in ("isolated", "guarded"):
        reason = said or f"the process that read it ended with {done.returncode}"
        raise ModelFileError(f"{source} was not converted: {reason}")
    return said == "isolated"


def _rewrite(raw: Path, out: Path, told: Mapping[str, str], source: Path, kind: _Kind) -> int:
    """The same tensors with checked names and with `told` in the header; how many heads."""
    with raw.open("rb") as file:
        header = _header(file, source)
        tensors: dict[str, Any] = {}
        for name, what in header.items():
            own = (name.removeprefix(p) for p in kind.prefixes if name.startswith(p))
            plain = next(own, name)
            if name == "__metadata__":
                continue
            if not kind.names.fullmatch(plain) or plain in tensors:
                raise ModelFileError(f"{source} holds {name[:80]!r}, which {kind.otherwise}")
            tensors[plain] = what
        count = kind.count(tensors)
        metadata = {**told, **({kind.key: str(count)} if kind.key else {})}
        text = json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with replacing(out) as new:
            new.write(struct.pack("<Q", len(text)) + text)
            while part := file.read(_COPY):
                new.write(part)
    return count


def _header(file: BinaryIO, source: Path) -> dict[str, Any]:
    start = file.read(8)
    size = struct.unpack("<Q", start)[0] if len(start) == 8 else _MOST_HEADER + 1
    try:
        if size > _MOST_HEADER:
            raise ValueError("its header is too large")
        found = json.loads(file.read(size))
        if not isinstance(found, dict):
            raise ValueError("its header is no object")
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"what was read of {source} is no safetensors file: {error}") from None
    return found
