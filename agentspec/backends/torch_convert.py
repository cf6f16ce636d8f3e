"""Published Medusa heads, a pickle, as safetensors: no pickle is opened in this process."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agentspec.backends.torch_heads import BASE, read_config
from agentspec.errors import MissingExtraError, ModelFileError, ModelNotFoundError
from agentspec.files import replacing

FILE = "medusa_lm_head.pt"
"""What the authors' code calls it."""

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
    """Where the heads are now, how many and for which model.

    `isolated`: they were read in a process that had no network at all, not only a guard.
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
    from importlib.util import find_spec

    if find_spec("torch") is None or find_spec("safetensors") is None:
        raise MissingExtraError("torch", "torch")
    file = source / FILE if source.is_dir() else source
    if not file.is_file():
        raise ModelNotFoundError(f"there are no Medusa heads at {file}")
    out = out or file.with_suffix(".safetensors")
    config = read_config(file.parent)
    named = base or config.get(BASE)
    if not isinstance(named, str) or not named.strip():
        raise ModelFileError(
            f"nothing beside {file} says which model its heads are for; name it with --base"
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".convert-", dir=out.parent) as folder:
            raw = Path(folder) / "tensors.safetensors"
            isolated = _unpickle(file, raw, seconds)
            told = {BASE: named, "format": "pt"}
            heads = _rewrite(raw, out, told, file)
    except OSError as error:
        raise ModelFileError(f"{out} cannot be written: {error.strerror or error}") from error
    return Converted(out, heads, named, isolated)


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


def _rewrite(raw: Path, out: Path, told: Mapping[str, str], source: Path) -> int:
    """The same tensors with checked names and with `told` in the header; how many heads."""
    with raw.open("rb") as file:
        header = _header(file, source)
        tensors: dict[str, Any] = {}
        for name, what in header.items():
            plain = next((name.removeprefix(p) for p in _PREFIXES if name.startswith(p)), name)
            if name == "__metadata__":
                continue
            if not _NAMES.fullmatch(plain) or plain in tensors:
                raise ModelFileError(f"{source} holds {name[:80]!r}, which no Medusa head has")
            tensors[plain] = what
        numbers = [m[1] for m in (re.match(r"(?:blocks\.)?(\d+)\.", n) for n in tensors) if m]
        if not numbers:
            raise ModelFileError(f"{source} holds no Medusa heads (0.0.linear.weight, …)")
        count = 1 + max(map(int, numbers))
        metadata = {**told, "medusa_num_heads": str(count)}
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
