#!/usr/bin/env python3
"""Checks every #include of the project's own headers against the module table (cmake/modules.txt).

A file in module A may include headers of A and of the modules in A's row. Some modules may not use some third-party
headers either. Tests, benchmarks and examples may include anything public. Library code may not print, exit or abort.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# module -> third-party include prefixes that it may use; a module that is not listed may use any.
THIRD_PARTY = {
    'base': (),
    'prefix': (),
    'state': (),
    'device': ('omp.h', 'cuda', 'unistd.h', 'sys/'),
    'ops': ('hwy/', 'dnnl', 'oneapi/', 'cuda', 'omp.h', 'sys/', 'mma.h', 'cooperative_groups', 'immintrin.h', 'xmmintrin.h'),
    'engine': (),
}
PROGRAM = ('apps',)  # the only module that talks to a terminal and decides how a process ends
PRINTS_OR_ENDS = re.compile(r'std::(cout|cerr|clog|abort|exit|quick_exit|terminate)\b|(?<![\w.:>])(?<!void )(f?printf|puts|abort|_?exit|_Exit|quick_exit)\s*\(|\bassert\s*\(')
FREE = ('tests', 'bench', 'examples')
SUFFIXES = ('.h', '.cc', '.cu', '.cuh')


def read_table():
    table = {}
    for line in (ROOT / 'cmake/modules.txt').read_text().splitlines():
        if line and not line.startswith('#'):
            name, deps = line.split(':')
            table[name] = set(deps.split())
    return table


def is_test(path):
    return path.stem.endswith('_test') or 'testing' in path.parts or path.stem.endswith('_testing')


def std_headers(name):
    return '/' not in name and '.' not in name


def check(table):
    errors = []
    for module in table:
        for path in sorted((ROOT / module).rglob('*')):
            if path.suffix not in SUFFIXES:
                continue
            for number, line in enumerate(path.read_text(errors='replace').splitlines(), 1):
                ends = PRINTS_OR_ENDS.search(line.split('//')[0])
                if ends and module not in PROGRAM and not is_test(path):
                    errors.append(f'{path.relative_to(ROOT)}:{number}: library code may not print, exit or abort: {ends.group(0)}')
                found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
                if not found:
                    continue
                quoted, name = found.group(1) == '"', found.group(2)
                where = f'{path.relative_to(ROOT)}:{number}'
                target = name.split('/')[0]
                if target in table and '/' in name:
                    if target != module and target not in table[module] and not is_test(path):
                        errors.append(f'{where}: module {module} may not include {name} (its row allows: {" ".join(sorted(table[module])) or "nothing"})')
                    if not (ROOT / name).exists():
                        errors.append(f'{where}: {name} does not exist')
                elif quoted and not (path.parent / name).exists() and 'hwy' not in name:
                    errors.append(f'{where}: {name} is not a header of a module (include with the module path)')
                elif not quoted and not std_headers(name) and module in THIRD_PARTY and not is_test(path):
                    if not name.startswith(THIRD_PARTY[module]):
                        errors.append(f'{where}: module {module} may not use <{name}>')
    for folder in (ROOT / p for p in FREE):
        for path in folder.rglob('*') if folder.exists() else ():
            if path.suffix in SUFFIXES:
                for name in re.findall(r'#\s*include\s*"([^"]+)"', path.read_text(errors='replace')):
                    if name.split('/')[0] in table and not (ROOT / name).exists():
                        errors.append(f'{path.relative_to(ROOT)}: {name} does not exist')
    return errors


def check_acyclic(table):
    done, seen = set(), []

    def visit(name):
        if name in done:
            return
        if name in seen:
            raise SystemExit(f'modules.txt has a cycle: {" -> ".join(seen + [name])}')
        seen.append(name)
        for dep in sorted(table[name]):
            visit(dep)
        seen.pop()
        done.add(name)

    for name in table:
        visit(name)


def main():
    table = read_table()
    check_acyclic(table)
    errors = check(table)
    print('\n'.join(errors) if errors else f'{len(table)} modules, no include crosses a boundary')
    return 1 if errors else 0


if __name__ == '__main__':
    sys.exit(main())
