/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA module for the rest of the folder. */
#ifndef PITH_DEVICE_CUDA_DEVICE_H
#define PITH_DEVICE_CUDA_DEVICE_H

#include <pith/cuda.h>

#include "base/status.h"
#include "kernel/formats.h"

/* The module, opened at the first call; the error says why there is none. */
pith_status pith__cuda_module(const pith_cuda_module **module);

/* Calls a function of the module, whose last argument is room for what went wrong, and returns its error. */
#define PITH_CUDA_TRY(function, ...)                                                           \
  do {                                                                                         \
    char cuda_text[256];                                                                       \
    PITH_REQUIRE(!(function)(__VA_ARGS__, cuda_text), PITH_ERR_SYSTEM, "CUDA: %s", cuda_text); \
  } while (0)

#endif
