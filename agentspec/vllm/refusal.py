"""One reason for which vLLM would not serve."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason not to start: a short name, and what is wrong and what to do about it."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"
