#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Programs and plug-ins that were built with the headers of an earlier release go on working: the headers of releases are
# kept in tests/frozen, and today's may only add to them. A library of a version to come is made of today's source with
# headers in which every struct that can grow has a field more (tests/frozen/grow.awk).
. "$(dirname "$0")/../shell.sh"

CC=${CC:-cc}
frozen=$root/tests/frozen
flags="-std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror"

releases() { (cd "$frozen" && ls -d [0-9]*/ | tr -d /); }

headers_of() { find "$1/pith" -name '*.h' ! -name mpi.h | sort; } # mpi.h needs an MPI

# layout HEADERS FIELDS: the offset and size of each field, and the size of each struct, as these headers have them.
layout() {
  {
    printf '#include <pith/pith.h>\n#include <pith/plugin.h>\n#include <stdio.h>\nint main(void) {\n'
    awk '{ printf "  printf(\"%s.%s %%zu %%zu\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n", $1, $2, $1, $2, $1, $2 }' "$2"
    awk '{ print $1 }' "$2" | sort -u | awk '{ printf "  printf(\"%s %%zu\\n\", sizeof(%s));\n", $1, $1 }'
    printf '}\n'
  } >"$temp/layout.c"
  # shellcheck disable=SC2086
  $CC $flags -I"$1" "$temp/layout.c" -o "$temp/layout" && "$temp/layout"
}

# Every field stays where it is, with its size; structs without `size` stay as they are; new fields come behind what
# older programs have, padding included.
structs_only_grow_at_their_end() {
  for release in $(releases); do
    old=$frozen/$release new=$root/include
    # shellcheck disable=SC2046
    awk -f "$frozen/fields.awk" $(headers_of "$old") >"$temp/old_fields"
    # shellcheck disable=SC2046
    awk -f "$frozen/fields.awk" $(headers_of "$new") >"$temp/new_fields"
    [ "$(wc -l <"$temp/old_fields")" -gt 200 ] || { echo "$release: found hardly any fields" && return 1; }
    layout "$old" "$temp/old_fields" >"$temp/old"
    layout "$new" "$temp/old_fields" >"$temp/new"
    layout "$new" "$temp/new_fields" >"$temp/all"
    awk -v release="$release" '
      FILENAME == ARGV[1] { if (NF == 3) { field[$1] = $2 " " $3 } else { size[$1] = $2 }; next }
      FILENAME == ARGV[2] && NF == 3 && field[$1] != $2 " " $3 { bad = bad $1 " is not where " release " has it\n" }
      FILENAME == ARGV[2] && NF == 2 && !(($1 ".size") in field && field[$1 ".size"] ~ /^0 /) && size[$1] != $2 {
        bad = bad $1 " has no size, and may not change\n" }
      FILENAME == ARGV[2] && NF == 2 && size[$1] > $2 { bad = bad $1 " has become smaller\n" }
      FILENAME == ARGV[3] && NF == 3 && !($1 in field) {
        split($1, part, "."); if (part[1] in size && $2 < size[part[1]]) bad = bad $1 " lies where " release " has padding\n" }
      END { printf "%s", bad; exit bad != "" }' "$temp/old" "$temp/new" "$temp/all"
  done
}

# prototypes HEADERS: one in a line, without comments.
prototypes() {
  # shellcheck disable=SC2046
  cat $(headers_of "$1") | awk '{ text = text " " $0 } END {
    while (match(text, /\/\*([^*]|\*+[^*\/])*\*+\//)) text = substr(text, 1, RSTART - 1) " " substr(text, RSTART + RLENGTH)
    gsub(/[ \t]+/, " ", text)
    while (match(text, /PITH_API [^;#]*;/)) { print substr(text, RSTART, RLENGTH); text = substr(text, RSTART + RLENGTH) } }' | sort
}

functions_keep_their_prototypes() {
  prototypes "$root/include" >"$temp/new"
  for release in $(releases); do
    prototypes "$frozen/$release" >"$temp/old"
    [ "$(wc -l <"$temp/old")" -gt 100 ] || { echo "$release: found hardly any functions" && return 1; }
    changed=$(comm -23 "$temp/old" "$temp/new")
    [ -z "$changed" ] || { echo "in $release, and not so today: $changed" && return 1; }
  done
}

# constants HEADERS NAMES: the values of enums and of numbers that programs are compiled with.
constants() {
  {
    printf '#include <pith/pith.h>\n#include <pith/plugin.h>\n#include <stdio.h>\nint main(void) {\n'
    sed 's/.*/  printf("& %lld\\n", (long long)&);/' "$2"
    printf '}\n'
  } >"$temp/constants.c"
  # shellcheck disable=SC2086
  $CC $flags -I"$1" "$temp/constants.c" -o "$temp/constants" && "$temp/constants"
}

constants_keep_their_values() {
  for release in $(releases); do
    # shellcheck disable=SC2046
    cat $(headers_of "$frozen/$release") |
      sed -n 's/^ *\(typedef enum [a-z_]* { \)\{0,1\}\(PITH_[A-Z0-9_]*\) = .*/\2/p; s/^  X(\([A-Z_]*\), [0-9]*, .*/PITH_\1/p' |
      grep -v 'PITH_ISA_COUNT' | sort -u >"$temp/names"
    [ "$(wc -l <"$temp/names")" -gt 40 ] || { echo "$release: found hardly any constants" && return 1; }
    constants "$frozen/$release" "$temp/names" >"$temp/old"
    constants "$root/include" "$temp/names" >"$temp/new"
    diff "$temp/old" "$temp/new"
  done
}

# For the tests that follow. Scalar kernels, not optimized.
a_library_to_come_is_built() {
  grown=$build/tests/grown
  mkdir -p "$grown/include/pith" "$grown/objects"
  rm -f "$grown"/include/pith/* "$grown"/objects/*
  for header in "$root"/include/pith/*.h; do
    awk -f "$frozen/grow.awk" "$header" >"$grown/include/pith/${header##*/}"
  done
  can=$(cat "$root"/include/pith/*.h | grep -A1 '^typedef struct pith_[a-z_]* {$' | grep -c '^  size_t size;')
  did=$(cat "$grown"/include/pith/*.h | grep -c '^  uint64_t pith_test_tail;$')
  [ "$can" -gt 20 ] && [ "$can" = "$did" ] || { echo "of $can structs that can grow $did have grown" && return 1; }
  cache=$(command -v ccache || true)
  find "$root/src" -name '*.c' ! -path '*/cli/*' ! -name avx2.c ! -name avx512.c -print0 |
    xargs -0 -P "$(nproc)" -n 8 sh -c 'to=$1 cache=$2 cc=$3 root=$4 && shift 4 && for file; do
      $cache $cc -std=c11 -D_GNU_SOURCE -O0 -fPIC -fvisibility=hidden -ffp-contract=off -I"$to/include" -I"$root/src" \
        -c "$file" -o "$to/objects/$(basename "$file" .c).o" || exit 255; done' sh "$grown" "$cache" "$CC" "$root"
  $CC -shared "$grown"/objects/*.o -o "$grown/libpith.so" -lpthread -lm -ldl
}

# build_program HEADERS NAME [OPTION…]: the program and its plug-in with these headers; the library comes when it runs.
build_program() {
  headers=$1 name=$2 && shift 2
  # shellcheck disable=SC2086
  $CC $flags "$@" -I"$headers" "$frozen/program.c" -o "$temp/$name" -L"$build" -lpith
  $CC -std=c11 -fPIC -shared -I"$headers" "$root/examples/plugin/float8.c" -o "$temp/$name.so" -lm
}

# run_with LIBRARY NAME: under the name that the program was linked with.
run_with() {
  soname=$(readelf -d "$build/libpith.so" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
  mkdir -p "$temp/lib" && rm -f "$temp"/lib/* && cp "$1" "$temp/lib/$soname"
  exits 0 env LD_LIBRARY_PATH="$temp/lib" "$temp/$2" "$temp/$2.so"
  says out '0 failures'
}

older_programs_and_plugins_run_today() {
  need readelf
  for release in $(releases); do
    build_program "$frozen/$release" "old$release"
    run_with "$build/libpith.so" "old$release"
  done
}

todays_programs_and_plugins_run_with_a_library_to_come() {
  need readelf
  build_program "$root/include" today
  run_with "$build/tests/grown/libpith.so" today
  for release in $(releases); do
    build_program "$frozen/$release" "older$release"
    run_with "$build/tests/grown/libpith.so" "older$release"
  done
}

programs_to_come_run_today_unless_they_ask_for_more() {
  need readelf
  build_program "$build/tests/grown/include" newer -DTAIL -Wno-missing-field-initializers
  run_with "$build/libpith.so" newer
}

run_tests structs_only_grow_at_their_end functions_keep_their_prototypes constants_keep_their_values \
  older_programs_and_plugins_run_today a_library_to_come_is_built todays_programs_and_plugins_run_with_a_library_to_come \
  programs_to_come_run_today_unless_they_ask_for_more
