#!/usr/bin/env bash
# Everything that `make test` runs: CUDA targets where nvcc is to be had; the binary, its end-to-end tests, the fuzzers and
# most unit tests under AddressSanitizer; then all tests of the dev build, whose closing lines come last. usage: run_tests.sh JOBS
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-2}
say() { printf '\n== %s\n' "$*"; }
quietly() {  # a log only when it fails
  local log
  log=$(mktemp)
  "$@" >"$log" 2>&1 || { cat "$log"; rm -f "$log"; return 1; }
  rm -f "$log"
}
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
cuda_note="CUDA was not built: no nvcc on PATH or in /usr/local/cuda/bin"
if [ -n "$nvcc" ]; then
  say "cuda preset ($("$nvcc" --version | grep -o 'release [0-9.]*'))"
  quietly env CUDACXX="$nvcc" cmake --preset cuda
  quietly cmake --build --preset cuda -j "$jobs" --target cuda_all
  ctest --preset cuda -R '^(cuda_|kda_sm)' -j "$jobs"
  cuda_note="CUDA was built, nothing of it ran (no GPU is used by the tests)"
fi
say "asan preset: the binary, its end-to-end tests, the fuzzers and most unit tests under AddressSanitizer and UndefinedBehaviorSanitizer"
quietly cmake --preset asan
quietly cmake --build --preset asan -j "$jobs"
ctest --preset asan -L asan -j "$jobs"
say "dev preset: all tests"
quietly cmake --preset dev
quietly cmake --build --preset dev -j "$jobs"
echo "$cuda_note"
ctest --preset dev -j "$jobs"
