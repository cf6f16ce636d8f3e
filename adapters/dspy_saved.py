"""What DSPy writes into a saved program of an engine, and what it is made of again."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

from agentspec.adapters.source import SECRETS, Answers, Source
from agentspec.errors import ConfigError

_log = logging.getLogger(__name__)
# every predictor of a program is saved with an engine of its own: one model, loaded once
_sources: WeakValueDictionary[str, Source] = WeakValueDictionary()


def saved(source: Source, request: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's state as JSON: what it is opened with and always asks for.

    Keys, an engine that was given, and what is no JSON are left out; `without` names them.
    """
    model, base_url, settings = source.origin
    without = ["engine"] if source.lent or isinstance(source, _LeftOut) else []
    return {
        "model": _plain(source.name if without else model),
        "base_url": base_url,
        "settings": _kept(settings, without),
        "request": _kept(request, without),
        "without": without,
    }


def made_again(state: Mapping[str, Any]) -> tuple[Source, dict[str, Any]]:
    """The source and the request of a saved state; what is to be given again is said, once.

    Sources of one state are one. Raises ConfigError for what `saved` did not write.
    """
    try:
        model, base_url = state["model"], state["base_url"]
        settings, request, without = (
            dict(state["settings"]),
            dict(state["request"]),
            state["without"],
        )
        key = json.dumps([model, base_url, settings, without], sort_keys=True)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("this state of an engine was not saved by agentspec") from error
    if without:
        _tell(_missing(model, without))
    source = _sources.get(key)
    if source is None:
        kind = _LeftOut if "engine" in without else Source
        source = _sources[key] = kind(model, base_url=base_url, **settings)
    return source, request


class _LeftOut(Source):
    """In the place of an engine that was given: the program loads, its answers say what to do."""

    def _open(self) -> Answers:
        raise ConfigError(_missing(self.name, ["engine"]))


def _missing(model: str | None, without: list[str]) -> str:
    names = ", ".join(without)
    return (
        f"the program was saved without the {names} of {model or 'the configured model'}; "
        "give it again: program.set_lm(agentspec_lm(…))"
    )


@cache
def _tell(line: str) -> None:
    # DSPy loads each predictor twice, for a trial first
    _log.warning("%s", line)


def _kept(given: Mapping[str, Any], without: list[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if name in SECRETS or not _is_json(_plain(value)):
            without.append(name)
        else:
            kept[name] = _plain(value)
    return kept


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value
