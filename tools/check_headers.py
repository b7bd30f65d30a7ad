#!/usr/bin/env python3
"""Compiles every public header alone, twice included: usage check_headers.py COMPILER JOBS [-- FLAGS]."""
import concurrent.futures
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def compile_alone(args):
    compiler, flags, header = args
    text = f'#include "{header}"\n#include "{header}"\n'
    done = subprocess.run([compiler, '-std=c++20', '-fsyntax-only', '-Wall', '-Wextra', '-Werror', f'-I{ROOT}', *flags, '-x', 'c++', '-'],
                          input=text, text=True, capture_output=True)
    return header, done.returncode, done.stderr


def main():
    compiler, jobs = sys.argv[1], int(sys.argv[2])
    flags = sys.argv[4:]
    modules = [line.split(':')[0] for line in (ROOT / 'cmake/modules.txt').read_text().splitlines() if line and line[0] != '#']
    headers = []
    for module in modules:
        for path in sorted((ROOT / module).rglob('*.h')):
            name = path.relative_to(ROOT).as_posix()
            if not name.endswith('-inl.h') and '/cuda/' not in name and not name.startswith('python/'):
                headers.append(name)
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for header, status, err in pool.map(compile_alone, [(compiler, flags, h) for h in headers]):
            if status:
                bad += 1
                print(f'{header} does not compile alone:\n{err}')
    print(f'{len(headers)} headers, {bad} bad')
    return 1 if bad or not headers else 0


if __name__ == '__main__':
    sys.exit(main())
