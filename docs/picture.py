#!/usr/bin/env python3
"""Draws docs/benchmarks.svg from the table "At a glance" of docs/benchmarks.md.

Each row is a case, a peer and a ratio; above 1 Tollgate is faster. The scale is logarithmic, so that
twice as fast and half as fast are bars of one length. Needs Python 3 and nothing else: `make picture`.
"""

import math
import pathlib
from xml.sax.saxutils import escape

HERE = pathlib.Path(__file__).resolve().parent
ROW, TOP, LABEL, WIDTH, MARGIN = 26, 76, 560, 1000, 48

STYLE = """
  text { font-family: Helvetica, Arial, sans-serif; font-size: 13px; fill: #1f2328 }
  .head { font-size: 17px; font-weight: 600 }
  .soft { fill: #59636e }
  .grid { stroke: #d1d9e0 }
  .one { stroke: #59636e; stroke-width: 1.5 }
  .win { fill: #1a7f64 }
  .lose { fill: #bc4c00 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .soft { fill: #9198a1 }
    .grid { stroke: #3d444d }
    .one { stroke: #9198a1 }
    .win { fill: #3fb68b }
    .lose { fill: #f0883e }
  }
"""


def rows():
    page = (HERE / "benchmarks.md").read_text(encoding="utf-8")
    table = page.split("<!-- picture: begin -->")[1].split("<!-- picture: end -->")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    ]
    return [(case, peer, ratio) for case, peer, ratio in cells[2:]]


def draw(cases):
    ratios = [float(ratio) for _, _, ratio in cases]
    low, high = math.log(min(ratios) * 0.65), math.log(max(ratios) * 1.1)
    height = TOP + ROW * len(cases) + 34
    end = TOP + ROW * len(cases)

    def x(ratio):
        share = (math.log(ratio) - low) / (high - low)
        return round(LABEL + share * (WIDTH - LABEL - MARGIN), 1)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-labelledby="title note">',
        f"<style>{STYLE}</style>",
        '<text id="title" class="head" x="16" y="28">Speed of Tollgate relative to its peers</text>',
        '<text id="note" class="soft" x="16" y="50">Above 1, Tollgate is faster. Each pair in one run, '
        "on two cores; logarithmic scale.</text>",
    ]
    for mark in (0.25, 0.5, 1, 2, 5, 10, 20, 50):
        if low <= math.log(mark) <= high:
            kind = "one" if mark == 1 else "grid"
            at = x(mark)
            out.append(f'<line class="{kind}" x1="{at}" x2="{at}" y1="{TOP - 8}" y2="{end + 4}"/>')
            out.append(f'<text class="soft" x="{at}" y="{end + 22}" text-anchor="middle">{mark:g}</text>')
    for number, (case, peer, ratio) in enumerate(cases):
        y = TOP + ROW * number
        here, one = x(float(ratio)), x(1)
        left, length = min(here, one), max(abs(here - one), 2)
        kind = "win" if float(ratio) >= 1 else "lose"
        out.append(
            f'<text x="{LABEL - 12}" y="{y + 15}" text-anchor="end">{escape(case)} '
            f'<tspan class="soft">vs {escape(peer)}</tspan></text>'
        )
        out.append(f'<rect class="{kind}" x="{left:g}" y="{y + 3}" width="{length:.1f}" height="16" rx="2"/>')
        anchor, at = ("start", here + 6) if float(ratio) >= 1 else ("end", here - 6)
        out.append(f'<text x="{at:g}" y="{y + 15}" text-anchor="{anchor}">{escape(ratio)}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    (HERE / "benchmarks.svg").write_text(draw(rows()), encoding="utf-8")
    print("wrote docs/benchmarks.svg")
