/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table for avx512. */
#include "kernel/simd_avx512.h"

#define KERNEL_TABLE pith__kernels_avx512
#include "kernel/body.h"
