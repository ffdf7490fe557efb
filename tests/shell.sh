# SPDX-License-Identifier: Apache-2.0
# Tests in shell, by the same rules as those in C (test.h): a script defines functions named after what they prove, and
# closes with `run_tests function…`. Each runs in a subshell where the first failing command ends it; it ends with
# `skip REASON` where it cannot run. Scripts get the build folder as first argument and are picked up by run.sh.
#
# shellcheck shell=sh disable=SC2034
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$root/build}" && pwd) || exit 2
pith=$build/pith
temp=$(mktemp -d) || exit 2
trap 'rm -rf "$temp"' EXIT
unset PITH_PLUGINS PITH_PLUGIN_PATH PITH_CPU PITH_DEBUG PITH_DEBUG_FILE

skip() {
  echo "$*"
  exit 77
}

# lacks WHAT REASON…: like skip, for what can be installed or switched on. A failure if PITH_TEST_REQUIRE names it.
lacks() {
  what=$1 && shift
  case ,${PITH_TEST_REQUIRE:-}, in
    *",$what,"*) echo "PITH_TEST_REQUIRE has $what: $*" && exit 1 ;;
    *) skip "[$what] $*" ;;
  esac
}

need() { # command: the test is skipped where there is none
  command -v "$1" >/dev/null || lacks "$1" "there is no $1"
}

need_plain_build() { # what has nothing to do with the code that sanitizers watch runs once
  ! grep -q '^PITH_SANITIZE:[A-Z]*=.' "$build/CMakeCache.txt" || skip "not with sanitizers: it runs in the plain build"
}

# exits CODE command…: runs a command that must end with that code; its output is in $temp/out and $temp/err.
exits() {
  wanted=$1 && shift
  got=0
  "$@" >"$temp/out" 2>"$temp/err" || got=$?
  [ "$got" = "$wanted" ] || { echo "$*: exit code $got, not $wanted" && cat "$temp/out" "$temp/err" && return 1; }
}

# says FILE TEXT: the file of the last `exits` (out or err) has the text in it, in one line or broken at blanks.
says() {
  grep -qF -- "$2" "$temp/$1" || tr -s ' \n' ' ' <"$temp/$1" | grep -qF -- "$2" ||
    { echo "standard $1 does not say \"$2\":" && cat "$temp/$1" && return 1; }
}

run_tests() {
  passed=0 failed=0 skipped=0
  for test in "$@"; do
    (
      set -e
      "$test"
    ) >"$temp/log" 2>&1
    status=$?
    if [ $status = 0 ]; then
      echo "ok   $test" && passed=$((passed + 1))
    elif [ $status = 77 ]; then
      echo "skip $test: $(tail -n 1 "$temp/log")" && skipped=$((skipped + 1))
    else
      echo "FAIL $test" && sed 's/^/  /' "$temp/log" && failed=$((failed + 1))
    fi
  done
  echo "$passed passed, $failed failed, $skipped skipped"
  [ $failed = 0 ]
}
