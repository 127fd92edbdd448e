#!/usr/bin/env bash
# The CPU backend under AddressSanitizer, and its machine code under valgrind: `tests/sanitize.sh [FILTER]`.
#
# AddressSanitizer checks accesses of Rust code, not those of machine code that the backend generates. The tests of
# pallas-codegen, pallas-device and pallas-rt, including the random kernels, therefore run with `--cfg guarded`: each
# operand and each tile ends at an inaccessible page. No step may read or write a byte past the end of its tile, not
# even to fill a vector.
set -euo pipefail
cd "$(dirname "$0")/.."
filter="${1:-}"

echo "== AddressSanitizer, guarded tiles"
host=x86_64-unknown-linux-gnu
# Leaks: the cache of compiled kernels is never dropped. Sanitized frames are larger.
RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address --cfg guarded" ASAN_OPTIONS=detect_leaks=0 RUST_MIN_STACK=33554432 \
  cargo test -p pallas-codegen -p pallas-device -p pallas-rt --no-default-features --features pallas-rt/graph --lib --target "$host" --target-dir "${CARGO_TARGET_DIR:-target}/sanitize" -- $filter

echo "== valgrind, machine code"
if ! command -v valgrind >/dev/null; then
  echo "valgrind is not installed: left out (apt-get install valgrind)"
  exit 0
fi
tests=$(cargo test -p pallas-codegen --lib --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)
# Left out: what compares all bits of operations, since valgrind's own arithmetic says NaN where processors say log(0) =
# -inf, and shifts, which take minutes there.
valgrind --quiet --error-exitcode=99 "$tests" cpu::jit --skip operations_agree --skip shifts_by_constants
