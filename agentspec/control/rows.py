"""Row counts that one target pass may have: any, or the members of a bit-equal class."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowClass:
    """Allowed numbers of rows per pass, ascending; empty means any number.

    In exact mode every pass, plain ones included, keeps to one class of row counts whose logits
    are bit-equal on this device, by choosing K and by padding rows.
    """

    sizes: tuple[int, ...] = ()

    @property
    def largest(self) -> int | None:
        return self.sizes[-1] if self.sizes else None

    def limit(self, room: int) -> int:
        """The most draft tokens a pass may carry when `room` would fit, padding included."""
        if not self.sizes:
            return room
        return max((size for size in self.sizes if size <= room + 1), default=1) - 1

    @property
    def spare(self) -> int:
        """Rows that even a plain pass adds: the end of the context must leave room for them."""
        return self.sizes[0] - 1 if self.sizes else 0

    def padding(self, rows: int) -> int:
        """Rows to add so that the pass has an allowed count; `rows` must not exceed the class."""
        if not self.sizes:
            return 0
        return next(size for size in self.sizes if size >= rows) - rows


ANY_ROWS = RowClass()
