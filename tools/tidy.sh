#!/usr/bin/env bash
# clang-tidy on the C++ sources changed since BASE (default: the previous commit), with the release build's flags.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${BASE:-HEAD~1}
mapfile -t files < <({ git diff --name-only --diff-filter=d "$base" -- '*.cc' 2>/dev/null; git ls-files --others --exclude-standard -- '*.cc'; } | sort -u | grep -v '^tests/compile_fail/' || true)
[ ${#files[@]} -eq 0 ] && { echo "tidy: no changed sources"; exit 0; }
[ -f build/release/compile_commands.json ] || cmake --preset release >/dev/null
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy -p build/release --quiet --warnings-as-errors='*'
