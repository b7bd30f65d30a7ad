#!/usr/bin/env python3
"""Rules for every tracked text file: length, no absolute paths of a machine, no registry hosts, no generated leftovers."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT, DEVICE_LIMIT = 600, 900  # lines
FORBIDDEN = {
    r'(?<![\w.])/(work|home|root|Users)/\w': 'an absolute path of a machine',
    r'https?://[^\s)\'"]*(pypi|npmjs|crates|pkg\.go|debian\.org/debian)': "a package registry's host",
    r'<{7} |>{7} ': 'a merge leftover',
}
CODE = ('.h', '.cc', '.cu', '.cuh', '.py', '.sh')


def main():
    done = subprocess.run(['git', '-C', str(ROOT), 'ls-files', '--cached', '--others', '--exclude-standard'], capture_output=True, text=True)
    if done.returncode:
        print('not a git checkout: nothing checked')
        return 0
    errors = []
    for name in done.stdout.split('\n'):
        path = ROOT / name
        if not name or name.startswith('models/') or not path.is_file() or path.suffix in ('.png', '.svg', '.safetensors'):
            continue
        text = path.read_text(errors='replace')
        lines = text.count('\n') + 1
        limit = DEVICE_LIMIT if path.suffix in ('.cu', '.cuh') else LIMIT
        if path.suffix in CODE and lines > limit:
            errors.append(f'{name}: {lines} lines, wanted {limit} or fewer')
        if path == pathlib.Path(__file__).resolve():
            continue
        for pattern, what in FORBIDDEN.items():
            found = re.search(pattern, text)
            if found:
                errors.append(f'{name}: {what}: {found.group(0)!r}')
    print('\n'.join(errors) if errors else 'tree is tidy')
    return 1 if errors else 0


if __name__ == '__main__':
    sys.exit(main())
