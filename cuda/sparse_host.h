/* SPDX-License-Identifier: Apache-2.0 */
/* What the module's table calls for sparsifiers. */
#pragma once

#include <cuda_runtime.h>
#include <string.h>

#include "kernel/formats.h"

size_t pith__sparse_space(const pith_gpu_sparse *task);
cudaError_t pith__sparse_encode(const pith_gpu_sparse *tasks, size_t count, cudaStream_t stream);
cudaError_t pith__sparse_decode(const pith_gpu_sparse *tasks, size_t count, bool add, cudaStream_t stream);
