#!/usr/bin/env bash
# Installs ./python into .venv and runs its tests. usage: python_tests.sh [pytest arguments]
# Exits with 77 (CTest: skipped) when there is no package index to fetch the build's tools from.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${KADENCE_VENV:-.venv}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
skip() { echo "skipped: $*"; exit 77; }

[ -x "$venv/bin/python" ] || python3 -m venv "$venv" || skip "python3 -m venv does not work here (Debian: python3-venv)"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "$venv/bin/pip" install -q numpy ml_dtypes pytest >"$log" 2>&1; then
  cat "$log"
  if grep -qiE 'could not find a version|no matching distribution|connection|temporary failure|timed out|proxy' "$log"; then
    skip "pip reaches no package index"
  fi
  exit 1
fi
started=$SECONDS
if ! CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)} "$venv/bin/pip" install -q ./python >"$log" 2>&1; then
  cat "$log"
  exit 1
fi
echo "pip install ./python: $((SECONDS - started)) s"
exec "$venv/bin/python" -m pytest -q -p no:cacheprovider python/tests "$@"
