"""The live sequences of an engine, which requests take one at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotState:
    """What one live sequence holds and does; `prompt_read` of `prompt_tokens` are in its cache.

    `request` is the id of the answer that is being made, None when the slot is idle.
    """

    id: int
    tokens: int = 0
    busy: bool = False
    request: str | None = None
    prompt_tokens: int = 0
    prompt_read: int = 0
    generated: int = 0
