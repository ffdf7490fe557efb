/* Benchmarks of collectives, under pith run or mpirun. */
#ifndef PITH_CLI_BENCH_COLLECTIVE_H
#define PITH_CLI_BENCH_COLLECTIVE_H

typedef struct cli_collective cli_collective;

/* The collective of that name, or NULL. */
const cli_collective *cli_collective_find(const char *name);
int cli_bench_collective(const cli_collective *collective, int argc, char **argv);

#endif
