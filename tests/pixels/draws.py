"""The daemon's draws, and the helpers that tests of operations share.

`Draws` is the generator of `daemon/crates/order/src/draw.rs`, written down once more: with it a test gives torchvision
the numbers that an operation has drawn.
"""

import math

GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Draws:
    """The draws of one operation on one sample."""

    def __init__(self, sample, operation, seed=17, epoch=0):
        self.state = mix((seed + GAMMA) & MASK)
        for part in (epoch, sample, operation):
            self.state = mix(self.state ^ ((part + GAMMA) & MASK))

    def next(self):
        self.state = (self.state + GAMMA) & MASK
        return mix(self.state)

    def uniform(self, low=0.0, high=1.0):
        return low + (high - low) * ((self.next() >> 11) * 2.0**-53)

    def below(self, bound):
        threshold = (-bound & MASK) % bound
        while True:
            product = self.next() * bound
            if product & MASK >= threshold:
                return product >> 64

    def shuffled(self, items):
        items = list(items)
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]
        return items

    def normal(self):
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def gamma(self, shape):
        """Of a shape from 1."""
        d = shape - 1.0 / 3.0
        while True:
            x = self.normal()
            v, u = (1.0 + x / math.sqrt(9.0 * d)) ** 3, 1.0 - self.uniform()
            if v > 0.0 and math.log(u) < 0.5 * x * x + d - d * v + d * math.log(v):
                return d * v

    def dirichlet(self, count, alpha=1.0):
        shares = [self.gamma(alpha) for _ in range(count)]
        return [share / sum(shares) for share in shares]
