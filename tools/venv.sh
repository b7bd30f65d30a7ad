#!/usr/bin/env bash
# A Python environment for the server's tests: .venv with the official openai client. Status 0 and the path of its Python
# on standard output, or status 1 and why not on standard error (no index to be reached, most likely).
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(openai numpy)
python=.venv/bin/python
stamp=.venv/.kadence-$(printf '%s' "${packages[*]}" | tr ' ' '-')
if [ ! -e "$stamp" ]; then
  log=$(mktemp)
  if ! { python3 -m venv .venv && "$python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 20 "${packages[@]}"; } >"$log" 2>&1; then
    echo "venv: pip could not install ${packages[*]}: $(tail -1 "$log")" >&2
    rm -f "$log"
    exit 1
  fi
  rm -f "$log"
  touch "$stamp"
fi
echo "$PWD/$python"
