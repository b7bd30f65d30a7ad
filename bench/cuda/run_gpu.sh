#!/bin/bash
# Everything of extend in one go on a machine with a Hopper GPU: bench/cuda/run_gpu.sh OUTPUT_DIR [check|bench|probes ...]
# Builds (with bounded waits), checks, times; results and logs lie in OUTPUT_DIR.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=$1; shift
build=${BUILD:-/tmp/kadence}
mkdir -p "$out"
bench/cuda/build.sh "$build" ${FLAGS--DKADENCE_DEBUG_WAITS=1} 2>&1 | tail -20 || exit 1
cp "$build/ptxas.log" "$out/"
for step in "${@:-check}"; do
  case $step in
    check)
      timeout 120 "$build/extend_check" all > "$out/check.log" 2>&1
      echo "rc $?" >> "$out/check.log"
      grep -E "FAIL|cases,|bits|rc|extend_check" "$out/check.log" | tail -40 ;;
    bench) timeout 100 "$build/extend_bench" "$out/extend.jsonl" ${FILTER:+"$FILTER"} --reps "${REPS:-7}" 2>&1 | tee "$out/bench.log" ;;
    probes)
      bench/cuda/probe.sh "$build" prep -DKADENCE_EXTEND_PROBE=1 &
      bench/cuda/probe.sh "$build" scan -DKADENCE_EXTEND_PROBE=2 &
      wait
      for m in prep scan; do
        for f in "H12 8192" "H64 8192" "H32 8x4096"; do
          echo "$m: $(timeout 20 "$build/extend_bench_$m" "$out/$m.jsonl" "$f" --reps 5 | sed -n 2p)"
        done
      done ;;
    repeat) timeout 200 "$build/extend_check" repeat "${TIMES:-200}" ;;
  esac
done
