/* SPDX-License-Identifier: Apache-2.0 */
/* `pith bench`: which measurement is meant. Operations between ranks are in bench_collective.c, codecs in
 * bench_codec.c. */
#include <string.h>

#include "cli/bench/bench.h"
#include "cli/bench/bench_collective.h"

int cli_bench_part(size_t index, cli_part *part) {
  if (index == 0) {
    *part = (cli_part){"codec", "speed and error of methods, on one thread of this machine"};
    return 1;
  }
  const cli_collective *collective = cli_collective_get(index - 1);
  if (collective) {
    *part = (cli_part){collective->name, collective->summary};
  }
  return collective != NULL;
}

int cli_bench(int argc, char **argv) {
  if (argc && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) {
    return cli_parts_help("bench", cli_bench_part,
                          "Measures methods on this machine, or operations between ranks that pith run, pith lab, "
                          "mpirun or torchrun started.");
  }
  if (argc && !strcmp(argv[0], "codec")) {
    return cli_bench_codec(argc - 1, argv + 1);
  }
  const cli_collective *collective = argc ? cli_collective_find(argv[0]) : NULL;
  return collective ? cli_bench_collective(collective, argc - 1, argv + 1)
                    : cli_parts_unknown("bench", cli_bench_part, argc ? argv[0] : NULL);
}
