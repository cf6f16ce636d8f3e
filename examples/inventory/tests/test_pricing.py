import unittest

from inventory.pricing import bulk_discount, discounted, line_total, shipping


class PricingTest(unittest.TestCase):
    def test_line_total(self):
        self.assertEqual(line_total(250, 4), 1000)

    def test_no_discount_below_ten_pieces(self):
        self.assertEqual(bulk_discount(9), 0)

    def test_discount_from_ten_pieces_on(self):
        self.assertEqual(bulk_discount(10), 5)

    def test_discount_from_fifty_pieces_on(self):
        self.assertEqual(bulk_discount(50), 10)

    def test_discounted(self):
        self.assertEqual(discounted(1000, 5), 950)

    def test_shipping(self):
        self.assertEqual(shipping(4999), 490)

    def test_free_shipping(self):
        self.assertEqual(shipping(5000), 0)
