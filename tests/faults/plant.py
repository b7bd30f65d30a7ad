#!/usr/bin/env python3
"""Plants a known kind of fault in a copy of the tree and expects the test named after it to go red.

Each KIND.patch is a unified diff against the product's sources; its first line says what must fail:
    # test: <ctest target> --gtest_filter=<filter>
plant.py KIND ...     plant these, one after the other, in build/faults/tree
plant.py --all        plant all
plant.py --dry-run    only check that every patch applies (part of the normal tests)
For each kind the test is first seen to pass without the fault.
"""
import argparse
import filecmp
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / 'build/faults'
SKIP = {'build', '.git', '.venv', 'docs'}


def command_of(patch):
    found = re.match(r'# test: (\S+)( .*)?$', patch.read_text().splitlines()[0])
    if not found:
        raise SystemExit(f'{patch.name}: the first line must be "# test: <target> [arguments]"')
    return found.group(1), (found.group(2) or '').split()


def apply(patch, tree, *options):
    return subprocess.run(['patch', '-p1', '-s', '-f', *options, '-d', str(tree), '-i', str(patch)], capture_output=True, text=True, errors='replace')


def copy_tree():
    """Makes the copy equal to this tree. Only what differs is written, and is new then: what an interrupted run had planted is rebuilt."""
    tree = WORK / 'tree'
    wanted = {path.relative_to(ROOT) for entry in ROOT.iterdir() if entry.name not in SKIP
              for path in ([entry] if entry.is_file() else entry.rglob('*')) if path.is_file() and '__pycache__' not in path.parts}
    for path in [p for p in tree.rglob('*') if p.is_file() and p.relative_to(tree) not in wanted]:
        path.unlink()
    for name in sorted(wanted):
        source, target = ROOT / name, tree / name
        if not target.exists() or not filecmp.cmp(source, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return tree


def build_and_run(tree, target, arguments, jobs):
    done = subprocess.run(['cmake', '--build', str(WORK / 'build'), '-j', str(jobs), '--target', target], capture_output=True, text=True, errors='replace')
    if done.returncode:
        return 'does not build', done.stdout[-3000:] + done.stderr[-3000:]
    binary = next(p for p in (WORK / 'build').rglob(target) if p.is_file())
    try:
        done = subprocess.run([str(binary), *arguments], capture_output=True, text=True, errors='replace', timeout=600, cwd=tree)
    except subprocess.TimeoutExpired:
        return 'red', 'time ran out'
    ran = re.search(r'Running (\d+) tests?', done.stdout)
    if not ran or int(ran.group(1)) == 0:
        return 'no such test', done.stdout[-2000:]
    return ('green' if done.returncode == 0 else 'red'), done.stdout[-2000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('kinds', nargs='*')
    parser.add_argument('--all', action='store_true')
    parser.add_argument('--dry-run', action='store_true')
    parser.add_argument('--jobs', type=int, default=2)
    args = parser.parse_args()
    patches = sorted(HERE.glob('*.patch'))
    if args.kinds:
        patches = [HERE / f'{kind}.patch' for kind in args.kinds]
        missing = [p.name for p in patches if not p.exists()]
        if missing:
            raise SystemExit(f'no such fault: {", ".join(missing)}; there are: {", ".join(p.stem for p in sorted(HERE.glob("*.patch")))}')
    elif not (args.all or args.dry_run):
        parser.error('name a kind, or --all, or --dry-run')
    bad = []
    if args.dry_run:
        for patch in patches:
            command_of(patch)
            done = apply(patch, ROOT, '--dry-run')
            if done.returncode:
                bad.append(patch.stem)
                print(f'{patch.name} does not apply:\n{done.stdout}{done.stderr}')
        print(f'{len(patches)} faults, {len(bad)} do not apply')
        return 1 if bad or not patches else 0
    tree = copy_tree()
    subprocess.run(['cmake', '-S', str(tree), '-B', str(WORK / 'build'), '-G', 'Ninja', '-DCMAKE_BUILD_TYPE=RelWithDebInfo', '-DKADENCE_DEBUG_CHECKS=ON',
                    '-DKADENCE_BUILD_BENCH=OFF'], check=True, stdout=subprocess.DEVNULL)
    for patch in patches:
        target, arguments = command_of(patch)
        before, log = build_and_run(tree, target, arguments, args.jobs)
        if before == 'green':
            done = apply(patch, tree)
            if done.returncode:
                after, log = 'does not apply', done.stdout
            else:
                try:
                    after, log = build_and_run(tree, target, arguments, args.jobs)
                finally:
                    apply(patch, tree, '-R')
        else:
            after = f'not planted: the test is {before} without it'
        verdict = 'ok' if after == 'red' else 'BAD'
        print(f'{patch.stem:<10} {target:<24} {" ".join(arguments):<60} {after:<16} {verdict}', flush=True)
        if verdict == 'BAD':
            bad.append(patch.stem)
            print(log)
    print(f'{len(patches) - len(bad)} passed, {len(bad)} failed')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
