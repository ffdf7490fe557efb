/* SPDX-License-Identifier: Apache-2.0 */
/* What `pith sim` has found, as a table and as JSON. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/base/json.h"
#include "cli/base/page.h"
#include "cli/base/table.h"
#include "cli/sim/sim.h"

enum {
  RANKS,
  HOSTS,
  CODEC,
  ALGORITHM,
  TIME,
  INSIDE,
  NIC,
  SWITCH,
  RACK,
  STEPS,
  ENCODINGS,
  MEMORY,
  PEERS,
  CHOICE,
  WORSE,
  COLUMN_COUNT
};
enum { CELL_MAX = 64 };

static const char *time_text(double seconds, char *text) {
  const char *unit = seconds < 1e-3 ? "us" : seconds < 1 ? "ms" : "s";
  double scale = seconds < 1e-3 ? 1e6 : seconds < 1 ? 1e3 : 1;
  snprintf(text, CELL_MAX, "%.*f %s",
           seconds * scale < 9.995   ? 2
           : seconds * scale < 99.95 ? 1
                                     : 0,
           seconds * scale, unit);
  return text;
}

static const char *bytes_text(uint64_t bytes, char *text) {
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  double number = (double)bytes;
  size_t unit = 0;
  while (number >= 1000 && unit + 1 < sizeof units / sizeof *units) {
    number /= 1000;
    unit++;
  }
  snprintf(text, CELL_MAX, "%.*f %s", !unit || number >= 100 ? 0 : number >= 10 ? 1 : 2, number, units[unit]);
  return text;
}

static const cli_sim_row *best_of(const cli_sim_rows *rows, const cli_sim_row *row) {
  for (size_t i = 0; i < rows->count; i++) {
    const cli_sim_row *other = &rows->row[i];
    if (other->is_best && other->ranks == row->ranks && other->hosts == row->hosts && other->spec == row->spec) {
      return other;
    }
  }
  return NULL;
}

/* With auto there is one row, and it names the best. */
static void choice_text(const cli_sim_rows *rows, const cli_sim_row *row, int is_auto, char *text) {
  const cli_sim_row *best = best_of(rows, row);
  *text = 0;
  if (is_auto) {
    snprintf(text, CELL_MAX, "%s", best ? best->result.algorithm : "");
  } else if (row->is_auto || row->is_best) {
    snprintf(text, CELL_MAX, "%s%s%s", row->is_auto ? "auto" : "", row->is_auto && row->is_best ? ", " : "",
             row->is_best ? "best" : "");
  }
}

static void print_row(const cli_table *table, const cli_sim_rows *rows, const cli_sim_row *row, int is_auto) {
  const pith_sim_result *r = &row->result;
  char text[COLUMN_COUNT][CELL_MAX];
  const char *cells[COLUMN_COUNT];
  snprintf(text[RANKS], CELL_MAX, "%d", row->ranks);
  snprintf(text[HOSTS], CELL_MAX, "%d", row->hosts);
  snprintf(text[STEPS], CELL_MAX, "%u", r->steps);
  snprintf(text[ENCODINGS], CELL_MAX, "%u", r->encodings);
  time_text(r->seconds, text[TIME]);
  bytes_text(r->inside_bytes, text[INSIDE]);
  bytes_text(r->nic_bytes, text[NIC]);
  bytes_text(r->switch_bytes, text[SWITCH]);
  snprintf(text[PEERS], CELL_MAX, "%u", r->peers);
  bytes_text(r->rack_bytes, text[RACK]);
  bytes_text(r->rank_memory, text[MEMORY]);
  choice_text(rows, row, is_auto, text[CHOICE]);
  snprintf(text[WORSE], CELL_MAX, "%.0f%%", 100 * row->worse);
  for (size_t i = 0; i < COLUMN_COUNT; i++) {
    cells[i] = *row->why_not && i >= TIME && i < CHOICE ? "-" : text[i];
  }
  cells[CODEC] = row->spec;
  cells[ALGORITHM] = r->algorithm;
  cli_table_row(table, cells);
}

static int is_shown(const cli_sim_row *row, int is_auto) { return !is_auto || row->is_auto || row->ranks == 1; }

void cli_sim_print(const cli_sim_setup *setup, size_t bytes, const cli_sim_rows *rows, cli_sim_view view, int is_wide) {
  const pith_sim_topology *t = &setup->topology;
  int is_auto = view == CLI_SIM_CHOICES, is_estimate = view == CLI_SIM_ESTIMATES;
  is_wide &= !is_estimate;
  cli_table table = {
      .columns = COLUMN_COUNT,
      .column = {[RANKS] = {.title = "ranks", .right = 1},
                 [HOSTS] = {.title = "hosts", .right = 1},
                 [CODEC] = {.title = "codec"},
                 [ALGORITHM] = {.title = "algorithm", .right = 1},
                 [TIME] = {.title = "time", .right = 1, .width = 7},
                 [INSIDE] = {.title = "inside", .right = 1, .width = 7, .hidden = !is_wide},
                 [NIC] = {.title = "NIC", .right = 1, .width = 7, .hidden = is_estimate},
                 [SWITCH] = {.title = "switch", .right = 1, .width = 7, .hidden = !is_wide},
                 [RACK] = {.title = "rack", .right = 1, .width = 7, .hidden = !t->rack_hosts || is_estimate},
                 [PEERS] = {.title = "peers", .right = 1, .hidden = (is_auto && !is_wide) || is_estimate},
                 [STEPS] = {.title = "steps", .right = 1, .hidden = is_estimate},
                 [ENCODINGS] = {.title = "encoded", .right = 1, .hidden = is_estimate},
                 [MEMORY] = {.title = "memory", .right = 1, .width = 7, .hidden = (is_auto && !is_wide) || is_estimate},
                 [CHOICE] = {.title = is_auto ? "best" : "choice", .right = 1, .hidden = is_estimate},
                 [WORSE] = {.title = "worse by", .right = 1, .hidden = !is_auto}},
      .wide = is_wide};
  char size[24], latency[CELL_MAX], choice[CELL_MAX];
  for (size_t i = 0; i < rows->count; i++) {
    cli_table_fit(&table, CODEC, rows->row[i].spec);
    cli_table_fit(&table, ALGORITHM, rows->row[i].result.algorithm);
    choice_text(rows, &rows->row[i], is_auto, choice);
    cli_table_fit(&table, CHOICE, choice);
  }
  cli_say(stdout, "# ", "pith %s, %s: %s%s, links of %.4g Gbit/s, %s; switch %g:1", pith_version(),
          is_estimate ? "estimated" : "simulated", bytes ? "allreduce of " : "barrier",
          bytes ? cli_size_print(bytes, size) : "", t->rate * 8e-9, time_text(t->latency, latency),
          t->oversubscription);
  cli_table_head(&table);
  for (size_t i = 0; i < rows->count; i++) {
    if (is_shown(&rows->row[i], is_auto)) {
      print_row(&table, rows, &rows->row[i], is_auto);
    }
  }
  for (size_t i = 0; i < rows->count; i++) {
    if (*rows->row[i].why_not) {
      cli_say(stdout, "# ", "not simulated: %s", rows->row[i].why_not);
    }
  }
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void write_row(cli_json *json, const cli_sim_row *row, int is_estimate) {
  const pith_sim_result *r = &row->result;
  cli_json_object(json, NULL);
  cli_json_count(json, "ranks", (uint64_t)row->ranks);
  cli_json_count(json, "hosts", (uint64_t)row->hosts);
  cli_json_string(json, "codec", row->spec);
  cli_json_string(json, "algorithm", r->algorithm);
  if (*row->why_not) {
    cli_json_string(json, "not_simulated", row->why_not);
  } else if (is_estimate) {
    cli_json_number(json, "expected_seconds", r->seconds);
  } else {
    cli_json_number(json, "seconds", r->seconds);
    cli_json_count(json, "messages", r->messages);
    cli_json_count(json, "rank_bytes", r->rank_bytes);
    cli_json_count(json, "inside_bytes", r->inside_bytes);
    cli_json_count(json, "nic_bytes", r->nic_bytes);
    cli_json_count(json, "switch_bytes", r->switch_bytes);
    cli_json_count(json, "rack_bytes", r->rack_bytes);
    cli_json_count(json, "peers", r->peers);
    cli_json_count(json, "steps", r->steps);
    cli_json_count(json, "encodings", r->encodings);
    cli_json_count(json, "rank_memory", r->rank_memory);
    cli_json_count(json, "tasks", r->tasks);
    cli_json_count(json, "events", r->events);
    cli_json_bool(json, "may_be_chosen", r->may_be_chosen);
    cli_json_bool(json, "auto", row->is_auto);
    cli_json_bool(json, "best", row->is_best);
    if (row->is_auto) {
      cli_json_number(json, "worse", row->worse);
    }
  }
  cli_json_object_end(json);
}

int cli_sim_write_json(const cli_sim_setup *setup, size_t bytes, const cli_sim_rows *rows, cli_sim_view view,
                       const char *path) {
  const pith_sim_topology *t = &setup->topology;
  int is_output = !strcmp(path, "-");
  cli_json json = {.file = is_output ? stdout : fopen(path, "w")};
  if (!json.file) {
    return cli_fail(CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
  }
  cli_json_object(&json, NULL);
  cli_json_string(&json, "version", pith_version());
  cli_json_bool(&json, "simulated", view != CLI_SIM_ESTIMATES);
  cli_json_count(&json, "bytes", bytes);
  cli_json_number(&json, "rate_gbit", t->rate * 8e-9);
  cli_json_number(&json, "latency", t->latency);
  cli_json_number(&json, "oversubscription", t->oversubscription);
  cli_json_array(&json, "results");
  for (size_t i = 0; i < rows->count; i++) {
    write_row(&json, &rows->row[i], view == CLI_SIM_ESTIMATES);
  }
  cli_json_array_end(&json);
  cli_json_object_end(&json);
  int failed = ferror(json.file);
  if (!is_output) {
    failed |= fclose(json.file) != 0;
  }
  return failed ? cli_fail(CLI_FAILED, "cannot write %s", path) : CLI_OK;
}
