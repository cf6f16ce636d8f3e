"""Engines that say what a test wrote down, turn by turn, and how a stopped one is told."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

# else importing it asks the network for prices
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@pytest.fixture
def says(chat: Any) -> Callable[..., Any]:
    """An engine whose n-th answer of a conversation is the n-th of these texts, or the last.

    The logits are also a hash of all that is cached, so that a wrong cache shows.
    """
    head = np.asarray([chat.start, *b"assistant\n"], dtype=np.uint16).tobytes()

    def make(*answers: str, **options: Any) -> Any:
        texts = [chat.tokenizer().encode_special(answer) for answer in answers]
        noise = chat.hashed()

        def law(cached: Sequence[int]) -> Any:
            packed = np.asarray(cached, dtype=np.uint16).tobytes()
            logits = noise(cached).copy()
            if number := packed.count(head):
                said = len(cached) - (packed.rfind(head) + len(head)) // 2
                text = texts[min(number, len(texts)) - 1]
                logits[text[said] if said < len(text) else chat.eos] = 50.0
            return logits

        return chat.engine(law, **options)

    return make


@pytest.fixture
def calls() -> Callable[[str, Mapping[str, Any]], str]:
    """A call of a tool as the scripted models write it."""

    def write(name: str, arguments: Mapping[str, Any]) -> str:
        body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"<tool_call>\n{body}\n</tool_call>"

    return write


@pytest.fixture
def stopped() -> Callable[[Any], bool]:
    """Whether nothing runs in an engine: every slot is free."""
    return lambda engine: not any(slot.busy for slot in engine.slots())


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Imports an adapter anew as if a library were not there: `absent(library, adapter)`."""

    def load(library: str, adapter: str) -> None:
        for name in [name for name in sys.modules if name.startswith(f"{library}.")]:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.delitem(sys.modules, f"agentspec.adapters.{adapter}", raising=False)
        importlib.import_module(f"agentspec.adapters.{adapter}")

    return load
