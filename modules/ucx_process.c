/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes of this machine, by what names one for certain, and a descriptor that tells when it ends. A zombie has
 * ended, too, which looking for its number would not tell.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "modules/ucx.h"

static size_t read_text(const char *path, char *text, size_t size) {
  FILE *file = fopen(path, "re");
  size_t got = file ? fread(text, 1, size - 1, file) : 0;
  text[got] = 0;
  if (file) {
    fclose(file);
  }
  return got;
}

/* When a process began, in ticks since the machine did; 0 if there is none. Its name may hold anything, brackets too.
 */
static uint64_t start_of(uint64_t pid) {
  char path[64], text[1024];
  unsigned long long started = 0;
  snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
  size_t size = read_text(path, text, sizeof text);
  const char *rest = size ? strrchr(text, ')') : NULL;
  for (int field = 2; rest && field < 22; field++) { /* the 22nd */
    rest = strchr(rest + 1, ' ');
  }
  return rest && sscanf(rest, "%llu", &started) == 1 ? started : 0;
}

ucx_process pith__ucx_this_process(void) {
  char boot[64];
  struct stat space;
  size_t size = read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
  ucx_process here = {.pid = (uint64_t)getpid(), .started = start_of((uint64_t)getpid())};
  here.machine = (uint64_t)checksum(boot, size, 1) << 32 | checksum(boot, size, 2);
  here.space = stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
  return here;
}

int pith__ucx_watch(const ucx_process *process) {
  ucx_process here = pith__ucx_this_process();
  if (process->machine != here.machine || process->space != here.space || !here.space || process->pid == here.pid) {
    return -1;
  }
  int fd = (int)syscall(SYS_pidfd_open, (pid_t)process->pid, 0); /* always CLOEXEC */
  if (fd >= 0 && start_of(process->pid) != process->started) {   /* the number has been used again */
    close(fd);
    return -1;
  }
  return fd;
}
