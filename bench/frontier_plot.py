"""Draws docs/frontier.svg, tokens per second against GiB, from bench/results/frontier.csv. Python's own library is enough.

    python3 bench/frontier_plot.py            write it
    python3 bench/frontier_plot.py --check    fail unless it is what the figures say
"""
import csv
import itertools
import math
import pathlib
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES, PICTURE = ROOT / "bench/results/frontier.csv", ROOT / "docs/frontier.svg"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 820, 440, 64, 24, 52, 48
GIB, RATES = (7, 70), (25_000, 72_000)
TICKS = (8, 12, 16, 24, 32, 48, 64)
KINDS = {"snug": ("snug", "snug, exact states"), "exact": ("peer exact", "peers, exact states"),
         "bf16 or 8-bit": ("peer less", "peers, states in bf16 or 8 bits"),
         "stochastic rounding": ("peer rounded", "peers, stochastic rounding")}
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 15px; font-weight: 600; }
  .grid { stroke: #d0d7de; stroke-width: 0.6; }
  .back { fill: #ffffff; }
  .snug { stroke: #cf222e; fill: #cf222e; } .exact { stroke: #0969da; fill: #0969da; }
  .less { stroke: #8250df; fill: #8250df; } .rounded { stroke: #1a7f37; fill: #1a7f37; }
  polyline.snug, polyline.peer { fill: none; stroke-width: 2; } polyline.peer { stroke-dasharray: 4 4; }
  text.snug, text.peer { stroke: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .back { fill: #0d1117; } .grid { stroke: #30363d; }
    .snug { stroke: #ff7b72; fill: #ff7b72; } .exact { stroke: #79c0ff; fill: #79c0ff; }
    .less { stroke: #d2a8ff; fill: #d2a8ff; } .rounded { stroke: #7ee787; fill: #7ee787; }
    polyline.snug, polyline.peer { fill: none; }
  }
"""


def place(gib, rate):
    along = (math.log(gib) - math.log(GIB[0])) / (math.log(GIB[1]) - math.log(GIB[0]))
    up = (rate - RATES[0]) / (RATES[1] - RATES[0])
    return round(LEFT + along * (WIDTH - LEFT - RIGHT), 1), round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1)


def axes():
    for gib in TICKS:
        x, bottom = place(gib, RATES[0])
        yield f'<line class="grid" x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}"/>'
        yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{gib}</text>'
    for rate in range(30_000, RATES[1], 10_000):
        x, y = place(GIB[0], rate)
        yield f'<line class="grid" x1="{x}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>'
        yield f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{rate // 1000}k</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">GiB of the GPU that the process takes</text>'
    yield f'<text class="title" x="{LEFT}" y="20">Tokens per second: Llama of 1.26B parameters, 8 x 4096 tokens, one H200</text>'


def kind_of(row):
    return KINDS["snug" if row["who"] == "snug" else row["states"]]


def series(rows):
    for (who, (kind, _)), points in itertools.groupby(rows, lambda row: (row["who"], kind_of(row))):
        at = [place(float(row["gib"]), float(row["tokens_per_second"])) for row in points]
        if len(at) > 1:
            yield f'<polyline class="{kind}" points="{" ".join(f"{x},{y}" for x, y in at)}"/>'
        yield from (f'<circle class="{kind}" cx="{x}" cy="{y}" r="4"/>' for x, y in at)
        x, y = at[-1]
        near_edge = x > WIDTH - 150
        yield (f'<text class="{kind}" x="{x - 8 if near_edge else x + 8}" y="{y + 17}"'
               f' text-anchor="{"end" if near_edge else "start"}">{escape(who)}</text>')


def legend():
    x = LEFT
    for kind, text in KINDS.values():
        yield f'<circle class="{kind}" cx="{x + 5}" cy="36" r="4"/><text x="{x + 14}" y="40">{escape(text)}</text>'
        x += 28 + 6.2 * len(text)


def drawn():
    with open(FIGURES, newline="") as file:
        rows = list(csv.DictReader(file))
    body = "\n".join(itertools.chain(axes(), series(rows), legend()))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n<style>{STYLE}</style>\n'
            f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>\n{body}\n</svg>\n')


def main():
    if sys.argv[1:] == ["--check"]:
        if not PICTURE.exists() or PICTURE.read_text() != drawn():
            sys.exit(f"{PICTURE.relative_to(ROOT)} is not what {FIGURES.relative_to(ROOT)} says: run python3 bench/frontier_plot.py")
    else:
        PICTURE.write_text(drawn())


if __name__ == "__main__":
    main()
