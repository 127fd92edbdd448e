#!/usr/bin/env bash
# Everything that wants a GPU, in one command: the tests, then the benches; target/gpu.md gets their table.
#
#     benches/gpu.sh [--cubek]      with --cubek also against CubeK, whose build takes ten minutes
set -euo pipefail
cd "$(dirname "$0")/.."
export PALLAS_DEVICE=gpu PALLAS_REQUIRE_GPU=1

cargo test --test all
mkdir -p target
cargo bench --bench kernels | tee target/gpu-kernels.txt
cargo bench --bench adapter -- "$@" | tee target/gpu-adapter.jsonl

{
  cargo run --quiet --release --example devices | sed 's/^/    /'
  printf '\n| kernel | device | ms | GFLOP/s | of the peak, %% | GB/s | of the copy, %% |\n|---|---|---|---|---|---|---|\n'
  sed -nE 's/^ +(.*) on ([^:]+(:[0-9]+)?): ([0-9.]+) ms, ([0-9.]+) GFLOP\/s \(([0-9]+) %[^)]*\), ([0-9.]+) GB\/s \(([0-9]+) %\)$/| \1 | \2 | \4 | \5 | \6 | \7 | \8 |/p' target/gpu-kernels.txt
  printf '\n'
  grep 'times as fast' target/gpu-kernels.txt | sed 's/^ */- /' || true
  printf '\n```json\n'
  cat target/gpu-adapter.jsonl
  printf '```\n'
} > target/gpu.md
echo "the table is in target/gpu.md"
