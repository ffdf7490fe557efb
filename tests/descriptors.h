/* SPDX-License-Identifier: Apache-2.0 */
/* How many descriptors this process has open: the same before and after something that leaks none. */
#ifndef PITH_TESTS_DESCRIPTORS_H
#define PITH_TESTS_DESCRIPTORS_H

#include <dirent.h>
#include <stdlib.h>

static inline int count_descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  if (!folder) {
    abort(); /* or nothing would ever leak */
  }
  while (readdir(folder)) {
    count++;
  }
  closedir(folder);
  return count;
}

#endif
