"""Files that the user puts before the model: to be edited, or only to be read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentspec.assistant.errors import RefusedError
from agentspec.assistant.repository import Repository, shown
from agentspec.assistant.tool_files import reading

_MAX_ADDED = 50


@dataclass(slots=True)
class HeldFiles:
    """The files that were added, and which of them the model has seen as they are now.

    `most` characters of each are shown.
    """

    repository: Repository
    most: int = 40_000
    _files: dict[str, bool] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)

    @property
    def editable(self) -> list[str]:
        return [path for path, editable in self._files.items() if editable]

    @property
    def read_only(self) -> list[str]:
        return [path for path, editable in self._files.items() if not editable]

    def add(self, path: str, *, editable: bool = True) -> list[str]:
        """Add a file, or those of a folder; the paths that were added.

        The user names it, so it is read whatever its name. Raises RefusedError for what cannot be
        read and for a folder with more than 50 files; nothing is added then.
        """
        name = self.repository.name(path)
        below = [
            e.path for e in self.repository.texts() if not name or e.path.startswith(name + "/")
        ]
        if len(below) > _MAX_ADDED:
            raise RefusedError(
                f"{shown(path)} has {len(below)} files, the most to add at once is {_MAX_ADDED}"
            )
        names = below or [name]
        for each in names:
            reading(self.repository.unguarded(), each, most=self.most)
        for each in names:
            self.repository.named.add(each)
            self._files[each] = editable
            if editable:
                self.repository.protected.discard(each)
            else:
                self.repository.protected.add(each)
        return names

    def drop(self, paths: Iterable[str] = ()) -> list[str]:
        """Take files back, all of them without a path; those that were held.

        Raises RefusedError for a path that is not held.
        """
        names = [self.repository.name(path) for path in paths] or list(self._files)
        for name in names:
            if name not in self._files:
                raise RefusedError(f"{shown(name)} was not added")
        for name in names:
            del self._files[name]
            self._told.pop(name, None)
            self.repository.protected.discard(name)
            self.repository.named.discard(name)
        return names

    def texts(self) -> list[str]:
        """Every held file as it is now."""
        return [self._text(path) for path in self._files]

    def news(self) -> list[str]:
        """The held files that changed since the model was last shown them, as they are now."""
        found = []
        for path in self._files:
            text = self._text(path)
            if self._told.get(path) != _digest(text):
                self._told[path] = _digest(text)
                found.append(text)
        return found

    def forget(self) -> None:
        """The model has seen none of them: the conversation begins anew."""
        self._told.clear()

    def seen(self, paths: Iterable[str]) -> None:
        """The model knows these as they are now, for it changed them itself."""
        for path in paths:
            if path in self._files:
                self._told[path] = _digest(self._text(path))

    def _text(self, path: str) -> str:
        how = "" if self._files[path] else " (not to be edited)"
        try:
            return f"The file {shown(path)}{how} is now:\n" + reading(
                self.repository, path, most=self.most
            )
        except RefusedError as error:
            return f"The file {shown(path)}{how} cannot be read now: {error}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
