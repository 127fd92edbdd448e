#!/usr/bin/env bash
# Everything that wants a GPU, in one command: the tests, then the benches; target/gpu.md gets their table.
#
#     benches/gpu.sh [--cubek]      with --cubek also against CubeK, whose build takes ten minutes
#
# Where the adapter has cooperative matrices, products are timed with and without them. Tests that fail do not keep the
# benches from running: the table begins with them, and the script fails in the end.
set -euo pipefail
cd "$(dirname "$0")/.."
export PALLAS_DEVICE=gpu PALLAS_REQUIRE_GPU=1

mkdir -p target
cargo run --quiet --release --example devices | tee target/gpu-devices.txt
failed=
cargo test --test product 2>&1 | tee target/gpu-tests.txt || failed=1
cargo bench --bench kernels | tee target/gpu-kernels.txt
cargo bench --bench adapter -- --json "$@" | tee target/gpu-adapter.jsonl
plain=
if grep -q 'cooperative matrices' target/gpu-devices.txt; then
  plain=target/gpu-kernels-plain.txt
  PALLAS_PROFILE=gpu cargo bench --bench kernels -- 'matmul|attention' | tee $plain
fi

# The lines of a run as rows of a table.
rows() {
  sed -nE 's/^ +(.*) on ([^:]+(:[0-9]+)?): ([0-9.]+) ms, ([0-9.]+) GFLOP\/s( \(([0-9]+) %[^)]*\))?, ([0-9.]+) GB\/s \(([0-9]+) %[^)]*\)$/| \1 | \2 | \4 | \5 | \7 | \8 | \9 |/p' "$1"
}
{
  if [ -n "$failed" ]; then
    printf 'Tests failed:\n\n'
    grep -E '^(test .* FAILED|error)|panicked at' target/gpu-tests.txt | sed 's/^/    /' || true
    printf '\n'
  fi
  sed 's/^/    /' target/gpu-devices.txt
  printf '\n| kernel | device | ms | GFLOP/s | of the peak, %% | GB/s | of the memory, %% |\n|---|---|---|---|---|---|---|\n'
  rows target/gpu-kernels.txt
  if [ -n "$plain" ]; then
    rows $plain | sed 's/^| /| without matrices: /'
  fi
  printf '\n'
  grep 'times as fast' target/gpu-kernels.txt | sed 's/^ */- /' || true
  printf '\n```json\n'
  cat target/gpu-adapter.jsonl
  printf '```\n'
} > target/gpu.md
echo "the table is in target/gpu.md"
[ -z "$failed" ] || exit 1
