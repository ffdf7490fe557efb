/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA modules that must be refused, all made of this file: each is built with one of the macros. */
#include "kernel/formats.h"

#define EXPORTED __attribute__((visibility("default")))

#ifdef BROKEN_SYMBOL
extern int pith_symbol_that_nobody_defines(void);
EXPORTED const pith_cuda_module *pith_cuda_module_entry(void);
const pith_cuda_module *pith_cuda_module_entry(void) {
  static pith_cuda_module module = {.abi = PITH_CUDA_ABI};
  return pith_symbol_that_nobody_defines() ? &module : 0;
}
#endif

#ifdef BROKEN_ENTRY
EXPORTED int pith_something_else(void);
int pith_something_else(void) { return 1; }
#endif

#ifdef BROKEN_ABI
EXPORTED const pith_cuda_module *pith_cuda_module_entry(void);
const pith_cuda_module *pith_cuda_module_entry(void) {
  static const pith_cuda_module module = {.abi = PITH_CUDA_ABI + 1};
  return &module;
}
#endif
