#!/usr/bin/env bash
# Applies stored faults one at a time, and shows that the tests catch each.
#
#   tests/mutants.sh [NAME..]      NAME: patches of tests/mutants whose names begin with it; default: all
#
# A patch begins with two lines, the diff follows:
#
#   Breaks: one sentence
#   Caught by: ARGUMENTS           those of `cargo test`, after variables if it needs some, as in
#                                  `PALLAS_PROFILE=gpu --test product`
#   Caught by: script PATH         or a script that must fail
#
# It is applied to a copy of the committed and changed files of this tree, in target/mutants; all mutants share a build
# folder there, so that each costs one incremental build. MUTANTS_TIMEOUT: seconds after which a test counts as hanging,
# and the mutant as caught.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$root/target/mutants
tree=$work/tree
limit=${MUTANTS_TIMEOUT:-1200}
export CARGO_TARGET_DIR=$work/build

patches=()
for patch in tests/mutants/*.patch; do
  [ -e "$patch" ] || continue
  name=$(basename "$patch" .patch)
  for wanted in "${@:-}"; do
    if [[ $name == "$wanted"* ]]; then
      patches+=("$root/$patch")
      break
    fi
  done
done
if [ ${#patches[@]} = 0 ]; then
  echo "no mutant of tests/mutants is named ${*:-so: there are none}" >&2
  exit 1
fi

# Changed files that are not committed yet are part of the copy; untracked files are not.
commit=$(git stash create)
commit=${commit:-$(git rev-parse HEAD)}
git worktree prune
mkdir -p "$work"
if [ -e "$tree/.git" ]; then
  git -C "$tree" reset -q --hard
  git -C "$tree" checkout -q --detach "$commit"
else
  git worktree add -q --detach "$tree" "$commit"
fi

# Runs the command of a patch; 0: caught. The last line of $log says why not.
try() {
  local patch=$1 log=$2 caught words=() variables=() rc=0
  caught=$(sed -n '/^diff --git/q; s/^Caught by: //p' "$patch")
  if [ -z "$caught" ] || ! sed '/^diff --git/,$d' "$patch" | grep -q '^Breaks: .'; then
    echo "the patch needs the lines \`Breaks: ..\` and \`Caught by: ..\`" >"$log"
    return 1
  fi
  if ! git -C "$tree" apply "$patch" >"$log" 2>&1; then
    echo "the patch does not apply any more" >>"$log"
    return 1
  fi
  read -ra words <<<"$caught"
  while [[ ${words[0]-} == *=* && ${words[0]} != -* ]]; do
    variables+=("${words[0]}")
    words=("${words[@]:1}")
  done
  if [ "${words[0]-}" = script ]; then
    words=("${words[@]:1}")
  else
    words=(cargo test "${words[@]}")
    if ! (cd "$tree" && env "${variables[@]}" "${words[@]:0:2}" --no-run "${words[@]:2}") >"$log" 2>&1; then
      echo "it does not build" >>"$log"
      return 1
    fi
  fi
  (cd "$tree" && env "${variables[@]}" timeout "$limit" "${words[@]}") >"$log" 2>&1 || rc=$?
  if [ $rc = 0 ]; then
    echo "SURVIVED: ${words[*]}" >>"$log"
    return 2
  fi
  if [ $rc != 124 ] && grep -q '^error: could not compile' "$log"; then
    echo "it does not build" >>"$log"
    return 1
  fi
}

caught=0 survived=0 broken=0
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch) log=$work/$(basename "$patch" .patch).log rc=0
  since=$SECONDS
  try "$patch" "$log" || rc=$?
  git -C "$tree" reset -q --hard
  git -C "$tree" clean -q -fd
  case $rc in
    0) caught=$((caught + 1)); echo "caught    $name ($((SECONDS - since)) s)" ;;
    2) survived=$((survived + 1)); echo "SURVIVED  $name: $(tail -1 "$log")" ;;
    *) broken=$((broken + 1)); echo "BROKEN    $name: $(tail -1 "$log"); see $log" ;;
  esac
done
if [ $broken -gt 0 ]; then
  echo "$broken patches say nothing"
fi
echo "${#patches[@]} mutants: $caught caught, $survived survived"
[ $survived = 0 ] && [ $broken = 0 ]
