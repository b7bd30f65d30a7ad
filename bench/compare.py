#!/usr/bin/env python3
"""Ratios from JSON lines of benchmark results (`ms` or `us` a line).

  compare.py FILE               of one run: every implementation's time over --base (default kadence), case by case, and the
                                best of the others; lines without `impl` are compared with their `floor_ms` or `copy_us`
  compare.py OLD NEW [--fail R] of two runs: NEW / OLD for every line that both have; exit 1 if one is above R
"""
import argparse
import json
import pathlib
import sys

KEY = ('op', 'case', 'shape', 'state', 'N', 'H', 'D', 'impl', 'backend')


def read(path):
    """{key: (milliseconds, row)}; of repeated keys the last."""
    rows = {}
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as e:
            raise SystemExit(f'{path}:{number}: not JSON: {e}')
        time = row['ms'] if 'ms' in row else row['us'] / 1000 if 'us' in row else None
        if time is None:
            raise SystemExit(f'{path}:{number}: wanted ms or us, got {", ".join(row)}')
        rows[tuple((k, row[k]) for k in KEY if k in row)] = (time, row)
    return rows


def name(key, without=()):
    return ' '.join(f'{k}{v}' if k in ('N', 'H', 'D') else str(v) for k, v in key if k not in without)


def same_run(rows, base):
    cases = {}
    for key, (time, row) in rows.items():
        if 'impl' not in row:
            limit = row.get('floor_ms') or row.get('copy_us', 0) / 1000
            print(f'{name(key):40} {time:9.4f} ms' + (f'   {time / limit:6.2f} of the floor' if limit else ''))
            continue
        cases.setdefault(name(key, ('impl', 'backend')), {})[row['impl']] = (time, row)
    for case, impls in cases.items():
        if base not in impls:
            print(f'{case:40} no {base}')
            continue
        own, row = impls[base]
        others = {i: t for i, (t, _) in impls.items() if i != base}
        line = f'{case:28} {base} {own:9.4f} ms'
        if row.get('floor_ms'):
            line += f' ({own / row["floor_ms"]:5.2f} of the floor)'
        line += ''.join(f'   {i} {t / own:5.2f}x' for i, t in sorted(others.items()))
        print(line + (f'   best peer {min(others.values()) / own:5.2f}x' if others else ''))
    return 0


def two_runs(old, new, limit):
    worst, shared = 0.0, 0
    for key, (time, _) in new.items():
        if key in old:
            ratio = time / old[key][0]
            worst, shared = max(worst, ratio), shared + 1
            print(f'{name(key):48} {old[key][0]:9.4f} -> {time:9.4f} ms   {ratio:5.2f}' + ('   slower' if limit and ratio > limit else ''))
    for key in new.keys() ^ old.keys():
        print(f'{name(key):48} only in the {"new" if key in new else "old"} run')
    if not shared:
        raise SystemExit('the two files have no line in common')
    print(f'worst ratio {worst:.2f} of {shared}')
    return 1 if limit and worst > limit else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('files', nargs='+')
    parser.add_argument('--base', default='kadence')
    parser.add_argument('--fail', type=float)
    args = parser.parse_args()
    if len(args.files) > 2:
        parser.error('one or two files')
    rows = [read(f) for f in args.files]
    return same_run(rows[0], args.base) if len(rows) == 1 else two_runs(*rows, args.fail)


if __name__ == '__main__':
    sys.exit(main())
