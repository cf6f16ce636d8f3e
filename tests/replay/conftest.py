"""Recorded sessions over a vocabulary of bytes and ChatML's marks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from agentspec.replay.chatml import ChatEncoder, Tokens
from agentspec.replay.recording import Recording, Said

Talk = Callable[..., Tokens]


def recording(*answers: str, id: str = "s", source: str = "f", asks: str = "go on") -> Recording:
    """A conversation that says each of `answers` to the same request."""
    messages = []
    for answer in answers:
        messages += [Said("user", asks), Said("assistant", answer)]
    return Recording(id, source, "f:1", tuple(messages))


@pytest.fixture
def talk(chat: Any) -> Talk:
    """Answers as the ids of one session."""

    def make(*answers: str, **named: str) -> Tokens:
        return ChatEncoder(chat.tokenizer()).encode(recording(*answers, **named))

    return make


@pytest.fixture
def sessions(talk: Talk) -> list[Tokens]:
    """Three sessions whose answers repeat parts of each other, and edit them."""
    dice = random.Random(3)
    names = ["alpha", "beta", "gamma", "delta", "epsilon"]
    made = []
    for n in range(3):
        lines = [f"def {dice.choice(names)}_{i}(x):\n    return x + {i}\n" for i in range(6)]
        edited = list(lines)
        edited[2] = f"def other(y):\n    return y * {n}\n"
        made.append(talk("".join(lines), "".join(edited), f"done {n}", id=f"s{n}"))
    return made
