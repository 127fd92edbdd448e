#!/usr/bin/env bash
# Random kernels: 5,000 on the interpreter, the CPU and the CPU in strips, 500 on a GPU, 125 on an OpenGL adapter.
# PALLAS_RANDOM_KERNELS=HOST,GPU sets other numbers. The last line is the number of kernels that ran on each device.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export PALLAS_RANDOM_KERNELS=${PALLAS_RANDOM_KERNELS:-5000,500}
cargo test -p pallas-rt --lib random_kernels_mean -- --nocapture 2>&1 | tee "$log"
grep -o 'random kernels: .*' "$log" | awk '{ n = $3; sub(/.* on /, ""); ran[$0] += n }
  END { for (device in ran) { printf "%s%d on %s", comma, ran[device], device; comma = "; " } print "" }'
