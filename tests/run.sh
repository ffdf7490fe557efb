#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a build folder, programs, fuzz corpora and scripts (cli/*.sh), and adds up what they report.
#
#   tests/run.sh [build-folder] [program or script…]
#
# They run side by side, one more than there are cores, since many wait (PITH_TEST_JOBS is the number of cores); the output is in the
# order of the list. The last line is "N passed, N failed, N skipped". Fails if a test failed, or if a program ran none or did not finish:
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

results=$(mktemp -d) || exit 2
workers=''
# shellcheck disable=SC2064,SC2086
trap 'kill $workers 2>/dev/null; rm -rf "$results"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0 skipped=0 broken=''

run() {
  case $1 in
    *.sh) sh "$here/$1" "$build" ;;
    replay_*) "$build/tests/$1" "$here/fuzz/corpus/${1#replay_}" 300 ;;
    *) PITH_TEST_SEED=$seed "$build/tests/$1" ;;
  esac
}

# place PROGRAM: where its output is kept
place() { echo "$results/$(echo "$1" | tr / _)"; }

# worker LIST: takes what nobody has taken from it, until there is no more.
worker() {
  for program in $1; do
    place=$(place "$program")
    if mkdir "$place" 2>/dev/null; then
      run "$program" >"$place/output" 2>&1
      echo $? >"$place/status.new"
      mv "$place/status.new" "$place/status"
    fi
  done
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

all=${*:-$(cat "$list" && scripts)}
of_programs=$(printf '%s\n' $all | grep -v '\.sh$')
of_scripts=$(printf '%s\n' $all | grep '\.sh$')

# One worker begins with the scripts, which take longest; the others end with them, from the last one on.
worker "$of_scripts $of_programs" &
workers=$!
backwards=$(printf '%s\n' $of_scripts | sed '1!G;h;$!d')
jobs=${PITH_TEST_JOBS:-$(nproc)}
[ "$jobs" -gt 0 ] || jobs=1
while [ "$jobs" -gt 0 ]; do
  worker "$of_programs $backwards" &
  workers="$workers $!" jobs=$((jobs - 1))
done

for program in $all; do
  echo "== $program"
  place=$(place "$program")
  while [ ! -e "$place/status" ]; do
    sleep 0.1
  done
  status=$(cat "$place/status") output=$place/output
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
workers=''

[ -n "$broken" ] && echo "failed in:$broken"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
