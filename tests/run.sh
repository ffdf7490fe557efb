#!/bin/sh
# Runs the tests of a build folder, programs, fuzz corpora and scripts (cli/*.sh), and adds up what they report.
#
#   tests/run.sh [build-folder] [program or script…]
#
# The last line is "N passed, N failed, N skipped". Fails if a test failed, or if a program ran none or did not finish:
# silence is not success.
#
# Random inputs are the same in every run, so that a failure is the change's and not the day's: PITH_TEST_SEED chooses others,
# and PITH_TEST_SEED=fresh new ones each time.
set -u
seed=${PITH_TEST_SEED:-1}
[ "$seed" = fresh ] && seed=$(date +%s)
unset PITH_TEST_SEED

here=$(dirname "$0")
build=${1:-build}
[ $# -gt 0 ] && shift
list=$build/tests/programs.txt
if [ ! -r "$list" ]; then
  echo "run.sh: no tests in $build: build it first (cmake -B $build && cmake --build $build)" >&2
  exit 2
fi

output=$(mktemp) || exit 2
trap 'rm -f "$output"' EXIT
passed=0 failed=0 skipped=0 broken=''

run() {
  case $1 in
    *.sh) sh "$here/$1" "$build" ;;
    replay_*) "$build/tests/$1" "$here/fuzz/corpus/${1#replay_}" 300 ;;
    *) PITH_TEST_SEED=$seed "$build/tests/$1" ;;
  esac
}

# fails PROGRAM REASON: a failure that is not one of its tests.
fails() {
  echo "FAIL $1: $2"
  failed=$((failed + 1)) broken="$broken $1"
}

# add PROGRAM STATUS N passed, N failed, N skipped
add() {
  passed=$((passed + $3)) failed=$((failed + $5)) skipped=$((skipped + $7))
  if [ $(($3 + $5 + $7)) -eq 0 ]; then
    fails "$1" "ran no test"
  elif [ "$5" -gt 0 ]; then
    broken="$broken $1"
  elif [ "$2" -ne 0 ]; then
    fails "$1" "no test failed, but it ended with status $2"
  fi
}

# With sanitizers, scripts that are about other people's programs (launchers, MPIs, shells, compilers) have nothing to add.
scripts() {
  if grep -q '^PITH_SANITIZE:[A-Z]*=.' "$build/CMakeCache.txt"; then
    for name in chaos codecs comm command plan plugin run; do echo "cli/$name.sh"; done
  else
    (cd "$here" && ls cli/*.sh)
  fi
}

for program in ${*:-$(cat "$list" && scripts)}; do
  echo "== $program"
  run "$program" >"$output" 2>&1
  status=$?
  summary=$(tail -n 1 "$output" | grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$')
  if [ -n "$summary" ]; then
    sed '$d' "$output"
    # shellcheck disable=SC2086
    add "$program" "$status" $summary
  else
    cat "$output"
    fails "$program" "ended with status $status and no summary"
  fi
done

[ -n "$broken" ] && echo "failed in:$broken"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
