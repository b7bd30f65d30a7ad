#!/bin/bash
# Compiles the Hopper extend kernels and fails if ptxas serialized their wgmmas (advisories C7510 to C7520).
# check_ptxas.sh NVCC SOURCE_DIR
set -euo pipefail
log=$(mktemp)
trap 'rm -f "$log" "$log.o"' EXIT
for f in "$2"/ops/cuda/sm90/extend_ring/inst/*.cu; do
  "$1" -std=c++20 -O3 -I"$2" --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -c "$f" -o "$log.o" >> "$log" 2>&1
done
grep -c "Compiling entry function" "$log"
if grep -E "C75[0-9][0-9]" "$log"; then exit 1; fi
