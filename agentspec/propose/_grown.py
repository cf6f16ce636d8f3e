"""A draft as it grows token by token, with what is known of each: the likely part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Protocol

from agentspec.context import evidence
from agentspec.types import Draft, Evidence, FloatArray


class Said(Protocol):
    """What a draft model says of one position; `largest` is max(q)."""

    @property
    def largest(self) -> float: ...

    def best(self) -> int: ...


class Grown:
    """A draft as it grows, with what is known of each token."""

    def __init__(self, chance: Callable[[Sequence[int]], float] | None, name: str) -> None:
        self._learned = chance
        self._name = name
        self.passes: list[int] = []
        self._taken = 0
        self._tokens: list[int] = []
        self._sources: list[str] = []
        self._laws: list[FloatArray | None] = []
        self._sure: list[float] = []
        self._features: list[tuple[int, ...]] = []
        self._classes: list[str] = []
        self._stands = 1.0
        self._next: tuple[float, tuple[int, ...], float] = (0.0, (), 0.0)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def stands(self) -> float:
        """The chance that all of it stands."""
        return self._stands

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    def keep(self, ahead: Draft, laws: Sequence[Said], least: float) -> tuple[int, ...] | None:
        """Take over what seems right of another's draft.

        Returns further slots of the token to draft in the place of the first that does not, none
        where all was taken over; None when nothing more can pay.
        """
        known = ahead.evidence
        for j, (token, law) in enumerate(zip(ahead.tokens, laws, strict=False)):
            sure, agrees = law.largest, law.best() == token
            found = (
                known.features[j] if known.features else evidence.plain_slots(known.match_length, j)
            )
            slots = (*found, evidence.agreed_slot(sure, agrees))
            chance = self._of(slots, sure if agrees else 1.0 - sure)
            if not agrees:
                own = evidence.instead_slot(sure, self._of(found, 0.5))
                if self._of((*self._own_slots(sure), own), sure) > chance:
                    return (own,)
            self._stands *= chance
            if j and self._stands < least:
                return None
            self._tokens.append(token)
            self._sources.append(ahead.sources[j])
            self._laws.append(None)
            self._sure.append(sure)
            self._features.append(slots)
            self._classes += known.classes[j : j + 1]
            self._taken += 1
        return ()

    def ended(self, ends: Set[int]) -> bool:
        """Whether the last token ends the answer."""
        return bool(self._tokens) and self._tokens[-1] in ends

    def chance(self, sure: float, further: int = 0) -> float:
        """That an own token stands when all before it do, so many places behind the last."""
        return self._of(self._own_slots(sure, further), sure)

    def may_add(self, sure: float, more: tuple[int, ...], p_min: float, least: float) -> bool:
        """Whether to draft a token that the draft model is so sure of."""
        slots = (*self._own_slots(sure), *more)
        stands = self._stands * self._of(slots, sure)
        if sure < p_min or (self._tokens and stands < least):
            return False
        self._next = sure, slots, stands
        return True

    def add(self, token: int, source: str, q: FloatArray | None) -> None:
        """The token that may be added."""
        sure, slots, self._stands = self._next
        self._tokens.append(token)
        self._sources.append(source)
        self._laws.append(q)
        self._sure.append(sure)
        self._features.append(slots)

    def draft(self) -> Draft:
        n = len(self._tokens)
        classes = tuple(self._classes) if len(self._classes) == n else ()
        return Draft(
            tuple(self._tokens),
            tuple(self._sources),
            tuple(self._laws),
            evidence=Evidence(
                confidence=tuple(self._sure),
                features=tuple(self._features),
                classes=classes,
                taken=self._taken,
                passes=tuple(self.passes),
            ),
        )

    def _own_slots(self, sure: float, further: int = 0) -> tuple[int, ...]:
        depth = len(self._tokens) + further
        if self._name in evidence.HEADS:
            return evidence.head_slots(self._name, sure, depth)
        return evidence.model_slots(sure, depth, evidence.NO_CLASS)

    def _of(self, slots: Sequence[int], otherwise: float) -> float:
        return self._learned(slots) if self._learned is not None else otherwise
