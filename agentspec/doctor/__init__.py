"""What is wrong with an installation, a model, a pair or a device, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from agentspec.errors import AgentspecError

__all__ = ["Check", "State", "checked", "examine"]

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what was found, and in `advice` what to change, if anything."""

    name: str
    state: State
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Check:
    return Check(name, "ok", found)


def warn(name: str, found: str, advice: str) -> Check:
    return Check(name, "warn", found, advice)


def fail(name: str, found: str, advice: str) -> Check:
    return Check(name, "fail", found, advice)


def checked(name: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """The checks of one look; what it raises is one that failed, and the others go on."""
    try:
        yield from look()
    except AgentspecError as error:
        found, _, advice = str(error).partition("; ")
        yield fail(name, found, advice)
    except OSError as error:
        yield fail(name, f"{error.filename or name}: {error.strerror or error}", "")


def examine(
    model: str | None = None, *, draft: str | None = None, measure: bool = False
) -> Iterator[Check]:
    """Every check, in the order in which to read them; nothing large is loaded unless `measure`.

    `model` and `draft` are catalog names or paths; None: as the settings say.
    """
    from agentspec.config import load_settings
    from agentspec.doctor import installation, model_file, pair, places, speed
    from agentspec.errors import ConfigError

    yield from checked("python", installation.python)
    yield from checked("llama.cpp", installation.llama)
    yield from checked("extras", installation.extras)
    try:
        settings = load_settings({"model": model, "draft": draft})
    except ConfigError as error:
        yield fail("settings", str(error), "see: agentspec config path")
        return
    yield from checked("settings", lambda: places.settings(settings))
    yield from checked("disk", lambda: places.disk(settings))
    yield from checked("machine", lambda: speed.machine(settings))
    target = list(checked("model", lambda: model_file.model(settings, measure=measure)))
    yield from target
    if any(check.state == "fail" for check in target):
        return
    yield from checked("template", lambda: model_file.template(settings))
    yield from checked("memory", lambda: model_file.memory(settings))
    yield from checked("pair", lambda: pair.pair(settings))
    yield from checked("cost curve", lambda: speed.cost(settings, measure=measure))
