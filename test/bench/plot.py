"""Plots as SVG: groups of bars, and lines.

Each returns the text of a file.  White ground, so that it can be read on a
dark page as well.
"""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 76, 16, 44, 84
COLOURS = ("#0b6e99", "#d9730d", "#9b9a97", "#6940a5", "#0f7b6c", "#ad1a72",
           "#64473a")


def bars(title, unit, groups, series):
    """Bars from 0 up; series: name -> a value for each group."""
    axis = Axis(0, max(max(values) for values in series.values()))
    parts = [axis.grid(unit)]
    space = (WIDTH - LEFT - RIGHT) / len(groups)
    width = 0.8 * space / len(series)
    for index, group in enumerate(groups):
        middle = LEFT + (index + 0.5) * space
        parts.append(text(middle, HEIGHT - BOTTOM + 16, group, "middle"))
        for place, (name, values) in enumerate(series.items()):
            x = middle - 0.4 * space + place * width
            y = axis.place(values[index])
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}"'
                f' height="{HEIGHT - BOTTOM - y:.1f}" fill="{colour(place)}">'
                f'<title>{escape(name)}: {values[index]:.4g}</title></rect>')
    return document(title, parts, series)


def lines(title, unit, label, series, log=False):
    """Lines from 0 up; series: name -> [(x, y), ...]; log: of x."""
    scale = math.log10 if log else float
    points = [point for line in series.values() for point in line]
    axis = Axis(0, max(y for _, y in points))
    low = min(scale(x) for x, _ in points)
    high = max(scale(x) for x, _ in points)

    def across(x):
        share = (scale(x) - low) / ((high - low) or 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    parts = [axis.grid(unit),
             text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 34, label,
                  "middle")]
    marks = (sorted({x for x, _ in points}) if log
             else [low + (high - low) * i / 4 for i in range(5)])
    parts += [text(across(x), HEIGHT - BOTTOM + 16, short(x), "middle")
              for x in marks]
    for place, line in enumerate(series.values()):
        path = " ".join(f"{across(x):.1f},{axis.place(y):.1f}"
                        for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke-width="2"'
                     f' stroke="{colour(place)}"/>')
        if log:
            parts += [f'<circle cx="{across(x):.1f}" cy="{axis.place(y):.1f}"'
                      f' r="3" fill="{colour(place)}"/>' for x, y in line]
    return document(title, parts, series)


class Axis:
    """The vertical one: where a value is, and lines at round ones."""

    def __init__(self, low, high):
        self.step = round_step((high - low or 1) / 5)
        self.low = low
        self.high = self.step * math.ceil((high or 1) / self.step)

    def place(self, value):
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)

    def grid(self, unit):
        parts = [text(LEFT - 68, TOP - 8, unit)]
        for i in range(round((self.high - self.low) / self.step) + 1):
            value = self.low + i * self.step
            y = self.place(value)
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}"'
                         f' y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(text(LEFT - 6, y + 4, short(value), "end"))
        return "\n".join(parts)


def round_step(step):
    """The next larger of 1, 2, 5, 10, ..."""
    power = 10 ** math.floor(math.log10(step))
    return next(power * i for i in (1, 2, 5, 10) if power * i >= step * 0.999)


def short(value):
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def colour(place):
    return COLOURS[place % len(COLOURS)]


def text(x, y, words, anchor="start", size=12):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
            f' font-size="{size}">{escape(str(words))}</text>')


def document(title, parts, names):
    """The whole, with a legend in up to two rows below."""
    legend = []
    per_row = math.ceil(len(names) / (1 if len(names) < 4 else 2))
    for place, name in enumerate(names):
        x = LEFT + place % per_row * (WIDTH - LEFT - RIGHT) / per_row
        y = HEIGHT - 30 + place // per_row * 18
        legend.append(f'<rect x="{x:.1f}" y="{y - 9}" width="10" height="10"'
                      f' fill="{colour(place)}"/>')
        legend.append(text(x + 15, y, name, size=11))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH}'
        f' {HEIGHT}" font-family="sans-serif" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2, 18, title, "middle", 15),
        *parts, *legend, "</svg>", ""])
