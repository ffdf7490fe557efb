/* SPDX-License-Identifier: Apache-2.0 */
/* What the module's table calls for an optimizer's step. */
#pragma once

#include <cuda_runtime.h>

#include "kernel/formats.h"

cudaError_t pith__update_run(const pith_update_task *tasks, size_t count, cudaStream_t stream);
