#!/usr/bin/env python3
"""Each .cc here must NOT compile, and must fail for the reason on its first line: // expect: REGEX.

usage: run.py COMPILER. With // include: MODULE on a line, the file sees only what that module may see, through the same link
directories as the build (argument BUILD_DIR).
"""
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def main():
    compiler, build = sys.argv[1], pathlib.Path(sys.argv[2])
    rows = {}
    for line in (ROOT / 'cmake/modules.txt').read_text().splitlines():
        if line and line[0] != '#':
            name, deps = line.split(':')
            rows[name] = deps.split()
    bad = 0
    files = sorted(HERE.glob('*.cc'))
    for path in files:
        text = path.read_text()
        expect = re.match(r'// expect: (.*)', text).group(1)
        module = re.search(r'^// module: (\w+)', text, re.M)
        seen = [module.group(1), *rows[module.group(1)]] if module else list(rows)
        flags = [f'-I{build}/include/{m}' for m in seen]
        done = subprocess.run([compiler, '-std=c++20', '-fsyntax-only', *flags, str(path)], capture_output=True, text=True)
        if done.returncode == 0:
            print(f'{path.name}: compiled, but must not')
        elif not re.search(expect, done.stderr):
            print(f'{path.name}: failed for another reason than "{expect}":\n{done.stderr}')
        else:
            # The same file without the lines marked BAD must compile, or it proves nothing.
            good = '\n'.join(line for line in text.splitlines() if '// BAD' not in line) + '\n'
            again = subprocess.run([compiler, '-std=c++20', '-fsyntax-only', *flags, '-x', 'c++', '-'], input=good, capture_output=True, text=True)
            if again.returncode == 0:
                continue
            print(f'{path.name}: does not compile even without its BAD lines:\n{again.stderr}')
        bad += 1
    print(f'{len(files)} compile-fail cases, {bad} bad')
    return 1 if bad or not files else 0


if __name__ == '__main__':
    sys.exit(main())
