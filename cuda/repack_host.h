/* SPDX-License-Identifier: Apache-2.0 */
/* What the module's table calls for residuals that go from one store to another. */
#pragma once

#include <cuda_runtime.h>

#include "kernel/formats.h"

cudaError_t pith__repack_run(const pith_repack_task *tasks, size_t count, cudaStream_t stream);
