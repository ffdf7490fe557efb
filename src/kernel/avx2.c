/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table for avx2. */
#include "kernel/simd_avx2.h"

#define KERNEL_TABLE pith__kernels_avx2
#include "kernel/body.h"
