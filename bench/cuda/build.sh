#!/bin/bash
# Builds extend_check and extend_bench with nvcc alone (no CMake packages needed): bench/cuda/build.sh OUTPUT_DIR [nvcc flags]
# With PORTABLE=1 it is the portable extend, compiled from compute_80 PTX to machine code of this machine's choice (ARCH,
# default sm_90): what a driver makes of the library's PTX. Objects are made in parallel; the log of ptxas lies in OUTPUT_DIR/ptxas.log.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$1; shift
mkdir -p "$out"
export out
arch="-gencode=arch=compute_90a,code=sm_90a"
kernels="ops/cuda/common/tensor_map.cc ops/cuda/sm90/backend.cc ops/cuda/sm90/extend_ring/plan.cc ops/cuda/sm90/extend_ring/launch.cu
  ops/cuda/sm90/extend_rows/launch.cu ops/cuda/sm90/extend_ring/inst/bounded.cu ops/cuda/sm90/extend_ring/inst/bounded_exact.cu
  ops/cuda/sm90/extend_ring/inst/softplus.cu ops/cuda/sm90/extend_ring/inst/given.cu"
if [ -n "${PORTABLE:-}" ]; then
  arch="-gencode=arch=compute_80,code=${ARCH:-sm_90}"
  kernels="ops/cuda/sm80/backend.cc ops/cuda/sm80/extend_chunked/plan.cc ops/cuda/sm80/extend_chunked/launch.cu
    ops/cuda/sm80/extend_chunked/inst/bf16.cu ops/cuda/sm80/extend_chunked/inst/f16.cu ops/cuda/sm80/extend_recurrent/launch.cu"
  set -- -DKADENCE_BENCH_PORTABLE "$@"
fi
flags="-std=c++20 -O3 -I. -DKADENCE_CUDA=1 --expt-relaxed-constexpr -diag-suppress 177 -lineinfo -Xptxas=-v -Xcompiler=-ffp-contract=off,-fopenmp,-O2 $*"
sources="base/dtype.cc base/error.cc base/log.cc device/cpu_device.cc device/cuda_device.cc
  ops/kda_plan.cc ops/kda_metadata.cc ops/kda_run.cc
  ops/testing/compare.cc ops/testing/guarded.cc ops/testing/kda_batch.cc ops/testing/kda_conformance.cc ops/testing/kda_inputs.cc
  ops/testing/kda_oracle.cc ops/testing/pairwise.cc bench/cuda/standalone.cc
  $kernels"
compile() { nvcc $2 $3 -c "$1" -o "$out/$(echo "$1" | tr / _).o" 2> "$out/$(echo "$1" | tr / _).log" || { cat "$out/$(echo "$1" | tr / _).log"; exit 1; }; }
export -f compile
printf '%s\n' $sources bench/cuda/extend_check.cc bench/cuda/extend_check_faults.cc bench/cuda/extend_bench.cu | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'compile "$@"' _ {} "$arch" "$flags"
cat "$out"/*.log > "$out/ptxas.log"
objects=$(for s in $sources; do echo "$out/$(echo "$s" | tr / _).o"; done)
nvcc $arch $objects "$out"/bench_cuda_extend_check{,_faults}.cc.o -o "$out/extend_check" -lgomp -lpthread &
nvcc $arch $objects "$out/bench_cuda_extend_bench.cu.o" -o "$out/extend_bench" -lgomp -lpthread
wait
if grep -E "C75[0-9][0-9]" "$out/ptxas.log"; then echo "ptxas serialized wgmma"; exit 1; fi
