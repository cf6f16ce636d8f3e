# How many pieces of each article are in the warehouse.


class Stock:
    def __init__(self):
        self.pieces = {}

    def add(self, article, quantity):
        # Put pieces into the warehouse.
        self.pieces[article] = self.pieces.get(article, 0) + quantity

    def remove(self, article, quantity):
        # Take pieces out. Raises ValueError when there are not enough.
        if quantity > self.count(article):
            raise ValueError(article)
        self.pieces[article] -= quantity

    def count(self, article):
        # Pieces of an article, 0 for an unknown one.
        return self.pieces.get(article, 0)

    def low(self, limit):
        # Articles with at most `limit` pieces left, in alphabetical order.
        return sorted(a for a, n in self.pieces.items() if n <= limit)
