#!/usr/bin/env python3
"""Checks the documents against the tree: every path, make target, test name and command-line flag in them must exist.

  tests      `Suite.Name`: a TEST(Suite, Name) somewhere in the sources
  paths      `dir/file.ext` or [text](path) in Markdown: relative to the repository root or to the document
  targets    `make NAME`
  flags      `kadence SUB ... --flag`: --flag must be in `kadence SUB --help` (needs --binary)
  run        a fenced block opened with ```sh run is executed from the root with the binary's folder first in PATH
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXTENSIONS = 'h|cc|cu|cuh|cmake|md|py|sh|json|txt|jsonl|svg|png|patch|yml'


def documents():
    files = subprocess.run(['git', '-C', str(ROOT), 'ls-files', '--cached', '--others', '--exclude-standard', '*.md'], capture_output=True, text=True)
    names = files.stdout.split() if files.returncode == 0 else [p.relative_to(ROOT).as_posix() for p in ROOT.rglob('*.md') if 'build' not in p.parts]
    return [ROOT / n for n in names if not n.startswith('models/') and (ROOT / n).exists()]


def exists(document, name):
    name = name.split('#')[0].rstrip('/')
    return not name or (ROOT / name).exists() or (document.parent / name).exists() or any(c in name for c in '*<>{}$')


def check_paths(document, text):
    for name in re.findall(r'\]\(([^)\s]+)\)', text):
        if not re.match(r'[a-z]+:', name) and not exists(document, name):
            yield f'link to {name}, which does not exist'
    for code in re.findall(r'`([^`\n]+)`', text):
        if re.fullmatch(rf'[\w.\-/]+/[\w.\-]*\.({EXTENSIONS})|[\w.\-]+(/[\w.\-]+)+/', code) and not code.startswith(('build/', '/', '~')):
            if not exists(document, code):
                yield f'`{code}`, which does not exist'


def test_names():
    names = set()
    for path in ROOT.rglob('*.cc'):
        if 'build' not in path.parts:
            names.update('.'.join(m) for m in re.findall(r'^(?:TYPED_)?TEST(?:_F|_P)?\((\w+),\s*(\w+)\)', path.read_text(errors='replace'), re.M))
    return names


def check_tests(text, names):
    for name in re.findall(r'`([A-Z]\w+\.[A-Z]\w+)`', text):
        if name not in names:
            yield f'`{name}`, a test that does not exist'


def check_targets(text):
    makefile = (ROOT / 'Makefile').read_text()
    targets = set(re.findall(r'^([a-z]+):', makefile, re.M))
    for name in re.findall(r'`make ([a-z]+)', text) + re.findall(r'^make ([a-z]+)', text, re.M):
        if name not in targets:
            yield f'`make {name}`, which the Makefile lacks'


def check_flags(text, binary, cache):
    joined = re.sub(r'\\\n\s*', ' ', text)
    for line in re.findall(r'(?:^|`|/)kadence ((?:info|generate|score|check|plan|bench|serve|chat)\b[^`\n|>]*)', joined, re.M):
        words = line.split()
        sub = [words[0]]
        if len(words) > 1 and words[0] in ('check', 'bench') and re.fullmatch(r'[a-z\-]+', words[1]):
            sub.append(words[1])
        key = tuple(sub)
        if key not in cache:
            done = subprocess.run([binary, *sub, '--help'], capture_output=True, text=True)
            cache[key] = done.stdout + done.stderr if done.returncode == 0 else ''
        if not cache[key]:
            yield f'`kadence {" ".join(sub)}`, which has no --help'
        for flag in re.findall(r'(?<![\w-])(--[a-z][a-z0-9\-]*)', line):
            if flag not in cache[key]:
                yield f'`kadence {" ".join(sub)} {flag}`: no such flag'


def run_blocks(text, binary):
    for block in re.findall(r'^```sh run\n(.*?)^```', text, re.M | re.S):
        env = dict(os.environ)
        if binary:
            env['PATH'] = f'{pathlib.Path(binary).resolve().parent}:{env["PATH"]}'
        done = subprocess.run(['bash', '-euo', 'pipefail', '-c', block], cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            yield f'block failed with status {done.returncode}:\n{block}\n{done.stdout[-1500:]}{done.stderr[-1500:]}'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--binary', help='the kadence binary, for flags and run blocks')
    args = parser.parse_args()
    errors, cache, checked, names = [], {}, documents(), test_names()
    for document in checked:
        text = document.read_text()
        found = [*check_paths(document, text), *check_targets(text), *check_tests(text, names)]
        if args.binary:
            found += [*check_flags(text, args.binary, cache), *run_blocks(text, args.binary)]
        errors += [f'{document.relative_to(ROOT)}: {e}' for e in found]
    print('\n'.join(errors) if errors else f'{len(checked)} documents agree with the tree')
    return 1 if errors or not checked else 0


if __name__ == '__main__':
    sys.exit(main())
