#!/usr/bin/env bash
# What `make demo` shows: the exactness checks on a small model, then a chat whose second turn hits the prefix cache.
# usage: demo.sh KADENCE MODEL
set -euo pipefail
"$1" check all --quick --model "$2"
echo
"$1" demo --model "$2"
