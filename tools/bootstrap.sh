#!/usr/bin/env bash
# Installs the Debian packages that Kadence needs, if any is missing. Needs root or sudo only then.
# usage: bootstrap.sh [tests]   tests: also what the server's tests drive (curl, a browser)
set -euo pipefail
packages=(
  g++ cmake ninja-build python3 python3-venv patch            # building
  libhwy-dev libicu-dev nlohmann-json3-dev                    # SIMD, Unicode, JSON
  libdnnl-dev ocl-icd-opencl-dev                              # matrix products (its package file asks for OpenCL)
  libcli11-dev libspdlog-dev libfmt-dev                       # the binary
  libboost1.81-dev prometheus-cpp-dev                         # the server
  libgtest-dev libgmock-dev libbenchmark-dev                  # tests and benchmarks
  clang-format clang-tidy ccache                              # development
)
if [ "${1:-}" = tests ]; then packages+=(curl chromium chromium-driver); fi
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q "install ok installed" || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "bootstrap: installing ${missing[*]}"
run=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "bootstrap: not root and no sudo; install by hand: apt-get install ${missing[*]}" >&2; exit 1; }
  run=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${run[@]}" apt-get update -qq
"${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
