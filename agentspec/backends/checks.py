"""Fields of a settings object, checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.errors import ConfigError


def check_whole(
    settings: object, name: str, low: int, high: int, *, optional: bool = False
) -> None:
    """Raises ConfigError unless the field is a whole number in these bounds, or None if it may."""
    value = getattr(settings, name)
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high}, not {value!r}")


def check_one_of(settings: object, name: str, choices: Sequence[str]) -> None:
    """Raises ConfigError unless the field is one of these."""
    value = getattr(settings, name)
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def check_flags(settings: object, *names: str) -> None:
    """Raises ConfigError unless each of the fields is true or false."""
    for name in names:
        if not isinstance(getattr(settings, name), bool):
            raise ConfigError(f"{name} must be true or false, not {getattr(settings, name)!r}")
