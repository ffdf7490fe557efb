/* SPDX-License-Identifier: Apache-2.0 */
/* lossless on a device: what lossless.cu offers to module.cu. */
#pragma once

#include <cuda_runtime.h>

#include "kernel/formats.h"

cudaError_t pith__lossless_encode(const pith_gpu_lossless *tasks, size_t count, cudaStream_t stream);
cudaError_t pith__lossless_decode(const pith_gpu_lossless *tasks, size_t count, bool add, cudaStream_t stream);
