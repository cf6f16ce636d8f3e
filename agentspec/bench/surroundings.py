"""What was measured on what: machine, libraries, model file, as a report carries them."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentspec.api import Engine
from agentspec.models.gpu import known_gpus, system_memory

_LIBRARIES = ("agentspec-engine", "llama-cpp-python", "numpy", "llguidance")
_TOLD = ("n_threads", "n_gpu_layers", "type_k", "type_v", "flash_attn", "repack", "mmap", "chunk")


def describe_setup(engine: Engine) -> dict[str, Any]:
    """`surroundings`, `models` and `loaded`: names and numbers, no path and no host.

    Sizes are in bytes. `models` has the target first, then a draft model where there is one.
    """
    target = innermost(engine.target)
    models = [_model(target, engine.target.n_ctx)]
    if engine.draft is not None:
        models.append(_model(innermost(engine.draft), engine.draft.n_ctx))
    settings: Any = getattr(target, "settings", None)
    loaded = asdict(settings) if is_dataclass(settings) and not isinstance(settings, type) else {}
    return {
        "surroundings": {
            "memory": system_memory()[0],
            "system": _system(),
            "gpus": [{"name": gpu.name, "memory": gpu.total} for gpu in known_gpus()],
            "libraries": {name: found for name in _LIBRARIES if (found := _version(name))},
        },
        "models": models,
        "loaded": {name: loaded[name] for name in _TOLD if loaded.get(name) is not None},
    }


def innermost(backend: Any) -> Any:
    """The backend below recorders and the like."""
    while hasattr(backend, "backend"):
        backend = backend.backend
    return backend


def description(backend: object) -> str:
    """Architecture, size and quantisation, or the kind of backend where there is no model."""
    describe = getattr(backend, "description", None)
    return str(describe()) if describe else type(backend).__name__


def _model(backend: Any, n_ctx: int) -> dict[str, Any]:
    path: Path | None = getattr(backend, "path", None)
    file: Mapping[str, Any] = {}
    if path is not None:
        files = [part for part in path.rglob("*") if part.is_file()] if path.is_dir() else [path]
        file = {"file": path.name, "bytes": sum(part.stat().st_size for part in files)}
    return {**file, "what": description(backend), "n_ctx": n_ctx, "vocab": backend.vocab_size}


def _system() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        name = platform.system()
    return f"{name}, {platform.system()} {platform.release()} {platform.machine()}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
