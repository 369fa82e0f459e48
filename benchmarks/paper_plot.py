# SPDX-License-Identifier: Apache-2.0
"""Plain SVG: lines over a few named points, groups of bars, or rates second by second."""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 130, 34, 44  # of the picture, beside its plot
COLOURS = {"pin": "#777777", "odp": "#ee6677", "rpc": "#ccbb44", "term": "#4477aa", "rpc_buffer": "#66ccee",
           "rpc_direct": "#aa3377", "rpc_tiering": "#88ccaa", "+hotspot": "#228833", "p50": "#4477aa", "p99": "#ee6677"}
FONT = 'font-family="sans-serif" font-size="11" fill="#333"'
MARK_RADIUS = 3


def short(value):
    """1200000 as 1.2M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


class Scale:
    """A value's height; its `ticks` are round numbers."""

    def __init__(self, values, logarithmic):
        values = [value for value in values if value > 0] or [1]
        self.logarithmic = logarithmic
        if logarithmic:
            low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
            self.low, self.high = low, max(high, low + 1)
            self.ticks = [10.0**exponent for exponent in range(self.low, self.high + 1)]
        else:
            step = 10.0**math.floor(math.log10(max(values)))
            step = next(step / part for part in (5, 2, 1) if max(values) / (step / part) <= 6 or part == 1)
            count = math.ceil(max(values) / step)
            self.low, self.high = 0, count * step
            self.ticks = [step * i for i in range(count + 1)]

    def y(self, value):
        if self.logarithmic:
            value = math.log10(value) if value > 0 else self.low
        part = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - min(max(part, 0), 1) * (HEIGHT - TOP - BOTTOM)


def text(x, y, words, anchor="middle"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {FONT}>{escape(str(words))}</text>'


def line(x1, y1, x2, y2, colour="#ddd", dashes=""):
    dashes = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashes}/>'


def path(places, colour):
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def frame(title, x_title, y_title, scale, names):
    """All but the data: title, grid, axes, and a legend of the series' names."""
    right = WIDTH - RIGHT
    parts = [text(LEFT, 18, title, "start"), text((LEFT + right) / 2, HEIGHT - 8, x_title)]
    for tick in scale.ticks:
        y = scale.y(tick)
        parts += [line(LEFT, y, right, y), text(LEFT - 6, y + 4, short(tick), "end")]
    parts.append(f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.1f}) rotate(-90)" '
                 f'text-anchor="middle" {FONT}>{escape(y_title)}</text>')
    for i, name in enumerate(names):
        y = TOP + 8 + 18 * i
        parts += [f'<rect x="{right + 14}" y="{y - 5}" width="12" height="6" fill="{COLOURS[name]}"/>',
                  text(right + 32, y + 2, name, "start")]
    return parts


def document(parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *parts, "</svg>", ""])


def lines(title, x_title, y_title, labels, series, joined=True):
    """`series`: {name: [value or None for each label]}; logarithmic upwards. Names are those of COLOURS. What follows a
    comma in a label goes below it."""
    scale = Scale([value for values in series.values() for value in values if value], logarithmic=True)
    parts = frame(title, x_title, y_title, scale, series)
    step = (WIDTH - LEFT - RIGHT) / len(labels)
    places = [LEFT + step * (i + 0.5) for i in range(len(labels))]
    for x, label in zip(places, labels):
        parts += [text(x, HEIGHT - BOTTOM + 13 * i, part) for i, part in enumerate(label.split(", "), 1)]
    for name, values in series.items():
        colour = COLOURS[name]
        points = [(x, scale.y(value)) for x, value in zip(places, values) if value]
        if joined:
            parts.append(path(points, colour))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{MARK_RADIUS}" fill="{colour}"/>' for x, y in points]
    return document(parts)


def bars(title, x_title, y_title, labels, series):
    """Like lines(), a group of bars for each label, from zero."""
    scale = Scale([value for values in series.values() for value in values if value], logarithmic=False)
    parts = frame(title, x_title, y_title, scale, series)
    step = (WIDTH - LEFT - RIGHT) / len(labels)
    width = step * 0.8 / len(series)
    for group, label in enumerate(labels):
        begin = LEFT + step * (group + 0.1)
        parts.append(text(LEFT + step * (group + 0.5), HEIGHT - BOTTOM + 16, label))
        for i, (name, values) in enumerate(series.items()):
            y = scale.y(values[group] or 0)
            parts.append(f'<rect x="{begin + width * i:.1f}" y="{y:.1f}" width="{width * 0.9:.1f}" '
                         f'height="{HEIGHT - BOTTOM - y:.1f}" fill="{COLOURS[name]}"/>')
    return document(parts)


def seconds(title, y_title, series, begin, event):
    """`series`: {name: [value of each second]}, drawn from second `begin` on; a dashed line at second `event`."""
    scale = Scale([value for values in series.values() for value in values[begin:]], logarithmic=True)
    parts = frame(title, "second", y_title, scale, series)
    last = max([len(values) for values in series.values()] + [begin + 2])
    step = (WIDTH - LEFT - RIGHT) / (last - begin)

    def x(second):
        return LEFT + step * (second - begin)

    marks = max(1, (last - begin) // 8)
    parts += [text(x(second), HEIGHT - BOTTOM + 16, second) for second in range(begin, last + 1, marks)]
    parts.append(line(x(event), TOP, x(event), HEIGHT - BOTTOM, "#999", "4 3"))
    for name, values in series.items():
        places = [(x(second + 0.5), scale.y(values[second])) for second in range(begin, len(values))]
        parts.append(path(places, COLOURS[name]))
    return document(parts)
