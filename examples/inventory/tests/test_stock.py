import unittest

from inventory.stock import Stock


class StockTest(unittest.TestCase):
    def setUp(self):
        self.stock = Stock()
        self.stock.add("nut", 5)
        self.stock.add("bolt", 3)

    def test_add_twice(self):
        self.stock.add("nut", 2)
        self.assertEqual(self.stock.count("nut"), 7)

    def test_remove(self):
        self.stock.remove("nut", 2)
        self.assertEqual(self.stock.count("nut"), 3)

    def test_remove_all(self):
        self.stock.remove("bolt", 3)
        self.assertEqual(self.stock.count("bolt"), 0)

    def test_remove_too_many(self):
        with self.assertRaises(ValueError):
            self.stock.remove("bolt", 4)

    def test_unknown_article(self):
        self.assertEqual(self.stock.count("screw"), 0)

    def test_low(self):
        self.assertEqual(self.stock.low(5), ["bolt", "nut"])
