#!/usr/bin/env bash
# Builds the fuzz targets with Clang and runs them, several at a time; README.md says what they check.
#
#   tests/fuzz/run.sh smoke             every target, about a minute in all; says so and succeeds where there is no Clang
#   tests/fuzz/run.sh long MINUTES [TARGET...]    so many minutes for each target
#   tests/fuzz/run.sh hostile LAYERS LEFT_OUT     first the C++ tests of these layers under the same sanitizers, but for those
#                                       whose names match LEFT_OUT; without Clang under g++'s, and nothing more
#   tests/fuzz/run.sh hostile-build LAYERS        what these need, without running it
#   tests/fuzz/run.sh merge [TARGET...] puts what has new coverage into tests/fuzz/corpus, as few inputs as will do
#
# JOBS (default: one per core) targets run at a time. What the runs keep is in build/fuzz: corpus/TARGET, logs/TARGET, and
# findings/TARGET-*, the inputs that end a target.
set -euo pipefail
cd "$(dirname "$0")/../.."

FOLDER=build/fuzz
FUZZ=$FOLDER/native/tests/fuzz/geocomm_fuzz
JOBS=${JOBS:-$(nproc)}
SMOKE_SECONDS=40
MAX_INPUT_BYTES=49152
export UBSAN_OPTIONS=print_stacktrace=1
# Large blocks that were freed would fill the memory limit.
export ASAN_OPTIONS=quarantine_size_mb=32

say() { echo "fuzz: $*"; }

# Prints a Clang that has libFuzzer, or fails.
find_clang() {
  local clang
  for clang in ${CLANGXX:-} clang++ clang++-{21,20,19,18,17,16,15,14}; do
    command -v "$clang" >/dev/null || continue
    if echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
      "$clang" -x c++ -fsanitize=fuzzer,address,undefined -o /dev/null - 2>/dev/null; then
      echo "$clang"
      return
    fi
  done
  return 1
}

# build CLANG [LAYER...]: the fuzz targets, and the C++ tests of these layers.
build() {
  local clang=$1
  shift
  say "building the targets with $clang"
  cmake -S . -B $FOLDER/native -G Ninja -DCMAKE_CXX_COMPILER="$clang" -DGEOCOMM_FUZZ=ON -DGEOCOMM_TOOLS=OFF \
    -DGEOCOMM_TESTS=$([ $# -eq 0 ] && echo OFF || echo ON) >/dev/null
  cmake --build $FOLDER/native --target geocomm_fuzz make_seeds "${@/#/test_}" -- --quiet
  rm -rf $FOLDER/seeds
  $FOLDER/native/tests/fuzz/make_seeds $FOLDER/seeds
}

# hostile_tests FOLDER LEFT_OUT LAYER...: run them.
hostile_tests() {
  local folder=$1 left_out=$2 log=$1/hostile.log
  shift 2
  say "running the C++ tests of $* under AddressSanitizer + UBSan"
  ctest --test-dir "$folder" --output-on-failure -j $((2 * JOBS)) --no-tests=error -E "_NOT_BUILT|$left_out" -Q -O "$log" || {
    tail -n 300 "$log"
    say "C++ tests FAILED; all output: $log" >&2
    return 1
  }
  grep -E 'tests passed|[*]{3}' "$log"
}

# fuzz_one SECONDS TARGET: what is found goes to build/fuzz/corpus; the corpus of the repository is only read.
fuzz_one() {
  local seconds=$1 target=$2 log=$FOLDER/logs/$2 dictionary=()
  mkdir -p $FOLDER/{corpus,seeds}/"$target" $FOLDER/{logs,findings}
  [ -f "tests/fuzz/$target.dict" ] && dictionary=("-dict=tests/fuzz/$target.dict")
  if "$FUZZ" --target="$target" -max_total_time="$seconds" -max_len=$MAX_INPUT_BYTES -timeout=30 -rss_limit_mb=2048 \
    -malloc_limit_mb=64 -entropic_scale_per_exec_time=1 -print_final_stats=1 -artifact_prefix="$FOLDER/findings/$target-" "${dictionary[@]}" \
    "$FOLDER/corpus/$target" "tests/fuzz/corpus/$target" "$FOLDER/seeds/$target" >"$log" 2>&1; then
    say "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs in $seconds s," \
      "coverage $(sed -n 's/.*DONE *cov: \([0-9]*\).*/\1/p' "$log")"
  else
    tail -n 40 "$log"
    say "$target FAILED; all output: $log" >&2
    return 1
  fi
}

# fuzz_all SECONDS TARGET...: in turns, so that all have the same share of the machine.
fuzz_all() {
  local seconds=$1
  shift
  printf '%s\n' "$@" | xargs -P "$JOBS" -I{} bash -c "$(declare -f say fuzz_one)
    FOLDER=$FOLDER FUZZ=$FUZZ MAX_INPUT_BYTES=$MAX_INPUT_BYTES
    fuzz_one $seconds {}"
}

# Findings that were mended stay, as regression_*.
merge_one() {
  local target=$1 kept=tests/fuzz/corpus/$1 merged=$FOLDER/merged/$1
  rm -rf "$merged"
  mkdir -p "$merged" "$kept" $FOLDER/{corpus,seeds}/"$target"
  "$FUZZ" --target="$target" -merge=1 -use_counters=0 -max_len=$MAX_INPUT_BYTES "$merged" "$kept" "$FOLDER/corpus/$target" \
    "$FOLDER/seeds/$target" >"$FOLDER/logs/merge_$target" 2>&1
  find "$kept" -type f ! -name 'regression_*' -delete
  cp "$merged"/* "$kept"
  say "$target: $(find "$kept" -type f | wc -l) inputs, $(du -sb "$kept" | cut -f1) bytes"
}

command=${1:-smoke}
shift || true
layers=()
left_out=
if [[ $command == hostile* ]]; then
  read -ra layers <<<"$1"
  left_out=${2-}
fi
if ! clang=$(find_clang); then
  say "no Clang with libFuzzer here: the fuzz targets were NOT run (their corpora are, by the C++ tests)"
  if [[ $command == hostile* ]]; then
    cmake -S . -B build/asan -G Ninja -DGEOCOMM_TESTS=ON -DGEOCOMM_SANITIZE=address,undefined >/dev/null
    cmake --build build/asan --target "${layers[@]/#/test_}" -- --quiet
    [ "$command" = hostile-build ] || hostile_tests build/asan "$left_out" "${layers[@]}"
    exit
  fi
  [ "$command" = smoke ] && exit 0 || exit 1
fi
build "$clang" "${layers[@]}"
[ "$command" = hostile-build ] && exit
[ "$command" = hostile ] && hostile_tests $FOLDER/native "$left_out" "${layers[@]}"
mapfile -t all < <("$FUZZ" --list)
case $command in
  smoke | hostile) fuzz_all $((SMOKE_SECONDS * JOBS / ${#all[@]} + 1)) "${all[@]}" ;;
  long)
    minutes=$1
    shift
    [ $# -gt 0 ] || set -- "${all[@]}"
    fuzz_all $((minutes * 60)) "$@"
    ;;
  merge)
    [ $# -gt 0 ] || set -- "${all[@]}"
    for target in "$@"; do merge_one "$target"; done
    ;;
  *)
    say "smoke, hostile, hostile-build, long or merge, not $command" >&2
    exit 2
    ;;
esac
