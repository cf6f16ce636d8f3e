"""Mistakes that are planted into a copy of the example repository, for the agent to find."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong line: `right` occurs exactly once in the file and becomes `wrong`."""

    path: str
    right: str
    wrong: str

    @property
    def line(self) -> str:
        """The wrong line as a person would name it."""
        return f"{self.path}: {self.wrong}"

    def plant(self, text: str) -> str:
        """The text with the mistake. Raises ValueError when it does not fit the file."""
        if text.count(self.right) != 1:
            raise ValueError(f"{self.path} does not hold {self.right!r} exactly once")
        return text.replace(self.right, self.wrong)


PRICING, STOCK, ORDERS = (f"inventory/{name}.py" for name in ("pricing", "stock", "orders"))

# Each is of the kind that an error message names: a name that was mistyped or half renamed, an
# argument that was forgotten, a key that is not there. A model of 1.5B parameters does not find
# mistakes that show only as a wrong number.
UNIT_PRICE = Mistake(PRICING, "return unit_price * quantity", "return unit_prise * quantity")
PERCENT = Mistake(PRICING, "total * (100 - percent) // 100", "total * (100 - percents) // 100")
COUNT = Mistake(STOCK, "return self.pieces.get(article, 0)", "return self.peices.get(article, 0)")
UNKNOWN = Mistake(STOCK, "return self.pieces.get(article, 0)", "return self.pieces[article]")
LOW = Mistake(STOCK, "in self.pieces.items()", "in self.piece.items()")
LINES = Mistake(ORDERS, "self.lines.append((article,", "self.line.append((article,")
TAKE = Mistake(ORDERS, "stock.remove(article, quantity)", "stock.remove(article)")
PRICE = Mistake(
    ORDERS, "pricing.line_total(unit_price, quantity)", "pricing.line_total(unit_price)"
)

VARIANTS: tuple[tuple[Mistake, Mistake], ...] = (
    (COUNT, UNIT_PRICE),
    (LOW, LINES),
    (PERCENT, TAKE),
    (PRICE, LOW),
    (UNKNOWN, LINES),
)
"""Two mistakes each, in two modules; chosen to be within reach of a small model, not at random."""
