/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan takes on a network that is not there: the algorithm that the library would choose for each layer, and the
 * time that its model expects. `pith sim` has the topologies. */
#include <stdio.h>
#include <string.h>

#include "cli/base/page.h"
#include "cli/base/table.h"
#include "cli/plan/plan_command.h"
#include "cli/sim/sim.h"

enum { RANKS_MOST = 32767 };

int cli_plan_topology(const char *path, size_t ranks, pith_sim_topology *topology) {
  cli_sim_setup setup = {.topology = PITH_SIM_TOPOLOGY_INIT};
  int code = cli_sim_read(&setup, path);
  if (code != CLI_OK) {
    return code;
  }
  if (ranks < 2 || ranks > RANKS_MOST) {
    return cli_fail(CLI_USAGE, "plan make: --ranks %zu: a topology has 2 to %d", ranks, RANKS_MOST);
  }
  cli_sim_ranks(&setup, (int)ranks);
  *topology = setup.topology;
  return CLI_OK;
}

static pith_status estimate(const pith_sim_topology *t, const pith_plan_layer *layer, const char **algorithm,
                            double *seconds) {
  pith_codec *codec = NULL;
  pith_status status = strcmp(layer->spec, "none") != 0 ? pith_codec_create(layer->spec, &codec) : PITH_OK;
  if (status == PITH_OK) {
    status = pith_sim_estimate(t, codec, layer->n ? layer->n : 1, PITH_F32, algorithm, seconds);
  }
  pith_codec_destroy(codec);
  return status;
}

int cli_plan_print_algorithms(const pith_plan *plan, const pith_sim_topology *t) {
  cli_table table = {.columns = 4,
                     .column = {{.title = "layer"},
                                {.title = "spec"},
                                {.title = "algorithm", .right = 1, .width = 12},
                                {.title = "time", .right = 1, .width = 10}}};
  pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
  double sum = 0;
  for (size_t i = 0; pith_plan_layer_get(plan, i, &layer) == PITH_OK; i++) {
    cli_table_fit(&table, 0, layer.name);
    cli_table_fit(&table, 1, layer.spec);
  }
  putchar('\n');
  cli_table_head(&table);
  for (size_t i = 0; pith_plan_layer_get(plan, i, &layer) == PITH_OK; i++) {
    const char *algorithm = NULL;
    double seconds = 0;
    char time[32];
    pith_status status = estimate(t, &layer, &algorithm, &seconds);
    if (status != PITH_OK) {
      return cli_plan_failed("make", status);
    }
    sum += seconds;
    snprintf(time, sizeof time, "%.3f ms", 1e3 * seconds);
    cli_table_row(&table, (const char *const[]){layer.name, layer.spec, algorithm, time});
  }
  cli_say(stdout, "", "%d ranks on %d hosts: %.3f ms, one layer after another, as the cost model expects it", t->ranks,
          t->hosts, 1e3 * sum);
  return CLI_OK;
}
