import unittest

from inventory.orders import Order
from inventory.stock import Stock


class OrderTest(unittest.TestCase):
    def setUp(self):
        self.order = Order()
        self.order.add("nut", 100, 10)
        self.order.add("bolt", 300, 2)

    def test_quantity(self):
        self.assertEqual(self.order.quantity(), 12)

    def test_total(self):
        self.assertEqual(self.order.total(), 950 + 600 + 490)

    def test_take_from(self):
        stock = Stock()
        stock.add("nut", 15)
        stock.add("bolt", 2)
        self.order.take_from(stock)
        self.assertEqual(stock.count("nut"), 5)
        self.assertEqual(stock.count("bolt"), 0)
