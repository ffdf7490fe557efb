/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of gradients in device memory, for the planner: a measurer (src/profile/measure.h). */
#ifndef PITH_DEVICE_CUDA_STATISTICS_H
#define PITH_DEVICE_CUDA_STATISTICS_H

#include "device/cuda_space.h"
#include "profile/measure.h"

/* Everything is enqueued on the stream of the space, which lives longer. Nothing is allocated before the first use. */
pith_status pith__cuda_measurer_create(pith_cuda_space *space, pith_measurer **measurer);

#endif
