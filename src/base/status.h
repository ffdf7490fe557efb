/* SPDX-License-Identifier: Apache-2.0 */
/* Failing with a sentence. The function that first decides an error calls pith_fail() once; all others pass it on. */
#ifndef PITH_BASE_STATUS_H
#define PITH_BASE_STATUS_H

#include <pith/plugin.h>
#include <stdlib.h>
#include <string.h>

#define PITH_TRY(call)                    \
  do {                                    \
    pith_status pith_try_status = (call); \
    if (pith_try_status != PITH_OK) {     \
      return pith_try_status;             \
    }                                     \
  } while (0)

/* Returns from the calling function unless the condition holds. */
#define PITH_REQUIRE(condition, status, ...)   \
  do {                                         \
    if (!(condition)) {                        \
      return pith_fail((status), __VA_ARGS__); \
    }                                          \
  } while (0)

/* Memory that is freed at the end of the block it is declared in, on every way out:
 * PITH_FREED float *sums = malloc(…); */
#define PITH_FREED __attribute__((cleanup(pith__free_at)))

static inline void pith__free_at(void *pointer) {
  void *memory;
  memcpy(&memory, pointer, sizeof memory);
  free(memory);
}

/* The thread's last error, aside: destroying an object is no call whose errors anybody wants instead. */
typedef struct pith_kept_error {
  char text[768];
} pith_kept_error;

void pith__error_keep(pith_kept_error *kept);
void pith__error_restore(const pith_kept_error *kept);

#endif
