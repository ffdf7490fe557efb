/* SPDX-License-Identifier: Apache-2.0 */
/* What the module's table calls for the planner. */
#pragma once

#include <cuda_runtime.h>

#include "kernel/formats.h"

cudaError_t pith__sample_run(const pith_gpu_sample *task, cudaStream_t stream);
cudaError_t pith__magnitudes_run(const pith_gpu_magnitudes *task, cudaStream_t stream);
cudaError_t pith__uniform_run(const pith_gpu_uniform *task, cudaStream_t stream);
cudaError_t pith__differences_run(const pith_gpu_difference *tasks, size_t count, void *space, cudaStream_t stream);
cudaError_t pith__keep_run(const double *flag, float *to, const float *from, size_t n, cudaStream_t stream);
cudaError_t pith__stamp_run(double *nanoseconds, cudaStream_t stream);
