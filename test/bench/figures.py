"""Figures of several rounds: the median, with the smallest and largest."""

from collections import defaultdict
from statistics import median


class Figure:
    """Values of one thing, one a round."""

    def __init__(self, values):
        self.values = list(values)
        self.median = median(self.values)

    def over(self, peer):
        """The ratio to a peer, in each round for itself."""
        return Figure(a / b for a, b in zip(self.values, peer.values))

    def times(self, factor):
        return Figure(value * factor for value in self.values)

    def inverse(self):
        return Figure(1 / value for value in self.values)

    def text(self):
        """For a table: 12300 (11900–12500)."""
        if len(self.values) == 1:
            return number(self.median)
        return (f"{number(self.median)}"
                f" ({number(min(self.values))}–{number(max(self.values))})")


class Rounds:
    """What several rounds have measured, by name."""

    def __init__(self):
        self.values = defaultdict(list)

    def add(self, name, value):
        self.values[name].append(value)

    def __getitem__(self, name):
        return Figure(self.values[name])


def number(value):
    """Three digits that matter, and all of a large number's."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def span(values):
    """From the smallest to the largest: 1.09 to 1.22."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def rotated(items, turn):
    """Another one begins each round, lest the first always be the first."""
    items = list(items)
    turn %= len(items)
    return items[turn:] + items[:turn]


def percentile(values, share):
    values = sorted(values)
    return values[min(int(share * len(values)), len(values) - 1)]
