"""What is known about acceptance before the first verdict: weights fitted on recorded sessions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from agentspec.context import evidence
from agentspec.errors import ConfigError

_SCALE = 1000.0


@dataclass(frozen=True, slots=True)
class Prior:
    """Weights by slot, and chains of acceptance probabilities as passes usually meet them.

    `chains` tell what a curve can earn before anything was measured on it; `habits` are short
    phrases that agents of more than one origin write. `sessions` are digests of the sessions they
    were fitted on (`session_digest`): a replay of these is no test.
    """

    weights: tuple[float, ...]
    chains: tuple[tuple[float, ...], ...] = ()
    habits: tuple[str, ...] = ()
    sessions: frozenset[str] = frozenset()

    @classmethod
    def none(cls) -> Prior:
        """Knows only that longer matches, and surer draft models, are right more often."""
        return cls(evidence.unfitted())

    @classmethod
    def shipped(cls, name: str = "full") -> Prior:
        """The fitted weights that come along: "full" or "plain" (without syntax)."""
        text = files("agentspec.control").joinpath("priors.json").read_text("utf-8")
        return cls.from_json(json.loads(text), name)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], name: str) -> Prior:
        """Raises ConfigError for weights of another layout and for values that are none."""
        if not isinstance(data, Mapping):
            raise ConfigError("these are no priors: an object with fitted weights is expected")
        if data.get("layout") != evidence.LAYOUT or data.get("slots") != evidence.SLOTS:
            raise ConfigError(
                "these priors were fitted for another layout of the evidence; fit them again"
            )
        fitted = data[name]
        prior = cls(
            tuple(weight / _SCALE for weight in fitted["weights"]),
            tuple(tuple(p / _SCALE for p in chain) for chain in data.get("chains", ())),
            tuple(data.get("habits", ())),
            frozenset(data.get("sessions", ())),
        )
        if len(prior.weights) != evidence.SLOTS or not all(map(math.isfinite, prior.weights)):
            raise ConfigError(f"their weights are not {evidence.SLOTS} finite numbers")
        if not all(0.0 <= p <= 1.0 for chain in prior.chains for p in chain):
            raise ConfigError("their chains hold what is no probability")
        if not all(isinstance(phrase, str) for phrase in prior.habits):
            raise ConfigError("their habits hold what is no text")
        return prior


def session_digest(source: str, id: str) -> str:
    """A short name of a recorded session that does not give it away."""
    return hashlib.sha256(f"{source}/{id}".encode()).hexdigest()[:8]


def to_json(
    fitted: Mapping[str, Sequence[float]],
    chains: Sequence[Sequence[float]],
    habits: Sequence[str],
    sessions: Iterable[str],
) -> dict[str, Any]:
    """Fitted weights by name as `Prior.from_json` reads them."""
    return {
        "layout": evidence.LAYOUT,
        "slots": evidence.SLOTS,
        **{
            name: {"weights": [round(weight * _SCALE) for weight in weights]}
            for name, weights in fitted.items()
        },
        "chains": [[round(p * _SCALE) for p in chain] for chain in chains],
        "habits": list(habits),
        "sessions": sorted(sessions),
    }
