#!/usr/bin/env bash
# Installs ./python into build/python/venv (its own: tests that run beside it make .venv) and runs the tests of the package.
# usage: python_tests.sh [pytest arguments]
# Exits with 77 (CTest: skipped) when there is no package index to fetch the build's tools from.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${KADENCE_VENV:-build/python/venv}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
skip() { echo "skipped: $*"; exit 77; }

[ -x "$venv/bin/pip" ] || python3 -m venv "$venv" || skip "python3 -m venv does not work here (Debian: python3-venv)"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {  # a log only when it fails
  "$venv/bin/pip" install -q "$@" >"$log" 2>&1 && return
  cat "$log"
  if grep -qiE 'could not find a version|no matching distribution' "$log"; then skip "pip reaches no package index"; fi
  exit 1
}
install numpy ml_dtypes pytest
started=$SECONDS
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
install --force-reinstall --no-deps ./python
echo "pip install ./python: $((SECONDS - started)) s"
exec "$venv/bin/python" -m pytest -q -p no:cacheprovider python/tests "$@"
