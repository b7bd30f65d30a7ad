#!/usr/bin/env bash
# clang-format over every C++ and CUDA file of the project: --check (default) or --write.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(find apps base bench device engine examples model ops prefix python server state tests tools \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -not -path '*/build/*' | sort)
case "${1:---check}" in
  --write) clang-format -i "${files[@]}" ;;
  --check) clang-format --dry-run -Werror "${files[@]}" ;;
  *) echo "usage: tools/format.sh [--check|--write]" >&2; exit 2 ;;
esac
