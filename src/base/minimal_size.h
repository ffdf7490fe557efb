/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many values a tensor must have to be compressed if no rule names it: the public setting, or PITH_MINIMAL_SIZE,
 * or 1024. Rules and profiles ask for it when they are made.
 */
#ifndef PITH_BASE_MINIMAL_SIZE_H
#define PITH_BASE_MINIMAL_SIZE_H

#include <stddef.h>

/* A phrase for statistics, "under 1024 values". */
typedef struct pith_small_reason {
  char text[48];
} pith_small_reason;

pith_small_reason pith__small_reason(size_t minimal);

#endif
