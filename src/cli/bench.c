/* `pith bench`: which measurement is meant. Operations between ranks are in bench_collective.c, codecs in bench_codec.c. */
#include <stdio.h>
#include <string.h>

#include "cli/bench_collective.h"
#include "cli/cli.h"

#define THERE_IS "there is: codec, " CLI_COLLECTIVES

int cli_bench(int argc, char **argv) {
  if (argc == 0) {
    return cli_fail(CLI_USAGE, "bench what? " THERE_IS);
  }
  if (!strcmp(argv[0], "codec")) {
    return cli_bench_codec(argc - 1, argv + 1);
  }
  if (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h")) {
    printf("What can be measured: codec, on this machine alone, and between ranks\n  %s.\n"
           "\"pith bench NAME --help\" lists the options of each; those of codec:\n\n",
           CLI_COLLECTIVES);
    return cli_bench_codec(argc, argv);
  }
  const cli_collective *collective = cli_collective_find(argv[0]);
  return collective ? cli_bench_collective(collective, argc - 1, argv + 1)
                    : cli_fail(CLI_USAGE, "bench: cannot measure \"%s\"; " THERE_IS, argv[0]);
}
