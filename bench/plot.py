#!/usr/bin/env python3
"""Time over the memory floor by shape, as an SVG that reads on light and on dark pages.

  plot.py PEERS.jsonl [OUT.svg]     of the extend lines of peers.py; default docs/figures/h200_extend.svg

A row a shape, a dot an implementation on a logarithmic axis: 1 is the time in which the device copies the call's compulsory
bytes. The figure at the right is best peer / Kadence.
"""
import argparse
import json
import math
import pathlib
from xml.sax.saxutils import escape

COLOURS = {'kadence': '#e4572e', 'fla': '#4c78a8', 'flash_kda': '#54a24b', 'flashinfer': '#b279a2'}
NAMES = {'kadence': 'Kadence', 'fla': 'flash-linear-attention', 'flash_kda': 'FlashKDA', 'flashinfer': 'FlashInfer'}
STYLE = '''
  text { font: 12px system-ui, sans-serif; fill: #333 }
  .small { font-size: 11px; fill: #666 }
  .grid { stroke: #ddd } .floor { stroke: #999 } .span { stroke: #bbb; stroke-width: 3 }
  @media (prefers-color-scheme: dark) { text { fill: #ddd } .small { fill: #aaa } .grid { stroke: #444 } .floor { stroke: #888 } .span { stroke: #666 } }
'''
ROW, TOP, LEFT, WIDTH, RIGHT = 24, 66, 165, 520, 70


def read(path):
    """{case: {implementation: row}} in the order of the file."""
    cases = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row['op'] == 'extend':
            cases.setdefault(row['case'], {})[row['impl']] = row
    return {case: rows for case, rows in cases.items() if 'kadence' in rows}


def svg(cases):
    top = max(row['ms'] / row['floor_ms'] for rows in cases.values() for row in rows.values())
    decades = math.ceil(math.log2(top))
    bottom = TOP + ROW * len(cases)

    def x(ratio):
        return LEFT + WIDTH * math.log2(max(ratio, 1)) / decades

    one = next(iter(next(iter(cases.values())).values()))
    impls = [i for i in COLOURS if any(i in rows for rows in cases.values())]
    parts = [f'<text x="8" y="18">Prefill: time over the memory floor, {escape(one["machine"])}, one run (lower is better)</text>']
    at = 8
    for i in impls:
        version = one['versions'].get({'fla': 'fla-core'}.get(i, i), '')
        label = NAMES[i] + (f' {version}' if i != 'kadence' and version else '')
        parts.append(f'<circle cx="{at + 5}" cy="36" r="5" fill="{COLOURS[i]}"/><text x="{at + 15}" y="40">{escape(label)}</text>')
        at += 30 + 7 * len(label)
    for power in range(decades + 1):
        kind = 'floor' if power == 0 else 'grid'
        parts.append(f'<line class="{kind}" x1="{x(2**power):.1f}" x2="{x(2**power):.1f}" y1="{TOP - 8}" y2="{bottom}"/>'
                     f'<text class="small" x="{x(2**power):.1f}" y="{TOP - 12}" text-anchor="middle">{2**power}</text>')
    for n, (case, rows) in enumerate(cases.items()):
        y = TOP + ROW * n + ROW / 2
        ratios = {i: row['ms'] / row['floor_ms'] for i, row in rows.items()}
        parts.append(f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(case)}</text>'
                     f'<line class="span" x1="{x(min(ratios.values())):.1f}" x2="{x(max(ratios.values())):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        for i, ratio in ratios.items():
            parts.append(f'<circle cx="{x(ratio):.1f}" cy="{y:.1f}" r="5" fill="{COLOURS[i]}">'
                         f'<title>{escape(NAMES[i])}: {rows[i]["ms"]:.3f} ms, {ratio:.1f} floors</title></circle>')
        others = [r for i, r in ratios.items() if i != 'kadence']
        if others:
            parts.append(f'<text x="{LEFT + WIDTH + 12}" y="{y + 4:.1f}">{min(others) / ratios["kadence"]:.1f}x</text>')
    width, height = LEFT + WIDTH + RIGHT, bottom + 14
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">\n'
            f'<title>Prefill time over the memory floor by shape</title>\n<style>{STYLE}</style>\n' + '\n'.join(parts) + '\n</svg>\n')


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('results', type=pathlib.Path)
    parser.add_argument('out', type=pathlib.Path, nargs='?', default=root / 'docs/figures/h200_extend.svg')
    args = parser.parse_args()
    cases = read(args.results)
    if not cases:
        raise SystemExit(f'{args.results}: no extend lines of Kadence')
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(svg(cases))
    print(f'{args.out}: {len(cases)} shapes')


if __name__ == '__main__':
    main()
