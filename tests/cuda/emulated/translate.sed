# SPDX-License-Identifier: Apache-2.0
# From CUDA C++ to the C++ of cuda_runtime.h beside this: launches, dynamic shared memory, and the clock.
s/<<</->*pith_launch(/g
s/>>>\(/)(/g
s/extern __shared__ (__align__\([0-9]+\) )?(\w+) (\w+)\[\];/\2 *\3 = (\2 *)pith_dynamic_shared();/
s/asm volatile\("mov\.u64 %0, %+globaltimer;" : "=l"\((\w+)\)\);/\1 = pith_nanoseconds();/
