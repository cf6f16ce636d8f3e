# Orders: several lines of articles, priced and taken out of the stock.

from inventory import pricing


class Order:
    def __init__(self):
        self.lines = []

    def add(self, article, unit_price, quantity):
        # Add a line to the order.
        self.lines.append((article, unit_price, quantity))

    def quantity(self):
        # Pieces in all lines together.
        return sum(quantity for _, _, quantity in self.lines)

    def total(self):
        # All lines, less the bulk discount of each line, plus shipping once.
        total = 0
        for _, unit_price, quantity in self.lines:
            price = pricing.line_total(unit_price, quantity)
            total += pricing.discounted(price, pricing.bulk_discount(quantity))
        return total + pricing.shipping(total)

    def take_from(self, stock):
        # Remove the pieces of every line from the stock.
        for article, _, quantity in self.lines:
            stock.remove(article, quantity)
