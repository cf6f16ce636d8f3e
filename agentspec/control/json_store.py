"""Small results on disk per key: JSON, checksummed, written whole; a damaged one is a miss."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentspec.files import replacing

_log = logging.getLogger(__name__)


class JsonStore:
    """One file per key below `folder`; `what` names in warnings what is kept, e.g. "cost curve".

    `key` must name everything the value depends on. A store that is damaged or cannot be written
    to costs a new measurement and one warning, nothing else.
    """

    def __init__(self, folder: Path, what: str) -> None:
        self.folder = folder
        self._what = what
        self._writable = True

    def path(self, key: Mapping[str, Any]) -> Path:
        """Where the value of a key is kept."""
        digest = hashlib.sha256(_text(key).encode()).hexdigest()
        return self.folder / f"{digest[:32]}.json"

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The value of a key as it was put (keys as strings), or None."""
        path = self.path(key)
        try:
            data = json.loads(path.read_text("utf-8"))
            if data.pop("sha256") != _digest(data):
                raise ValueError("its checksum does not match")
            return data if data.pop("key") == _text(key) else None
        except FileNotFoundError:
            return None
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            self.damaged(key, error)
            return None

    def damaged(self, key: Mapping[str, Any], error: Exception) -> None:
        """Warn that what is kept under a key cannot be used."""
        _log.warning("%s is damaged and is measured again: %s", self.path(key), error)

    def put(self, key: Mapping[str, Any], value: Mapping[str, Any], *, sync: bool = True) -> None:
        """Replace the value of a key; without `sync` a power cut may leave a damaged file."""
        # what comes back has strings for keys: the checksum is over that form
        data = json.loads(json.dumps({**value, "key": _text(key)}))
        data["sha256"] = _digest(data)
        try:
            with replacing(self.path(key), sync=sync) as file:
                file.write(json.dumps(data).encode())
            self._writable = True
        except OSError as error:
            if self._writable:
                _log.warning("the %s could not be kept in %s: %s", self._what, self.folder, error)
            self._writable = False


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True, default=str)


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
