#!/usr/bin/env python3
"""Draws what `compare.py` printed: for each case and peer a bar of the peer's time over ours, on a logarithmic scale.

    .venv/bin/python benches/compare.py > rows.jsonl
    python3 benches/plot.py rows.jsonl > pictures/compare.svg

Reads lines of JSON with `case`, `peer`, `ratio` and `ours_ms` from files or standard input; other lines are passed over. It
needs no package.
"""
import fileinput
import json
import math
import sys
from html import escape

COLORS = ["#4a78b5", "#e0883a", "#5a9f5a", "#8a6fb0"]
LEFT, LENGTH, BAR, GAP, RIGHT = 300, 420, 13, 9, 150


def read(lines):
    """Ratios by case and peer, and our times by case."""
    ratios, ours = {}, {}
    for line in lines:
        if line.startswith("{") and {"case", "peer", "ratio", "ours_ms"} <= (row := json.loads(line)).keys():
            ratios.setdefault(row["case"], {})[row["peer"]] = row["ratio"]
            ours[row["case"]] = row["ours_ms"]
    return ratios, ours


def svg(ratios, ours):
    peers = list(dict.fromkeys(peer for found in ratios.values() for peer in found))
    logs = [math.log2(ratio) for found in ratios.values() for ratio in found.values() if ratio > 0]
    low, high = math.floor(min([-1.0, *logs])), math.ceil(max([1.0, *logs]))
    at = lambda log: LEFT + (log - low) / (high - low) * LENGTH
    text = lambda x, y, words, more="": out.append(f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(str(words))}</text>')
    out, y = [], 54
    for i, peer in enumerate(peers):
        out.append(f'<rect x="{LEFT + 130 * i}" y="10" width="11" height="11" fill="{COLORS[i % len(COLORS)]}"/>')
        text(LEFT + 130 * i + 17, 20, f"{peer} / ours")
    for case, found in ratios.items():
        text(LEFT - 10, y + BAR * len(found) / 2 + 4, case, 'text-anchor="end"')
        text(LEFT + LENGTH + 60, y + BAR * len(found) / 2 + 4, f"{ours[case]:.3g} ms", 'fill="#556"')
        for peer, ratio in found.items():
            ends = sorted([at(0), at(math.log2(ratio)) if ratio > 0 else at(low)])
            color = COLORS[peers.index(peer) % len(COLORS)]
            out.append(f'<rect x="{ends[0]:.1f}" y="{y}" width="{max(ends[1] - ends[0], 1):.1f}" height="{BAR - 1}" fill="{color}"/>')
            text(ends[1] + 5, y + 10, f"{ratio:.2f}", 'font-size="10"')
            y += BAR
        y += GAP
    for log in range(low, high + 1):
        color = "#334" if log == 0 else "#ccd"
        out.insert(0, f'<line x1="{at(log):.1f}" x2="{at(log):.1f}" y1="44" y2="{y}" stroke="{color}"/>')
        text(at(log), 40, f"{2.0**log:g}", 'text-anchor="middle" fill="#556" font-size="11"')
    wide = LEFT + LENGTH + RIGHT
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {y + 10}" width="{wide}" height="{y + 10}" font-family="system-ui, sans-serif" font-size="12">'
    title = "<title>times of other programs over ours: bars to the right of 1 are ahead</title>"
    return "\n".join([head, title, '<rect width="100%" height="100%" fill="#fff"/>', *out, "</svg>"])


def main():
    if sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(print(__doc__))
    ratios, ours = read(fileinput.input())
    if not ratios:
        sys.exit("no line has `case`, `peer`, `ratio` and `ours_ms`: see --help")
    print(svg(ratios, ours))


if __name__ == "__main__":
    main()
