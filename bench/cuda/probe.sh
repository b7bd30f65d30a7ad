#!/bin/bash
# After build.sh OUTPUT_DIR: extend_bench with a part of the kernel alone. bench/cuda/probe.sh OUTPUT_DIR NAME [nvcc flags]
# e.g. NAME=prep -DKADENCE_EXTEND_PROBE=1, NAME=scan -DKADENCE_EXTEND_PROBE=2 (results are then meaningless, times not)
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$1 name=$2; shift 2
arch="-gencode=arch=compute_90a,code=sm_90a"
nvcc $arch -std=c++20 -O3 -I. -DKADENCE_CUDA=1 --expt-relaxed-constexpr -diag-suppress 177 -lineinfo "$@" -c ops/cuda/sm90/extend_ring/inst/bounded.cu -o "$out/$name.probe.obj"
objects=$(ls "$out"/*.o | grep -v -e inst_bounded.cu.o -e extend_check)
nvcc $arch $objects "$out/$name.probe.obj" -o "$out/extend_bench_$name" -lgomp -lpthread
