#!/bin/bash
# As build.sh, for the portable extend: bench/cuda/build_sm80.sh OUTPUT_DIR [nvcc flags]. The kernels are compiled from
# compute_80 PTX to machine code of this machine's choice (ARCH, default sm_90): what a driver makes of the library's PTX.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$1; shift
mkdir -p "$out"
export out
arch="-gencode=arch=compute_80,code=${ARCH:-sm_90}"
flags="-std=c++20 -O3 -I. -DKADENCE_CUDA=1 -DKADENCE_BENCH_PORTABLE --expt-relaxed-constexpr -diag-suppress 177 -lineinfo -Xptxas=-v -Xcompiler=-ffp-contract=off,-fopenmp,-O2 $*"
sources="base/dtype.cc base/error.cc base/log.cc device/cpu_device.cc device/cuda_device.cc
  ops/kda_plan.cc ops/kda_metadata.cc ops/kda_run.cc
  ops/testing/compare.cc ops/testing/guarded.cc ops/testing/kda_batch.cc ops/testing/kda_conformance.cc ops/testing/kda_inputs.cc
  ops/testing/kda_oracle.cc ops/testing/pairwise.cc bench/cuda/standalone_sm80.cc
  ops/cuda/sm80/backend.cc ops/cuda/sm80/extend_chunked/plan.cc ops/cuda/sm80/extend_chunked/launch.cu
  ops/cuda/sm80/extend_chunked/inst/bf16.cu ops/cuda/sm80/extend_chunked/inst/f16.cu ops/cuda/sm80/extend_recurrent/launch.cu"
compile() {
  local o="$out/$(echo "$1" | tr / _)"
  nvcc $2 $3 -c "$1" -o "$o.o" 2> "$o.log" || { cat "$o.log"; exit 1; }
}
export -f compile
printf '%s\n' $sources bench/cuda/extend_check.cc bench/cuda/extend_check_faults.cc bench/cuda/extend_bench.cu | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'compile "$@"' _ {} "$arch" "$flags"
objects=$(for s in $sources; do echo "$out/$(echo "$s" | tr / _).o"; done)
nvcc $arch $objects "$out"/bench_cuda_extend_check{,_faults}.cc.o -o "$out/extend_check" -lgomp -lpthread
nvcc $arch $objects "$out/bench_cuda_extend_bench.cu.o" -o "$out/extend_bench" -lgomp -lpthread
