"""What is closed at the end of a block."""

from __future__ import annotations

from typing import Self


class Closing:
    """Something with `close`, which leaving its `with` block calls."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
