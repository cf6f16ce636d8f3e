"""What is to be trained, and on how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from agentspec.errors import ConfigError
from agentspec.training.windows import GRAIN

Kind = Literal["medusa", "eagle", "exit"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_RATES = {"medusa": 1e-3, "eagle": 5e-4, "exit": 1e-3}
_WIDE = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of a training; None stands for what suits the kind and the target.

    A window has `window` tokens, its continuation `tokens`; about `most` tokens of continuations
    are learnt from. `depth` is how many tokens a draft has: the heads of Medusa, else what is
    measured. `blocks` are residual blocks per head, with `own_heads` each has a vocabulary head of
    its own too; `layer` and `rank` are of an exit. `batch` texts are continued at once, a step
    learns from `rows`. `seconds` is for all of it. Raises ConfigError.
    """

    kind: Kind
    depth: int = 4
    blocks: int = 1
    own_heads: bool = False
    layer: int | None = None
    rank: int | None = None
    window: int = 64
    tokens: int = 96
    most: int = 24_000
    batch: int = 16
    rows: int = 4
    epochs: int = 8
    rate: float | None = None
    patience: int = 3
    seed: int = 0
    seconds: float = 1200.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        for name, low, high in (
            ("depth", 1, 16),
            ("blocks", 1, 8),
            ("window", GRAIN, 1 << 16),
            ("tokens", 2, 1 << 14),
            ("most", 1, 1 << 32),
            ("batch", 1, 1 << 10),
            ("rows", 1, 1 << 10),
            ("epochs", 1, 10_000),
            ("patience", 1, 10_000),
            ("seed", 0, 1 << 31),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(
                    f"{name} must be from {low} to {high}, not {getattr(self, name)!r}"
                )
        if self.tokens <= self.depth + 1:
            raise ConfigError(
                f"continuations of {self.tokens} tokens are too short for drafts of {self.depth}; "
                "raise tokens"
            )
        if not self.seconds > 0:
            raise ConfigError(f"seconds must be above 0, not {self.seconds!r}")
        if self.rate is not None and not 0 < self.rate < 1:
            raise ConfigError(f"rate must be between 0 and 1, not {self.rate!r}")
        if self.kind != "exit" and (self.layer is not None or self.rank is not None):
            raise ConfigError(f"layer and rank are for kind exit, not {self.kind}")
        if self.kind != "medusa" and (self.own_heads or self.blocks != 1):
            raise ConfigError(f"blocks and own heads are for kind medusa, not {self.kind}")
        if self.rank is not None and not 0 <= self.rank <= 1 << 14:
            raise ConfigError(f"rank must be from 0 to {1 << 14}, not {self.rank!r}")

    @property
    def learning_rate(self) -> float:
        return _RATES[self.kind] if self.rate is None else self.rate

    def rank_for(self, width: int) -> int:
        """Inner numbers of an exit adapter; 0 is a full map, which narrow targets get."""
        return self.rank if self.rank is not None else 0 if width <= _WIDE else 256

    def layer_of(self, layers: int) -> int:
        """The layers before the exit: a quarter of them unless told. Raises ConfigError."""
        layer = self.layer if self.layer is not None else max(1, layers // 4)
        if not 1 <= layer < layers:
            raise ConfigError(f"an exit lies behind 1 to {layers - 1} layers here, not {layer}")
        return layer
