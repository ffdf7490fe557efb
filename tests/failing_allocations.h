/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that fail on demand. The linker sends those of a test program that includes this through the functions
 * below
 * (--wrap, tests/CMakeLists.txt); no other file of the program may include it.
 */
#ifndef PITH_TESTS_FAILING_ALLOCATIONS_H
#define PITH_TESTS_FAILING_ALLOCATIONS_H

#include <stdlib.h>
#include <string.h>

#include "test.h"

static long allowed = -1; /* allocations until the one that fails; negative: none fails */
static int has_failed;

static int may_allocate(void) {
  if (allowed == 0) {
    has_failed = 1;
  }
  return allowed < 0 || allowed-- > 0;
}

#define WRAP(type, name, parameters, arguments) \
  type __real_##name parameters;                \
  type __wrap_##name parameters;                \
  type __wrap_##name parameters { return may_allocate() ? __real_##name arguments : NULL; }

WRAP(void *, malloc, (size_t size), (size))
WRAP(void *, calloc, (size_t n, size_t size), (n, size))
WRAP(void *, realloc, (void *old, size_t size), (old, size))
WRAP(void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size))
WRAP(char *, strdup, (const char *text), (text))
WRAP(char *, strndup, (const char *text, size_t size), (text, size))

int __real_posix_memalign(void **memory, size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
  return may_allocate() ? __real_posix_memalign(memory, alignment, size) : 12; /* ENOMEM */
}

#endif
