"""The sizes of the buffers that llama.cpp itself reports while it loads a model."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from agentspec.backends.llama_cpp import LlamaCppBackend
from agentspec.backends.llama_params import LlamaSettings

_LOGGER = "agentspec.llama_cpp"
_SIZE = re.compile(r"\s(\S+) +(model|KV|RS|output|compute) buffer size = +(\d+\.\d+) MiB")
_MIB = 1 << 20


def reported_sizes(path: str | os.PathLike[str], settings: LlamaSettings) -> dict[str, int]:
    """Loads the model and closes it; bytes per kind of buffer, over all devices.

    Kinds are model, repacked (the copy beside the mapped file), KV, RS (recurrent states), output
    and compute; llama.cpp rounds to a hundredth of a MiB. Raises as `LlamaCppBackend` does.
    """
    with _overheard() as lines:
        LlamaCppBackend(path, settings).close()
    sizes = dict.fromkeys(("model", "repacked", "KV", "RS", "output", "compute"), 0)
    for line in lines:
        if found := _SIZE.search(line):
            kind = "repacked" if found[1] == "CPU_REPACK" else found[2]
            sizes[kind] += round(float(found[3]) * _MIB)
    return sizes


@contextmanager
def _overheard() -> Iterator[list[str]]:
    """Every line that llama.cpp logs inside the block, and none of them anywhere else."""
    lines: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, ear = logging.getLogger(_LOGGER), Ear()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(ear)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(ear)
        logger.setLevel(level)
        logger.propagate = propagate
