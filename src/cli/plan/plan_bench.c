/* SPDX-License-Identifier: Apache-2.0 */
/* `pith plan bench`: how long planning takes here, on made-up models of many layers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cli/base/cli.h"
#include "cli/base/table.h"
#include "cli/plan/plan_command.h"

enum { CANDIDATES = 10, HEAD = 4 };
static const char candidates[] = "q:1;q:2;q:3;q:4;q:5;q:6;q:7;q:8;bf16;none";

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A few odd numbers, the same on every machine. */
static double odd(uint64_t *seed) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (double)(*seed >> 11) * 0x1p-53;
}

/* Layers from 2^12 to 2^24 values with norms of any size; an error falls by about four for each bit, not quite
 * evenly. */
static void invent(pith_profile *profile) {
  size_t count;
  double *v = pith_profile_values(profile, &count);
  uint64_t seed = 1;
  for (size_t l = 0; l < pith_profile_layers(profile); l++, v += HEAD + 2 * CANDIDATES) {
    pith_profile_layer layer = PITH_PROFILE_LAYER_INIT;
    pith_profile_layer_get(profile, l, &layer);
    double norm = exp(8 * odd(&seed) - 4), error = norm;
    v[0] = 1, v[2] = norm, v[3] = norm / 4;
    for (int c = 0; c < CANDIDATES; c++) {
      double bits = c < 8 ? c + 1.125 : c == 8 ? 16 : 32;
      error *= 0.15 + 0.2 * odd(&seed);
      v[HEAD + c] = ceil(bits * (double)layer.n / 8);
      v[HEAD + CANDIDATES + c] = c == CANDIDATES - 1 ? 0 : error;
    }
  }
}

static pith_profile *create(size_t layers) {
  pith_profile *profile = NULL;
  char(*name)[24] = calloc(layers, sizeof *name);
  size_t(*shape)[2] = calloc(layers, sizeof *shape);
  pith_layer *list = calloc(layers, sizeof *list);
  uint64_t seed = 7;
  for (size_t l = 0; name && shape && list && l < layers; l++) {
    snprintf(name[l], sizeof *name, "layer%zu.weight", l);
    shape[l][0] = 64;
    shape[l][1] = (size_t)exp2(6 + 12 * odd(&seed));
    list[l] = (pith_layer){sizeof(pith_layer), name[l], shape[l], 2, PITH_F32, NULL};
  }
  if (!name || !shape || !list || pith_profile_create(list, layers, candidates, &profile) != PITH_OK) {
    exit(cli_fail(CLI_FAILED, "plan bench: %s", name && shape && list ? pith_error() : "out of memory"));
  }
  free(name);
  free(shape);
  free(list);
  return profile;
}

static int compare_times(const void *a, const void *b) {
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* The median of several runs, whose times are kept in `times`, and what the plan gains over uniform q:4. */
static double time_plan(const pith_profile *profile, const pith_plan_request *request, double *times,
                        size_t repetitions, double *gain) {
  for (size_t i = 0; i < repetitions; i++) {
    pith_plan *plan, *uniform;
    pith_plan_info mine = PITH_PLAN_INFO_INIT, other = PITH_PLAN_INFO_INIT;
    double start = now();
    if (pith_plan_make(profile, request, &plan) != PITH_OK) {
      exit(cli_fail(CLI_FAILED, "plan bench: %s", pith_error()));
    }
    times[i] = now() - start;
    if (pith_plan_uniform(profile, "q:4", &uniform) == PITH_OK) {
      pith_plan_info_get(plan, &mine);
      pith_plan_info_get(uniform, &other);
      *gain = mine.bytes / other.bytes;
      pith_plan_destroy(uniform);
    }
    pith_plan_destroy(plan);
  }
  qsort(times, repetitions, sizeof *times, compare_times);
  return times[repetitions / 2];
}

/* How long the exchange of uniform q:4 takes by itself: a backward pass of that length hides about half of it. */
static double exchange_seconds(const pith_profile *profile, const pith_plan_cost *cost) {
  pith_plan *uniform;
  double seconds = 0;
  if (pith_plan_uniform(profile, "q:4", &uniform) == PITH_OK) {
    pith_plan_seconds(uniform, profile, cost, &seconds);
    pith_plan_destroy(uniform);
  }
  return seconds;
}

static void bench_size(const cli_table *table, size_t layers, double *times, size_t repetitions) {
  static const char *const names[] = {
      "lgreco, bytes", "lgreco, time", "lgreco, time, partly hidden", "kmeans", "cgxkmeans", "linear", "best", "bayes"};
  static const pith_plan_method methods[] = {PITH_PLAN_LGRECO, PITH_PLAN_LGRECO, PITH_PLAN_LGRECO, PITH_PLAN_KMEANS,
                                             PITH_PLAN_CGX,    PITH_PLAN_LINEAR, PITH_PLAN_BEST,   PITH_PLAN_BAYES};
  pith_profile *profile = create(layers);
  invent(profile);
  for (int i = 0; i < 8; i++) {
    pith_plan_cost cost = {.size = sizeof cost, .ranks = 4, .bandwidth = 1.25e8};
    pith_plan_request request = {.size = sizeof request, .uniform = "q:4", .families = "mix", .cost = &cost};
    char count[24], options[24], milliseconds[24], share[24];
    double gain = 0;
    cost.compute = i == 2 ? exchange_seconds(profile, &cost) : 0;
    request.method = methods[i];
    request.objective = i == 1 || i == 2 ? PITH_PLAN_TIME : PITH_PLAN_BYTES;
    snprintf(milliseconds, sizeof milliseconds, "%.2f", 1e3 * time_plan(profile, &request, times, repetitions, &gain));
    snprintf(count, sizeof count, "%zu", layers);
    snprintf(options, sizeof options, "%d", CANDIDATES);
    snprintf(share, sizeof share, "%.3f", gain);
    cli_table_row(table, (const char *const[]){names[i], count, options, milliseconds, share});
  }
  pith_profile_destroy(profile);
}

int cli_plan_bench(int argc, char **argv) {
  size_t repetitions = 7;
  const cli_option options[] = {
      {"-n", CLI_POSITIVE, &repetitions, "COUNT", "repetitions (7); medians are printed"},
      {.name = NULL},
  };
  const cli_usage usage = {"plan bench", NULL, "Measures how long planning takes, on made-up models.", options};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, NULL);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  double *times = calloc(repetitions, sizeof *times);
  if (!times) {
    return cli_fail(CLI_FAILED, "plan bench: out of memory for %zu repetitions", repetitions);
  }
  cli_table table = {.columns = 5,
                     .column = {{.title = "method", .width = 27},
                                {.title = "layers", .right = 1},
                                {.title = "candidates", .right = 1},
                                {.title = "ms", .right = 1, .width = 8},
                                {.title = "bytes/uniform", .right = 1}}};
  cli_table_head(&table);
  bench_size(&table, 100, times, repetitions);
  bench_size(&table, 1000, times, repetitions);
  free(times);
  return CLI_OK;
}
