/* SPDX-License-Identifier: Apache-2.0 */
/* CPU detection. AVX-512 means the subset that all server and desktop CPUs with it since 2017 share (F, BW, DQ, VL). */
#include "base/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

const char *pith_isa_name(pith_isa isa) {
  static const char *const names[PITH_ISA_COUNT] = {"scalar", "avx2", "avx512"};
  return (unsigned)isa < PITH_ISA_COUNT ? names[isa] : "?";
}

int pith__cpu_has(pith_isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case PITH_ISA_SCALAR:
      return 1;
    case PITH_ISA_AVX2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    case PITH_ISA_AVX512:
      return pith__cpu_has(PITH_ISA_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    default:
      return 0;
  }
#else
  return isa == PITH_ISA_SCALAR;
#endif
}

pith_isa pith__cpu_wanted(void) {
  const char *wanted = getenv("PITH_CPU");
  if (!wanted || !*wanted) {
    return PITH_ISA_COUNT;
  }
  for (int i = 0; i < PITH_ISA_COUNT; i++) {
    if (!strcasecmp(wanted, pith_isa_name((pith_isa)i))) {
      return (pith_isa)i;
    }
  }
  fprintf(stderr, "pith: PITH_CPU=%s is not one of scalar, avx2, avx512; using the best this CPU has\n", wanted);
  return PITH_ISA_COUNT;
}
