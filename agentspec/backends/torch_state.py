"""Saved sequences on disk: safetensors, with a checksum in the header; nothing is unpickled."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from agentspec.backends.torch_cache import TorchSequence, state_of, tensors_of
from agentspec.errors import BackendError
from agentspec.files import replacing

_KIND = "agentspec torch sequence 1"
_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 16 << 20
_ALIGN = 8
_SAMPLE = 1 << 20


def write_sequence(path: Path, owner: str, sequence: TorchSequence) -> None:
    """Write a sequence's cache, all or nothing. Raises BackendError, and what was there stays."""
    if not path.parent.is_dir():
        raise BackendError(f"cannot save a sequence as {path}: there is no such folder")
    tensors, plain = _taken(sequence)
    raw = safetensors.torch.save(tensors)
    (size,) = _LENGTH.unpack_from(raw)
    header = json.loads(raw[_LENGTH.size : _LENGTH.size + size])
    body = memoryview(raw)[_LENGTH.size + size :]
    header["__metadata__"] = {
        "format": "pt",
        "kind": _KIND,
        "owner": owner,
        "length": str(sequence.length),
        "plain": json.dumps(plain),
        "checksum": _checksum(body),
    }
    told = json.dumps(header, separators=(",", ":")).encode()
    told += b" " * (-len(told) % _ALIGN)
    try:
        with replacing(path) as handle:
            handle.write(_LENGTH.pack(len(told)) + told)
            handle.write(body)
    except OSError as error:
        raise BackendError(
            f"cannot save a sequence as {path}: {error.strerror or error}"
        ) from error


def read_sequence(path: Path, owner: str, sequence: TorchSequence, *, n_ctx: int) -> None:
    """Fill an empty sequence from a file.

    Raises BackendError when it is damaged, of another model, or longer than `n_ctx` tokens.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BackendError(f"cannot read the saved sequence {path}: {error.strerror}") from error
    told, body = _header(path, raw)
    if told.get("owner") != owner:
        raise BackendError(f"the sequence in {path} was saved by another model or kind of KV cache")
    if told.get("checksum") != _checksum(body):
        raise BackendError(f"the saved sequence {path} is damaged; delete it")
    length = int(told["length"])
    if length > n_ctx:
        raise BackendError(f"the sequence in {path} does not fit into the KV cache of {n_ctx}")
    _put_back(sequence, safetensors.torch.load(raw), json.loads(told["plain"]), length)


def model_owner(parts: dict[str, Any]) -> str:
    """Tells models and kinds of cache apart."""
    told = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(told.encode(), digest_size=32).hexdigest()


def _header(path: Path, raw: bytes) -> tuple[dict[str, str], memoryview]:
    """What the file says of itself, and the bytes of its tensors."""
    damaged = BackendError(f"{path} is not a saved sequence")
    if len(raw) < _LENGTH.size:
        raise damaged
    (size,) = _LENGTH.unpack_from(raw)
    if not 0 < size <= min(_MAX_HEADER, len(raw) - _LENGTH.size):
        raise damaged
    try:
        told = json.loads(raw[_LENGTH.size : _LENGTH.size + size])["__metadata__"]
        if told["kind"] != _KIND:
            raise damaged
    except (ValueError, LookupError, TypeError, RecursionError):
        raise damaged from None
    return told, memoryview(raw)[_LENGTH.size + size :]


def _taken(sequence: TorchSequence) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The tensors of a sequence by name, and what else its recurrent layers hold."""
    tensors: dict[str, Any] = {}
    for i, layer in enumerate(sequence.growing):
        states = layer.states()
        if states is not None:
            keys, values = (state[..., : sequence.length, :] for state in states)
            tensors[f"growing.{i}.keys"] = keys.contiguous().cpu()
            tensors[f"growing.{i}.values"] = values.contiguous().cpu()
    plain = []
    for i, layer in enumerate(sequence.recurrent):
        for name, tensor in tensors_of(state_of(layer)):
            tensors[f"recurrent.{i}.{name}"] = tensor.clone().contiguous().cpu()
        plain.append({k: v for k, v in state_of(layer).items() if _is_plain(v)})
    if not tensors:
        tensors["empty"] = torch.zeros(1)
    return tensors, plain


def _put_back(
    sequence: TorchSequence, tensors: dict[str, Any], plain: list[dict[str, Any]], length: int
) -> None:
    device = sequence.device
    for i, layer in enumerate(sequence.growing):
        if f"growing.{i}.keys" in tensors:
            keys, values = (tensors[f"growing.{i}.{name}"] for name in ("keys", "values"))
            layer.fill(keys.to(device), values.to(device))
    for i, layer in enumerate(sequence.recurrent):
        for name, value in plain[i].items():
            if isinstance(value, dict):
                state_of(layer)[name] = {int(k): v for k, v in value.items()}
            else:
                state_of(layer)[name] = value
        head = f"recurrent.{i}."
        for full, tensor in tensors.items():
            if full.startswith(head):
                name, _, key = full.removeprefix(head).partition(".")
                if key:
                    state_of(layer)[name][int(key)] = tensor.to(device)
                else:
                    state_of(layer)[name] = tensor.to(device)
                state_of(layer)["dtype"] = tensor.dtype
        state_of(layer)["device"] = device
    sequence.length = length


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, int) and (v is None or _is_plain(v)) for k, v in value.items())
    return isinstance(value, (bool, int, float, str))


def _checksum(body: memoryview) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def file_parts(path: Path) -> list[tuple[str, int, str]]:
    """Names, sizes and digests of both ends of a model's files: other for other weights."""
    files = [path]
    if path.is_dir():
        kinds = (".safetensors", ".json", ".jinja", ".model")
        files = sorted(p for p in path.iterdir() if p.suffix in kinds and p.is_file())
    found = []
    for file in files:
        digest = hashlib.blake2b(digest_size=16)
        with file.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            digest.update(handle.read(_SAMPLE))
            handle.seek(max(0, size - _SAMPLE))
            digest.update(handle.read(_SAMPLE))
        found.append((file.name, size, digest.hexdigest()))
    return found
