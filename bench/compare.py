#!/usr/bin/env python3
"""Ratios from JSON lines of benchmark results (`ms` or `us` a line).

  compare.py FILE               of one run: every implementation's time over --base (default kadence), case by case, and the
                                best of the others; lines without `impl` are compared with their `floor_ms` or `copy_us`;
                                then errors and device memory, where the file has them
  compare.py OLD NEW [--fail R] of two runs: NEW / OLD for every line that both have; exit 1 if one is above R
"""
import argparse
import json
import pathlib
import sys

KEY = ('op', 'case', 'shape', 'state', 'N', 'H', 'D', 'impl', 'backend')


def read(path, others=None):
    """{key: (milliseconds, row)}; of repeated keys the last. Lines of errors and memory go to the list `others`."""
    rows = {}
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as e:
            raise SystemExit(f'{path}:{number}: not JSON: {e}')
        time = row['ms'] if 'ms' in row else row['us'] / 1000 if 'us' in row else None
        if time is None and ('error_out' in row or 'call_mb' in row):
            if others is not None:
                others.append(row)
            continue
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
        peers = [t for i, t in others.items() if i != 'copy']
        print(line + (f'   best peer {min(peers) / own:5.2f}x' if peers else ''))


def figures(rows, base):
    """Errors against float64 (out / state, whole and worst row) and memory, implementation by implementation."""
    cases = {}
    for row in rows:
        cases.setdefault((row['op'], row['case']), {})[row['impl']] = row
    for (op, case), impls in cases.items():
        if op == 'memory':
            print(f'{op} {case:36} ' + '   '.join(f'{i} {r["call_mb"]:.1f} MB' for i, r in impls.items()))
            continue
        line = f'{op} {case:40} ' + '   '.join(
            f'{i} {r["error_out"]:.5f}/{r["error_state"]:.5f} worst row {r["error_out_worst_row"]:.4f}/{r["error_state_worst_row"]:.4f}'
            for i, r in impls.items())
        peer = impls.get('fla')
        if base in impls and peer:
            larger = [k for k in ('error_out', 'error_state', 'error_out_worst_row', 'error_state_worst_row') if impls[base][k] > peer[k]]
            line += '   larger than fla: ' + ', '.join(larger) if larger else ''
        print(line)


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
    others = []
    rows = [read(f, others) for f in args.files]
    if len(rows) == 2:
        return two_runs(*rows, args.fail)
    same_run(rows[0], args.base)
    figures(others, args.base)
    return 0


if __name__ == '__main__':
    sys.exit(main())
