/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc and asks libc. What cannot be found out stays empty or 0: this is information, nothing depends on it. */
#include "cli/base/machine.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Copies what stands after "key … :" in a file of such lines. */
static void find_line(const char *path, const char *key, char *text, size_t size) {
  FILE *file = fopen(path, "r");
  char line[512];
  text[0] = 0;
  while (file && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (colon && !strncmp(line, key, strlen(key))) {
      colon += 1 + strspn(colon + 1, " \t");
      colon[strcspn(colon, "\n")] = 0;
      snprintf(text, size, "%s", colon);
      break;
    }
  }
  if (file) {
    fclose(file);
  }
}

static size_t ask(int name) {
  long value = sysconf(name);
  return value > 0 ? (size_t)value : 0;
}

static size_t count_usable_cores(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? (size_t)CPU_COUNT(&set) : 0;
}

static size_t read_available_memory(void) {
  char text[64];
  find_line("/proc/meminfo", "MemAvailable", text, sizeof text);
  return (size_t)strtoull(text, NULL, 10) * 1024;
}

static int can_open(const char *library) {
  void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle) {
    dlclose(handle);
  }
  return handle != NULL;
}

void cli_machine_look(cli_machine *machine) {
  struct utsname os;
  *machine = (cli_machine){.cores = ask(_SC_NPROCESSORS_ONLN), .usable_cores = count_usable_cores()};
  find_line("/proc/cpuinfo", "model name", machine->cpu, sizeof machine->cpu);
  if (uname(&os) == 0) {
    snprintf(machine->system, sizeof machine->system, "%s %s %s", os.sysname, os.release, os.machine);
  }
  machine->memory = ask(_SC_PHYS_PAGES) * ask(_SC_PAGESIZE);
  machine->available_memory = read_available_memory();
  static const int caches[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE,
                               _SC_LEVEL4_CACHE_SIZE};
  for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) {
    machine->cache[i] = ask(caches[i]);
  }
  machine->gpu_device = access("/dev/nvidia0", F_OK) == 0;
  machine->gpu_library = can_open("libcuda.so.1");
}
