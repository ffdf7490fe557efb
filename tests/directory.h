/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of all ranks in an array, as a transport asks for them. */
#ifndef PITH_TESTS_DIRECTORY_H
#define PITH_TESTS_DIRECTORY_H

#include "transport/transport.h"

static inline pith_status directory_find(const void *from, int rank, pith_address *address) {
  *address = ((const pith_address *)from)[rank];
  return PITH_OK;
}

static inline pith_directory directory_of(const pith_address *addresses) {
  return (pith_directory){directory_find, addresses};
}

#endif
