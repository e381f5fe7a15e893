#!/usr/bin/env python3
"""Draws decode steps over the number of sequences, a line for each length of context, from reports of `llmc bench --output`:
milliseconds a step beside the time that its bytes take (dashed), and tokens a second. An SVG for each model.

usage: curves.py REPORT.json... --out=FOLDER      writes FOLDER/decode-NAME.svg, NAME being that of the report
"""
import json
import math
import os
import sys

WIDTH, HEIGHT, GAP = 470, 380, 70  # of a panel, and beside it
LEFT, TOP, BOTTOM = 64, 66, 52
COLORS = ["#1b6ca8", "#c8553d", "#3a7d44", "#7b4fa0", "#b8860b", "#4a4a4a"]


def ticks(low, high):
    """1, 2 and 5 times powers of ten within the range; in a short one all multiples."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    within = lambda multiples: [m * 10.0**e for e in powers for m in multiples if low <= m * 10.0**e <= high]
    few = within((1, 2, 5))
    return few if len(few) > 3 else within(range(1, 10))


class Panel:
    """Axes with logarithmic scales."""

    def __init__(self, left, title, unit, batches, values):
        self.left, self.title, self.unit, self.batches = left, title, unit, batches
        self.low, self.high = min(values) / 1.25, max(values) * 1.25

    def x(self, batch):
        first, last = math.log2(self.batches[0]), math.log2(self.batches[-1])
        return self.left + WIDTH * (math.log2(batch) - first) / max(last - first, 1)

    def y(self, value):
        return TOP + HEIGHT * (1 - math.log(value / self.low) / math.log(self.high / self.low))

    def axes(self):
        out = [f'<text x="{self.left}" y="{TOP - 14}" class="title">{self.title}</text>',
               f'<rect x="{self.left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>']
        for batch in self.batches:
            x = self.x(batch)
            out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + HEIGHT}" stroke="#eee"/>')
            out.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{batch}</text>')
        for value in ticks(self.low, self.high):
            y = self.y(value)
            out.append(f'<line x1="{self.left}" y1="{y:.1f}" x2="{self.left + WIDTH}" y2="{y:.1f}" stroke="#eee"/>')
            out.append(f'<text x="{self.left - 7}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>')
        middle = self.left + WIDTH / 2
        out.append(f'<text x="{middle}" y="{TOP + HEIGHT + 38}" text-anchor="middle">sequences; {self.unit}</text>')
        return out

    def line(self, points, color, dashed=False):
        path = " ".join(f"{self.x(batch):.1f},{self.y(value):.1f}" for batch, value in points)
        dash = ' stroke-dasharray="3 4" opacity="0.7"' if dashed else ' stroke-width="2"'
        dots = [] if dashed else [f'<circle cx="{self.x(b):.1f}" cy="{self.y(v):.1f}" r="2.5" fill="{color}"/>'
                                  for b, v in points]
        return [f'<polyline points="{path}" fill="none" stroke="{color}"{dash}/>'] + dots


def draw(name, report):
    rows = [row for row in report["decode"] if "median_us" in row]
    if not rows:
        sys.exit(f"curves.py: the report of {name} has no decode steps")
    contexts = sorted({row["context"] for row in rows})
    batches = sorted({row["batch"] for row in rows})
    rate = lambda row: row["batch"] / row["median_us"] * 1e6
    times = [row[key] / 1000 for row in rows for key in ("median_us", "floor_us")]
    panels = [Panel(LEFT, "Milliseconds a decode step", "dashed: its bytes at the measured bandwidth", batches, times),
              Panel(LEFT + WIDTH + GAP, "Tokens a second", "without sampling", batches, [rate(row) for row in rows])]
    body = panels[0].axes() + panels[1].axes()
    for i, context in enumerate(contexts):
        color = COLORS[i % len(COLORS)]
        of = sorted((row for row in rows if row["context"] == context), key=lambda row: row["batch"])
        body += panels[0].line([(row["batch"], row["floor_us"] / 1000) for row in of], color, dashed=True)
        body += panels[0].line([(row["batch"], row["median_us"] / 1000) for row in of], color)
        body += panels[1].line([(row["batch"], rate(row)) for row in of], color)
        x, y = panels[1].left + 12, TOP + 20 + 17 * i
        body.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" stroke="{color}" stroke-width="2"/>')
        body.append(f'<text x="{x + 28}" y="{y}">{context:,} tokens of context</text>')
    width, height = LEFT + 2 * WIDTH + GAP + 24, TOP + HEIGHT + BOTTOM
    head = f'{name}, {report["gpu"]}, {report["date"]}, random weights'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                      f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#222">',
                      '<style>.title { font-weight: bold; font-size: 13px }</style>',
                      f'<rect width="{width}" height="{height}" fill="white"/>',
                      f'<text x="{LEFT}" y="26" font-size="16">{head}</text>', *body, "</svg>", ""])


def main():
    reports = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    out = [argument[6:] for argument in sys.argv[1:] if argument.startswith("--out=")]
    if not reports or len(out) != 1 or len(sys.argv) != len(reports) + 2:
        sys.exit(__doc__)
    for path in reports:
        name = os.path.splitext(os.path.basename(path))[0]
        with open(path) as file:
            report = json.load(file)
        target = os.path.join(out[0], f"decode-{name}.svg")
        with open(target, "w") as file:
            file.write(draw(name, report))
        print(target)


main()
