/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a table once, at first use: the best that was built and that the CPU has, unless PITH_CPU names another. */
#include "kernel/kernel.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/cpu.h"
#include "base/log.h"
#include "base/status.h"

static _Atomic(const pith_kernels *) current;

static const pith_kernels *const tables[PITH_ISA_COUNT] = {
    [PITH_ISA_SCALAR] = &pith__kernels_scalar,
#if PITH_WITH_AVX2
    [PITH_ISA_AVX2] = &pith__kernels_avx2,
#endif
#if PITH_WITH_AVX512
    [PITH_ISA_AVX512] = &pith__kernels_avx512,
#endif
};

const pith_kernels *pith__kernels_of(pith_isa isa) {
  return (unsigned)isa < PITH_ISA_COUNT && pith__cpu_has(isa) ? tables[isa] : NULL;
}

int pith_isa_available(pith_isa isa) { return pith__kernels_of(isa) != NULL; }

static const pith_kernels *choose(void) {
  pith_isa wanted = pith__cpu_wanted();
  if (wanted != PITH_ISA_COUNT) {
    const pith_kernels *table = pith__kernels_of(wanted);
    if (table) {
      return table;
    }
    fprintf(stderr, "pith: PITH_CPU=%s is not available here; using the best this CPU has\n", pith_isa_name(wanted));
  }
  for (int isa = PITH_ISA_COUNT - 1; isa > 0; isa--) {
    if (pith__kernels_of((pith_isa)isa)) {
      return tables[isa];
    }
  }
  return tables[PITH_ISA_SCALAR];
}

const pith_kernels *pith__kernels(void) {
  const pith_kernels *table = atomic_load_explicit(&current, memory_order_acquire);
  if (!table) { /* two threads may both choose; they choose the same */
    table = choose();
    atomic_store_explicit(&current, table, memory_order_release);
    PITH_LOG_INFO("kernels: %s", pith_isa_name(pith_isa_current()));
  }
  return table;
}

pith_isa pith_isa_current(void) {
  const pith_kernels *table = pith__kernels();
  for (int isa = 0; isa < PITH_ISA_COUNT; isa++) {
    if (tables[isa] == table) {
      return (pith_isa)isa;
    }
  }
  return PITH_ISA_SCALAR;
}

pith_status pith_isa_select(pith_isa isa) {
  const pith_kernels *table = pith__kernels_of(isa);
  PITH_REQUIRE(table, PITH_ERR_UNSUPPORTED, "%s kernels are not available: not built in, or not in this CPU",
               pith_isa_name(isa));
  atomic_store_explicit(&current, table, memory_order_release);
  return PITH_OK;
}
