#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The CUDA module is built by `make cuda` where nvcc is, opens on a machine without a GPU, and asks for nothing but libc. Where it cannot be
# built, one line says why.
. "$(dirname "$0")/../shell.sh"
nvcc=$(command -v nvcc) || nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
folder=$root/build-python # that of the Python package: nvcc takes minutes, and its objects are the same
module=$folder/libpith_cuda.so

need_nvcc() {
  need_plain_build
  [ -x "$nvcc" ] || skip "there is no nvcc"
}

# Configures in a folder of its own, and leaves what CMake says in out and err.
configure() { # CODE option…
  code=$1 && shift
  rm -rf "$temp/configured"
  exits "$code" cmake -S "$root" -B "$temp/configured" -DPITH_TESTS=OFF "$@"
}

lines_about_cuda() { grep -c "CUDA module" "$temp/out" || true; }

make_cuda_builds_the_module() {
  need_nvcc
  cd "$root"
  rm -f "$module" # whoever made it: it is linked and opened here
  exits 0 make cuda BUILD=build-python
  says out "CUDA module: sm_"
  [ -s "$module" ]
}

it_opens_without_a_gpu() {
  need_nvcc
  exits 0 "$folder/open_cuda_module" "$module"
}

it_needs_libc_alone() {
  need_nvcc
  need readelf
  readelf -d "$module" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' >"$temp/needed"
  grep -q '^libc\.so' "$temp/needed"
  ! grep -Ev '^(libc|libm|libdl|librt|libpthread|ld-linux-[a-z0-9-]*)\.so' "$temp/needed"
}

it_exports_its_entry_alone() {
  need_nvcc
  need nm
  [ "$(nm -D --defined-only "$module" | awk '{ print $3 }')" = pith_cuda_module_entry ]
}

the_library_finds_it_in_order() {
  need_nvcc
  exits 0 env PITH_MODULE_PATH="$folder" "$pith" doctor
  tr -s ' \n' '  ' <"$temp/out" >"$temp/err" # however it was wrapped
  grep -Eq "compute capability|is in order, but" "$temp/err" || { cat "$temp/out" && return 1; }
}

a_build_does_not_end_with_a_module_that_cannot_be_opened() {
  need_nvcc
  exits 1 "$folder/open_cuda_module" "$build/tests/broken/symbol/libpith_cuda.so"
  says err "undefined symbol: pith_symbol_that_nobody_defines"
  exits 1 "$folder/open_cuda_module" "$build/tests/broken/abi/libpith_cuda.so"
  says err "ABI"
}

without_nvcc_on_is_an_error() {
  need_plain_build
  need cmake
  configure 1 -DPITH_CUDA=ON -DPITH_NVCC=
  says err "there is no nvcc"
}

without_nvcc_auto_says_so_in_one_line() {
  need_plain_build
  need cmake
  configure 0 -DPITH_CUDA=AUTO -DPITH_NVCC=
  says out "CUDA module: not built: there is no nvcc"
  [ "$(lines_about_cuda)" = 1 ]
}

an_nvcc_that_does_not_work_is_not_used() {
  need_plain_build
  need cmake
  printf '#!/bin/sh\necho "broken toolkit" >&2\nexit 1\n' >"$temp/nvcc" && chmod +x "$temp/nvcc"
  configure 0 -DPITH_CUDA=AUTO -DPITH_NVCC="$temp/nvcc"
  says out "broken toolkit"
  [ "$(lines_about_cuda)" = 1 ]
}

an_architecture_that_nvcc_does_not_know_is_an_error() {
  need_nvcc
  configure 1 -DPITH_CUDA=ON -DPITH_CUDA_ARCHITECTURES=11
  says err "sm_11"
}

a_release_is_for_all_architectures() {
  need_nvcc
  configure 0 -DPITH_CUDA=ON -DPITH_CUDA_ARCHITECTURES=all
  says out "sm_80, sm_90"
  says out "PTX 75"
  [ "$(lines_about_cuda)" = 1 ]
}

nothing_is_built_unless_asked_for() {
  need_plain_build
  need cmake
  configure 0
  says out "CUDA module: not built (PITH_CUDA=ON or \`make cuda\` builds it)"
}

run_tests make_cuda_builds_the_module it_opens_without_a_gpu it_needs_libc_alone it_exports_its_entry_alone \
  the_library_finds_it_in_order a_build_does_not_end_with_a_module_that_cannot_be_opened without_nvcc_on_is_an_error \
  without_nvcc_auto_says_so_in_one_line an_nvcc_that_does_not_work_is_not_used an_architecture_that_nvcc_does_not_know_is_an_error \
  a_release_is_for_all_architectures nothing_is_built_unless_asked_for
