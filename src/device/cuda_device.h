/* The CUDA module for the rest of the folder. */
#ifndef PITH_DEVICE_CUDA_DEVICE_H
#define PITH_DEVICE_CUDA_DEVICE_H

#include <pith/cuda.h>

#include "kernel/formats.h"

/* The module, opened at the first call; the error says why there is none. */
pith_status pith__cuda_module(const pith_cuda_module **module);

#endif
