/* SPDX-License-Identifier: Apache-2.0 */
/* What the operating system says about this machine. */
#ifndef PITH_CLI_MACHINE_H
#define PITH_CLI_MACHINE_H

#include <stddef.h>

typedef struct cli_machine {
  char cpu[128], system[256];
  size_t cores, usable_cores;      /* those this process may run on */
  size_t memory, available_memory; /* bytes */
  size_t cache[4];                 /* bytes of level 1 (data), 2, 3, 4; 0 where there is none or it is unknown */
  int gpu_device, gpu_library;     /* /dev/nvidia0 is there; the CUDA driver library can be opened */
} cli_machine;

void cli_machine_look(cli_machine *machine);

#endif
