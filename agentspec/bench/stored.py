"""What the index on disk costs: its load, its memory, and a look at files that did not change."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentspec.context.store import IndexStore
from agentspec.context.workspace import Workspace
from agentspec.testing.scripted import ScriptedTokenizer

FILES = 1000


@dataclass(frozen=True, slots=True)
class Stored:
    """`load` and `refresh` in seconds, medians; `memory` in bytes per token."""

    load: float
    memory: float
    refresh: float


def measure_store(tokens: npt.NDArray[np.int32], vocab: int, *, repeats: int = 5) -> Stored:
    """Keep the tokens beside those of FILES small files, in temporary folders, and reopen them.

    `load` is all from opening the store to an index that can be searched.
    """
    tokenizer = ScriptedTokenizer(vocab)
    loads: list[float] = []
    refreshes: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "workspace")
        for i in range(FILES):
            file = root / f"{i % 20}" / f"{i}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("x" * (i % 50))
            os.utime(file, (1000 + i, 1000 + i))
        workspace = Workspace(root)
        store = IndexStore(Path(folder, "store"), "", tokenizer, session_tokens=len(tokens))
        first = store.open(workspace)
        first.add_session("all", tokens)
        first.save()
        for _ in range(repeats):
            start = time.perf_counter()
            stored = store.open(workspace)
            index = stored.index()
            between = time.perf_counter()
            stored.refresh()
            refreshes.append(time.perf_counter() - between)
            loads.append(between - start)
        memory = stored.nbytes / len(index)
    return Stored(statistics.median(loads), memory, statistics.median(refreshes))
