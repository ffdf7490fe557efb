/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines as the variables of a launcher, each NAME=value: an error, or a rank below the size and a host that ends. The
 * lists of Slurm come from there as well.
 */
#include "fuzz/fuzz.h"
#include "transport/launcher.h"

enum { LINES_MOST = 64 };

static char *lines[LINES_MOST];
static int count;

static const char *get(const char *name) {
  size_t length = strlen(name);
  for (int i = 0; i < count; i++) {
    if (strncmp(lines[i], name, length) == 0 && lines[i][length] == '=') {
      return lines[i] + length + 1;
    }
  }
  return NULL;
}

static void split(char *text) {
  count = 0;
  for (char *line = text; line && count < LINES_MOST;) {
    char *end = strchr(line, '\n');
    lines[count++] = line;
    if (end) {
      *end++ = 0;
    }
    line = end;
  }
}

static void check_launch(const pith_launch *launch) {
  FUZZ_REQUIRE(launch->launcher && launch->launcher[0]);
  FUZZ_REQUIRE(launch->ranks > 0 && launch->rank >= 0);
  FUZZ_REQUIRE(launch->port >= 0);
  FUZZ_REQUIRE(memchr(launch->host, 0, sizeof launch->host));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pith_launch launch;
  char *text = malloc(size + 1), host[16];
  FUZZ_REQUIRE(text);
  memcpy(text, data, size);
  text[size] = 0;
  if (pith__slurm_first_host(text, host, sizeof host)) {
    FUZZ_REQUIRE(memchr(host, 0, sizeof host) && host[0]);
  }
  FUZZ_REQUIRE(pith__slurm_tasks(text, (int)(size % 7)) >= -1);
  split(text);
  if (pith__launch_read(get, &launch) == PITH_OK) {
    check_launch(&launch);
    FUZZ_REQUIRE(launch.port < 65536);
  } else {
    FUZZ_REQUIRE(pith_error()[0]);
  }
  pith__launch_given(get, 1, 2, &launch);
  check_launch(&launch);
  free(text);
  return 0;
}
