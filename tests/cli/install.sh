#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What other people build on: the installed tree, the examples of the docs, the symbols, the layers.
. "$(dirname "$0")/../shell.sh"

CC=${CC:-cc}
prefix=$temp/prefix

sanitized() { grep -q '^PITH_SANITIZE:STRING=.' "$build/CMakeCache.txt"; }

installed() { # installs once, for all tests of this script
  need cmake
  sanitized && skip "programs of other people have no sanitizers"
  [ -d "$prefix" ] || cmake --install "$build" --prefix "$prefix" >/dev/null
  libdir=$(dirname "$(find "$prefix" -name libpith.so)")
}

the_examples_run() {
  exits 0 "$build/examples/example_encode"
  says out 'step  9: 540672 bytes instead of 4194304'
  exits 0 "$pith" run -n 3 -- "$build/examples/example_allreduce"
  says out 'step 2: the mean of 3 ranks, relative error 0.0'
  exits 0 "$pith" run -n 3 -- "$build/examples/example_adam" moment:4/onebit
  grep -qE '(0\.99|1\.0[01])[0-9] times the loss of exact Adam' "$temp/out"
  exits 0 "$pith" run -n 2 -- "$build/examples/example_adam" moment/topk:0.05
  grep -qE '(0\.99|1\.0[01])[0-9] times the loss of exact Adam' "$temp/out"
}

# block PAGE N: the N-th block of C in it.
block() {
  awk -v n="$2" '/^```c$/ { k++; shown = k == n; next } /^```$/ { shown = 0 } shown' "$1"
}

the_docs_show_the_examples() {
  sed 1d "$root/examples/encode.c" >"$temp/encode" # behind the line about the licence
  sed 1d "$root/examples/allreduce.c" >"$temp/allreduce"
  block "$root/docs/c.md" 1 | diff - "$temp/encode"
  block "$root/docs/c.md" 2 | diff - "$temp/allreduce"
}

installed_library_is_found_by_pkg_config() {
  need pkg-config
  installed
  PKG_CONFIG_PATH=$libdir/pkgconfig
  export PKG_CONFIG_PATH
  # shellcheck disable=SC2046
  $CC -std=c11 "$root/examples/encode.c" -o "$temp/by_pkg_config" $(pkg-config --cflags --libs pith) -lm
  exits 0 env LD_LIBRARY_PATH="$libdir" "$temp/by_pkg_config"
  says out 'step  9'
  [ "pith $(pkg-config --modversion pith)" = "$("$pith" --version)" ]
}

installed_library_is_found_by_cmake() {
  installed
  mkdir -p "$temp/project"
  cp "$root/examples/encode.c" "$temp/project"
  cat >"$temp/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.18)
project(user LANGUAGES C)
find_package(pith 0.2 REQUIRED)
foreach(library pith pith_static)
  add_executable(with_${library} encode.c)
  target_link_libraries(with_${library} PRIVATE pith::${library})
endforeach()
END
  cmake -S "$temp/project" -B "$temp/project/build" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
  cmake --build "$temp/project/build" >/dev/null
  for library in pith pith_static; do
    exits 0 "$temp/project/build/with_$library"
    says out 'step  9'
  done
}

plugin_builds_against_the_installed_headers() {
  installed
  cmake -S "$root/examples/plugin" -B "$temp/plugin" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
  cmake --build "$temp/plugin" >/dev/null
  exits 0 env PITH_PLUGINS=float8 PITH_PLUGIN_PATH="$temp/plugin" "$prefix/bin/pith" codecs float8
}

headers_can_be_used_from_cplusplus() {
  need c++
  printf '#include <pith/pith.h>\n#include <pith/plugin.h>\n' >"$temp/headers.cpp"
  c++ -std=c++17 -Wall -Wextra -Werror -I"$root/include" -fsyntax-only "$temp/headers.cpp"
}

only_public_symbols_are_seen() {
  need nm
  "$root/tools/check-symbols" "$build"
}

only_the_c_library_is_needed() {
  need readelf
  case $build in *sanitize*) skip "sanitizers bring libraries of their own" ;; esac
  needed=$(readelf -d "$build/libpith.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  [ -n "$needed" ]
  ! echo "$needed" | grep -vE '^(libc|libm|libpthread|libdl|ld-linux.*)\.so'
}

includes_keep_to_the_layers() { "$root/tools/check-includes"; }

calls_keep_to_the_layers() {
  need nm
  "$root/tools/check-layers" "$build"
}

a_call_to_a_layer_above_is_found() {
  need nm
  sed 's/^memory .*/memory base/' "$root/tools/layers" >"$temp/layers"
  exits 1 env LAYERS="$temp/layers" "$root/tools/check-layers" "$build"
  says err "src/memory/memory.c: memory must not use src/codec/"
}

run_tests the_examples_run the_docs_show_the_examples installed_library_is_found_by_pkg_config \
  installed_library_is_found_by_cmake plugin_builds_against_the_installed_headers headers_can_be_used_from_cplusplus \
  only_public_symbols_are_seen only_the_c_library_is_needed includes_keep_to_the_layers calls_keep_to_the_layers \
  a_call_to_a_layer_above_is_found
