/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a CUDA module as the library does, with every symbol resolved at once, and asks for its table: the last step of
 * a build, so that a module that cannot be opened is never packed. Needs no GPU.
 *
 *   open_cuda_module FILE…
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "kernel/formats.h"

static int opens(const char *file) {
  pith_cuda_entry_fn entry;
  void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL), *symbol = handle ? dlsym(handle, PITH_CUDA_ENTRY) : NULL;
  if (!symbol) {
    fprintf(stderr, "%s cannot be opened: %s\n", file, dlerror());
    return 0;
  }
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast between the two kinds of pointers */
  if (entry()->abi != PITH_CUDA_ABI) {
    fprintf(stderr, "%s has ABI %u, not %d\n", file, entry()->abi, PITH_CUDA_ABI);
    return 0;
  }
  return 1;
}

int main(int count, char **files) {
  int failed = count < 2;
  for (int i = 1; i < count; i++) {
    failed |= !opens(files[i]);
  }
  return failed;
}
