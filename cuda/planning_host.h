/* What the module's table calls for the planner. */
#pragma once

#include <cuda_runtime.h>

#include "kernel/formats.h"

size_t pith__errors_space(const pith_gpu_task *tasks, size_t count);
cudaError_t pith__errors_run(const pith_gpu_task *tasks, size_t count, double *errors, void *space,
                             cudaStream_t stream);
cudaError_t pith__magnitudes_run(const void *values, int dtype, size_t n, uint64_t *counts, double *energies,
                                 cudaStream_t stream);
