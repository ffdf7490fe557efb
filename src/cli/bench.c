/* `pith bench`: which measurement is meant. Collectives are in bench_collective.c, codecs in bench_codec.c. */
#include <string.h>

#include "cli/bench_collective.h"
#include "cli/cli.h"

#define THERE_IS "there is: codec, allreduce, reduce_scatter, all_gather, all_to_all, broadcast"

int cli_bench(int argc, char **argv) {
  if (argc == 0) {
    return cli_fail(CLI_USAGE, "bench what? " THERE_IS);
  }
  if (!strcmp(argv[0], "codec")) {
    return cli_bench_codec(argc - 1, argv + 1);
  }
  if (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h")) {
    return cli_bench_codec(argc, argv);
  }
  const cli_collective *collective = cli_collective_find(argv[0]);
  return collective ? cli_bench_collective(collective, argc - 1, argv + 1)
                    : cli_fail(CLI_USAGE, "bench: cannot measure \"%s\"; " THERE_IS, argv[0]);
}
