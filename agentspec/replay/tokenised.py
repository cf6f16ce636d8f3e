"""Recordings in token ids, kept on disk so that only the first replay tokenises them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from agentspec.replay.chatml import CONTEXT_TOKENS, VERSION, ChatEncoder, Tokens
from agentspec.replay.recording import Recording
from agentspec.replay.store import ArrayStore


def tokenise(
    recordings: Sequence[Recording],
    encoder: Callable[[], ChatEncoder],
    identity: str,
    store: ArrayStore,
    *,
    limit: int = CONTEXT_TOKENS,
) -> list[Tokens]:
    """Recordings in ids; `encoder` is made when the first is not in the store.

    `identity` names the tokenizer. Raises InvalidRequestError for text that cannot be encoded.
    """
    made: ChatEncoder | None = None
    result = []
    for recording in recordings:
        key = _key(recording, identity, limit)
        known = store.get(key)
        tokens = _from_arrays(recording, known) if known is not None else None
        if tokens is None:
            made = made or encoder()
            tokens = made.encode(recording, limit=limit)
            turns = [n for turn in tokens.turns for n in turn]
            store.put(
                key,
                {
                    "ids": np.asarray(tokens.ids, dtype=np.int32),
                    "turns": np.asarray(turns, dtype=np.int32),
                    "end": np.asarray([tokens.end], dtype=np.int32),
                },
            )
        result.append(tokens)
    return result


def _key(recording: Recording, identity: str, limit: int) -> dict[str, Any]:
    said = json.dumps([asdict(message) for message in recording.messages])
    digest = hashlib.sha256(said.encode()).hexdigest()
    return {"messages": digest, "tokenizer": identity, "limit": limit, "version": VERSION}


def _from_arrays(recording: Recording, arrays: dict[str, Any]) -> Tokens | None:
    if not {"ids", "turns", "end"} <= set(arrays):
        return None
    flat = arrays["turns"].tolist()
    turns = list(zip(flat[::2], flat[1::2], strict=True))
    end = int(arrays["end"][0])
    return Tokens(
        recording.id, recording.source, arrays["ids"].tolist(), turns, end, recording.tools
    )
