/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction sets this CPU has, and which one is in use. Adding one: a name here, a table in src/kernel/. */
#ifndef PITH_BASE_CPU_H
#define PITH_BASE_CPU_H

#include <pith/pith.h>

/* Whether the CPU and the operating system support it; says nothing about what was built. */
int pith__cpu_has(pith_isa isa);

/* What PITH_CPU asks for, or PITH_ISA_COUNT where it is unset. An unknown name is an error for people. */
pith_isa pith__cpu_wanted(void);

#endif
