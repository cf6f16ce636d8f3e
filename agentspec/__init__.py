"""Lossless speculative decoding for local coding agents.

Every name is imported when it is first used, so `import agentspec` loads nothing else.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentspec import errors
    from agentspec.api import Engine
    from agentspec.shared import acomplete, astream, complete, load, stream
    from agentspec.types import Draft, SamplingParams
    from agentspec.wire import Chunk, Completion, Message, Tool

    __version__: str

__all__ = [
    "Chunk",
    "Completion",
    "Draft",
    "Engine",
    "Message",
    "SamplingParams",
    "Tool",
    "__version__",
    "acomplete",
    "astream",
    "complete",
    "errors",
    "load",
    "stream",
]

# In a clone adapters/ and prompts/ lie beside this folder. A Python started there finds it before
# the package that was installed, and must find them too.
_HERE = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_HERE, "adapters")):
    __path__.append(os.path.dirname(_HERE))

_HOME = {
    "Chunk": "wire",
    "Completion": "wire",
    "Draft": "types",
    "Engine": "api",
    "Message": "wire",
    "SamplingParams": "types",
    "Tool": "wire",
    "acomplete": "shared",
    "astream": "shared",
    "complete": "shared",
    "load": "shared",
    "stream": "shared",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("agentspec-engine")
    elif name == "errors":
        value = import_module("agentspec.errors")
    elif name in _HOME:
        value = getattr(import_module(f"agentspec.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
