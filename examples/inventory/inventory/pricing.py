# Prices, in whole cents.


def line_total(unit_price, quantity):
    # The price of one order line.
    return unit_price * quantity


def bulk_discount(quantity):
    # Percent off: 5 from 10 pieces on, 10 from 50 pieces on.
    if quantity >= 50:
        return 10
    if quantity >= 10:
        return 5
    return 0


def discounted(total, percent):
    # The total after a discount, rounded down.
    return total * (100 - percent) // 100


def shipping(total):
    # Shipping costs 490; from a total of 5000 on it is free.
    if total >= 5000:
        return 0
    return 490
