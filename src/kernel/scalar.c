/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table for scalar. */
#include "kernel/simd_scalar.h"

#define KERNEL_TABLE pith__kernels_scalar
#include "kernel/body.h"
