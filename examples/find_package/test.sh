#!/usr/bin/env bash
# Installs the build into a scratch prefix, builds the example against it and runs it. usage: test.sh BUILD_DIR COMPILER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake --install "$1" --prefix "$scratch/prefix" >/dev/null
cp "$here/CMakeLists.txt" "$here/main.cc" "$scratch"
cmake -S "$scratch" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_CXX_COMPILER="$2" ${KADENCE_EXAMPLE_FLAGS:-} >/dev/null
cmake --build "$scratch/build"
"$scratch/build/example"
"$scratch/prefix/bin/kadence" --version
