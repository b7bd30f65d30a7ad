#!/usr/bin/env bash
# Python environments for the server's tests: .venv with the official openai client, or with argument lm-eval .venv/lm-eval with
# lm-evaluation-harness (no torch). Status 0 and the path of its Python on standard output, or status 1 and why not on standard
# error (no index to be reached, most likely).
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  lm-eval) folder=.venv/lm-eval packages=('lm_eval[api]' transformers) ;;
  *) folder=.venv packages=(openai numpy) ;;
esac
stamp=$folder/.kadence-installed
if [ ! -e "$stamp" ]; then
  log=$(mktemp)
  if ! { python3 -m venv "$folder" && "$folder/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 20 "${packages[@]}"; } >"$log" 2>&1; then
    echo "venv: pip could not install ${packages[*]}: $(tail -1 "$log")" >&2
    rm -f "$log"
    exit 1
  fi
  rm -f "$log"
  touch "$stamp"
fi
echo "$PWD/$folder/bin/python"
