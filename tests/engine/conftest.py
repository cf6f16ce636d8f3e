"""Shared pieces of the engine's tests: small worlds, a fake grammar, and mutated source."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from agentspec.backends.base import Rollback
from agentspec.errors import InvalidRequestError
from agentspec.testing.scripted import Law, ScriptedBackend, ScriptedTokenizer, hashed_law

VOCAB = 12
EOS = VOCAB - 1
WORDS = {0: b"ab", 1: b"b", 2: b"ba", 3: b"c", 4: b"ca", 5: "é".encode(), 6: b"\xc3", 7: b"\xa9"}


class Parity:
    """Allows a token when token + number of committed tokens is not a multiple of three."""

    def __init__(self, size: int = VOCAB, done: tuple[int, ...] = ()) -> None:
        self.size = size
        self.done = done

    def fork(self) -> Parity:
        return Parity(self.size, self.done)

    def mask(self) -> npt.NDArray[np.bool_]:
        allowed: npt.NDArray[np.bool_] = (np.arange(self.size) + len(self.done)) % 3 != 0
        return allowed

    def only(self) -> int | None:
        places = np.flatnonzero(self.mask())
        return int(places[0]) if len(places) == 1 else None

    def forced(self, most: int) -> tuple[int, ...]:
        probe = self.fork()
        run: list[int] = []
        while len(run) < most and (token := probe.only()) is not None:
            run.append(token)
            probe.advance(token)
        return tuple(run)

    def advance(self, token: int) -> None:
        if not self.mask()[token]:
            raise InvalidRequestError(f"token {token} is not allowed")
        self.done = (*self.done, token)

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        probe = self.fork()
        for n, token in enumerate(tokens):
            if not probe.mask()[token]:
                return n
            probe.advance(token)
        return len(tokens)

    @property
    def finished(self) -> bool:
        return False


class World:
    """Targets and drafts over a vocabulary of 12 whose pieces overlap in bytes; 11 is EOS."""

    vocab = VOCAB
    eos = EOS
    Parity = Parity

    def target(
        self,
        seed: int = 0,
        *,
        rollback: Rollback = Rollback.TRIM,
        n_ctx: int = 1 << 20,
        max_rows: int = 512,
        law: Law | None = None,
        vocab: int = VOCAB,
    ) -> ScriptedBackend:
        return ScriptedBackend(
            law or hashed_law(vocab, seed),
            vocab,
            n_ctx=n_ctx,
            rollback=rollback,
            max_rows=max_rows,
            tokenizer=ScriptedTokenizer(vocab, words=WORDS, eos_ids=frozenset({vocab - 1})),
        )

    def near(self, seed: int, *, vocab: int = VOCAB, noise: float = 0.7, scale: float = 2.0) -> Law:
        """A draft model's law: the target's of that seed, with noise."""
        target = hashed_law(vocab, seed, scale=scale)
        other = hashed_law(vocab, seed + 1000, scale=noise)
        return lambda cached: target(cached) + other(cached)


@pytest.fixture(scope="session")
def world() -> World:
    return World()


Mutate = Callable[..., Any]


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch) -> Mutate:
    """Replace a piece of the source of a function or method; the piece must occur once."""

    def apply(
        module: ModuleType, path: str, old: str, new: str, *, used_in: ModuleType | None = None
    ) -> None:
        owner: Any = module
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
        assert source.count(old) == 1, f"{path} has {old!r} {source.count(old)} times"
        names = dict(vars(module))
        future = "from __future__ import annotations\n"
        exec(compile(future + source.replace(old, new), f"mutated {path}", "exec"), names)
        monkeypatch.setattr(used_in or owner, name, names[name])

    return apply
