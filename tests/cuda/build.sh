#!/bin/sh
# Builds the library, the CUDA module, its tests and its benchmark with gcc and nvcc alone, for machines without CMake.
#   tests/cuda/build.sh FOLDER [ARCHITECTURE]        sm_90 by default
set -eu
cd "$(dirname "$0")/../.."
out=$1 arch=${2:-sm_90}
mkdir -p "$out/o"
flags="-std=c11 -D_GNU_SOURCE -O2 -ffp-contract=off -fno-math-errno -fPIC -Iinclude -Isrc -Itests -Itests/cuda"
export flags out arch
{
  for file in src/base/*.c src/codec/*.c src/memory/*.c src/transport/*.c src/collective/*.c src/engine/*.c src/plan/*.c \
    src/kernel/kernel.c src/kernel/scalar.c tests/test.c tests/cuda/*.c; do
    echo "gcc $flags -c $file -o $out/o/$(basename "$file" .c).o"
  done
  for file in cuda/*.cu; do
    echo "nvcc -arch=$arch -std=c++17 -O3 -lineinfo -fmad=false -Isrc -Iinclude -Xcompiler -fPIC,-fvisibility=hidden -c $file -o $out/o/$(basename "$file").o"
  done
} | xargs -P "${JOBS:-16}" -I{} sh -c '{}'
nvcc -arch="$arch" -shared -o "$out/libpith_cuda.so" "$out"/o/*.cu.o
rm -f "$out/libpith.a" # an archive, so that programs take what they use
find "$out/o" -name '*.o' ! -name '*.cu.o' ! -name '*_test.o' ! -name '*_bench.o' ! -name test.o -exec ar rcs "$out/libpith.a" {} +
tests=$(find "$out/o" -name '*_test.o' ! -name nccl_test.o ! -name device_test.o)
# shellcheck disable=SC2086
gcc -rdynamic -o "$out/cuda_test" $tests "$out/o/test.o" "$out/libpith.a" -lm -ldl -lpthread
for program in nccl_test device_test cuda_bench; do
  gcc -rdynamic -o "$out/$program" "$out/o/$program.o" "$out/libpith.a" -lm -ldl -lpthread
done
