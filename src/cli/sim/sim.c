/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pith sim`: collectives on networks that are not there. Every number of ranks, every codec, by every algorithm that
 * was asked for. The library simulates (include/pith/sim.h); here are options, files and what is compared.
 */
#include "cli/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/base/page.h"

enum { RANKS_MAX = 64, SETTING_MAX = 16 };

static const cli_part parts[] = {
    {"allreduce", "an allreduce by every algorithm: time, bytes, steps, encodings, memory"},
    {"barrier", "a barrier: time and steps"},
};

int cli_sim_part(size_t index, cli_part *part) {
  if (index >= sizeof parts / sizeof *parts) {
    return 0;
  }
  *part = parts[index];
  return 1;
}

/* Options that are keys of a topology file. */
typedef struct setting {
  const char *key, *value;
} setting;

typedef struct sim {
  cli_sim_setup setup;
  setting given[SETTING_MAX];
  cli_list ranks, specs, algorithms;
  size_t bytes;
  const char *topology, *speed, *json, *plot, *export;
  int rank_count[RANKS_MAX];
  size_t rank_counts;
  const char *algorithm[CLI_LIST_MAX]; /* to simulate; NULL: what the library takes */
  size_t algorithm_count;
  int is_wide, is_barrier;
  int dist;        /* of the values that speeds are measured with */
  int is_all;      /* algorithms: those that do not suit are left out */
  int is_auto;     /* one line for what the library takes, beside the best */
  int is_estimate; /* nothing is simulated */
  cli_sim_rows rows;
} sim;

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

static const char about[] =
    "Simulates an allreduce: runs the schedules of all ranks, as the library writes them, in virtual time over a model "
    "of hosts, links, a switch and processors. Nothing is sent, and no value is computed. docs/scale.md has the model "
    "and how near it comes.\n"
    "  pith sim allreduce -n 64 --hosts 8 --rate 10gbit --latency 50us -b 16M --codec q:4 --algo all\n"
    "\n"
    "time is that of the last rank. NIC is the bytes of the busiest host in its busier direction, inside all bytes "
    "within hosts; with --wide, switch is all bytes between hosts. steps is the longest chain of messages that wait "
    "for "
    "each other, encoded how often a value is encoded on its way at most, memory the buffers and the schedule of a "
    "rank. With auto, best "
    "is "
    "the fastest of the algorithms that the library may take by itself, and worse by what it misses that by.\n"
    "\n"
    "A topology file has lines KEY = VALUE, which options override. Its keys:\n";

static cli_parsed parse(int argc, char **argv, sim *s) {
  char text[4096], keys[3072];
  setting *g = s->given;
  const char *const names[] = {
      "hosts",  "per_host", "rate",      "latency",   "oversubscription", "inside_rate",          "cores",
      "encode", "decode",   "straggler", "slow_link", "rack_hosts",       "rack_oversubscription"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    g[i].key = names[i];
  }
  const cli_option options[] = {
      {"-n", CLI_LIST, &s->ranks, "RANKS", "how many ranks, as 64 or 2,8,32, or 2..4096 for all powers of two (8)"},
      {"-b", CLI_SIZE, &s->bytes, "SIZE", "bytes of the tensor, as 4K or 64M (16M)"},
      {"--codec", CLI_LIST, &s->specs, "SPEC", "a method; may be repeated (none)"},
      {"--algo", CLI_LIST, &s->algorithms, "auto|all|sra|hierarchical|ring|tree|gather|ranges|linear|grid",
       "how to allreduce; may be repeated. auto: what the library takes, beside the best; all: all that suit (auto)"},
      {"--topology", CLI_TEXT, &s->topology, "FILE", "hosts, links and processors; the options below override it"},
      {"--hosts", CLI_TEXT, &g[0].value, "COUNT", "how many hosts (a host for each rank)"},
      {"--per-host", CLI_TEXT, &g[1].value, "COUNT", "ranks of a host, in place of --hosts"},
      {"--rate", CLI_TEXT, &g[2].value, "RATE", "of a host's link, in each direction (10gbit)"},
      {"--latency", CLI_TEXT, &g[3].value, "TIME", "from host to host (30us)"},
      {"--oversubscription", CLI_TEXT, &g[4].value, "FACTOR",
       "the links of all hosts over what the switch passes on (1)"},
      {"--inside-rate", CLI_TEXT, &g[5].value, "RATE", "what a rank sends within its host (40gbit)"},
      {"--cores", CLI_TEXT, &g[6].value, "COUNT", "of a host; 0 for one for each rank (0)"},
      {"--encode", CLI_TEXT, &g[7].value, "GB/s", "speed of the codec (measured here)"},
      {"--decode", CLI_TEXT, &g[8].value, "GB/s", "and to decode and add (measured here)"},
      {"--speed", CLI_TEXT, &s->speed, "FILE", "takes both from what pith bench codec --json has written"},
      {"--dist", CLI_CHOICE, &s->dist, CLI_DIST_NAMES, "of the values that they are measured with (normal)"},
      {"--straggler", CLI_TEXT, &g[9].value, "RANK:FACTOR", "a rank whose processor is so many times slower"},
      {"--slow-link", CLI_TEXT, &g[10].value, "HOST:RATE", "a host with another rate"},
      {"--rack-hosts", CLI_TEXT, &g[11].value, "COUNT", "hosts of a rack (all are in one)"},
      {"--rack-oversubscription", CLI_TEXT, &g[12].value, "FACTOR",
       "the links of a rack's hosts over what it sends to other racks (1)"},
      {"--export", CLI_TEXT, &s->export, "FILE",
       "writes the network and the tasks of all ranks, for other simulators, and simulates nothing"},
      {"--estimate", CLI_FLAG, &s->is_estimate, NULL,
       "what the library takes, and the time that its cost model expects; nothing is simulated"},
      {"--wide", CLI_FLAG, &s->is_wide, NULL, "all columns, however wide the table becomes"},
      {"--plot", CLI_TEXT, &s->plot, "FILE", "writes an SVG of time over ranks"},
      {"--json", CLI_TEXT, &s->json, "FILE", "writes JSON too; - for standard output in place of the table"},
      {.name = NULL},
  };
  cli_sim_keys(keys, sizeof keys);
  snprintf(text, sizeof text, "%s%s", about, keys);
  const cli_usage usage = {s->is_barrier ? "sim barrier" : "sim allreduce", NULL, text, options};
  return cli_options_parse(&usage, argc, argv, NULL);
}

static int add_ranks(sim *s, long ranks, const char *text) {
  if (ranks < 1 || ranks > 32767) {
    return cli_fail(CLI_USAGE, "-n %s: expected 1 to 32767 ranks", text);
  }
  if (s->rank_counts == RANKS_MAX) {
    return cli_fail(CLI_USAGE, "-n %s: more than %d numbers of ranks", text, RANKS_MAX);
  }
  s->rank_count[s->rank_counts++] = (int)ranks;
  return CLI_OK;
}

/* "64", "2,8,32" or "2..4096". */
static int read_ranks(sim *s, const char *text) {
  const char *at = text;
  for (;;) {
    char *end;
    long first = strtol(at, &end, 10), last = first;
    if (end != at && !strncmp(end, "..", 2)) {
      at = end + 2;
      last = strtol(at, &end, 10);
    }
    if (end == at || (*end && *end != ',') || last < first || first < 1) {
      return cli_fail(CLI_USAGE, "-n %s: expected numbers of ranks, as 64, 2,8,32 or 2..4096", text);
    }
    for (long ranks = first; ranks <= last; ranks *= 2) {
      int code = add_ranks(s, ranks, text);
      if (code != CLI_OK) {
        return code;
      }
    }
    if (!*end) {
      return CLI_OK;
    }
    at = end + 1;
  }
}

static int read_algorithms(sim *s) {
  const cli_list *given = &s->algorithms;
  for (size_t i = 0; i < given->count; i++) {
    int is_known = !strcmp(given->item[i], "all");
    for (size_t a = 0; pith_algorithm_get(a); a++) {
      is_known |= !strcmp(given->item[i], pith_algorithm_get(a));
    }
    if (!is_known) {
      return cli_fail(CLI_USAGE, "--algo %s: there is no such algorithm; see \"pith help sim allreduce\"",
                      given->item[i]);
    }
  }
  s->is_auto = given->count == 0 || (given->count == 1 && !strcmp(given->item[0], "auto"));
  s->is_all = s->is_auto;
  for (size_t i = 0; i < given->count; i++) {
    s->is_all |= !strcmp(given->item[i], "all");
  }
  for (size_t a = 1; pith_algorithm_get(a); a++) { /* 0 is auto */
    int wanted = s->is_all;
    for (size_t i = 0; i < given->count; i++) {
      wanted |= !strcmp(given->item[i], pith_algorithm_get(a));
    }
    if (wanted) {
      s->algorithm[s->algorithm_count++] = pith_algorithm_get(a);
    }
  }
  return CLI_OK;
}

static int read_settings(sim *s) {
  s->setup.topology = (pith_sim_topology)PITH_SIM_TOPOLOGY_INIT;
  int code = s->topology ? cli_sim_read(&s->setup, s->topology) : CLI_OK;
  for (size_t i = 0; i < SETTING_MAX && s->given[i].key && code == CLI_OK; i++) {
    const setting *g = &s->given[i];
    const char *wrong = g->value ? cli_sim_set(&s->setup, g->key, g->value) : NULL;
    code = wrong ? cli_fail(CLI_USAGE, "%s %s: %s", g->key, g->value, wrong) : CLI_OK;
  }
  for (size_t i = 0; i < s->ranks.count && code == CLI_OK; i++) {
    code = read_ranks(s, s->ranks.item[i]);
  }
  if (!s->rank_counts) {
    s->rank_count[s->rank_counts++] = 8;
  }
  if (code == CLI_OK && s->bytes % sizeof(float)) {
    code = cli_fail(CLI_USAGE, "-b %zu: values have 4 bytes each", s->bytes);
  }
  return code == CLI_OK ? read_algorithms(s) : code;
}

/* ---- Simulating -------------------------------------------------------------------------------------------------- */

static cli_sim_row *add_row(sim *s) {
  cli_sim_row *larger = realloc(s->rows.row, (s->rows.count + 1) * sizeof *larger);
  if (!larger) {
    exit(cli_fail(CLI_FAILED, "out of memory"));
  }
  s->rows.row = larger;
  return &larger[s->rows.count++];
}

/* One row, unless the algorithm does not suit. */
static int simulate(sim *s, const pith_codec *codec, int ranks, const char *algorithm) {
  pith_sim_topology *t = &s->setup.topology;
  cli_sim_ranks(&s->setup, ranks);
  cli_sim_row row = {.ranks = ranks, .hosts = t->hosts, .spec = codec ? pith_codec_spec(codec) : "none"};
  row.result = (pith_sim_result)PITH_SIM_RESULT_INIT;
  pith_status status = s->is_barrier
                           ? pith_sim_barrier(t, &row.result)
                           : pith_sim_allreduce(t, codec, s->bytes / sizeof(float), PITH_F32, algorithm, &row.result);
  if (status == PITH_ERR_UNSUPPORTED && s->is_all) {
    return CLI_OK;
  }
  if (status == PITH_ERR_UNSUPPORTED || status == PITH_ERR_RANGE) {
    snprintf(row.why_not, sizeof row.why_not, "%s", pith_error());
    row.result.algorithm = algorithm;
  } else if (status != PITH_OK) {
    return cli_fail(status == PITH_ERR_ARGUMENT ? CLI_USAGE : CLI_FAILED, "%s", pith_error());
  }
  *add_row(s) = row;
  return CLI_OK;
}

/* What the library takes here: known without a simulation of it. */
static int find_auto(sim *s, const pith_codec *codec, int ranks, const char **taken) {
  cli_sim_ranks(&s->setup, ranks);
  pith_status status = pith_sim_choose(&s->setup.topology, codec, s->bytes / sizeof(float), PITH_F32, taken);
  return status == PITH_OK ? CLI_OK
                           : cli_fail(status == PITH_ERR_ARGUMENT ? CLI_USAGE : CLI_FAILED, "%s", pith_error());
}

/* Marks the choice and the best of the rows from `first` on. */
static void compare(sim *s, size_t first, const char *taken) {
  cli_sim_row *best = NULL, *chosen = NULL;
  for (size_t i = first; i < s->rows.count; i++) {
    cli_sim_row *row = &s->rows.row[i];
    if (!*row->why_not && row->result.may_be_chosen && (!best || row->result.seconds < best->result.seconds)) {
      best = row;
    }
    chosen = !strcmp(row->result.algorithm, taken) ? row : chosen;
  }
  if (best && s->is_all) {
    best->is_best = 1;
  }
  if (chosen) {
    chosen->is_auto = 1;
    chosen->worse =
        best && !*chosen->why_not && best->result.seconds > 0 ? chosen->result.seconds / best->result.seconds - 1 : 0;
  }
}

/* What the library takes, and what its cost model expects of that. */
static int estimate(sim *s, const pith_codec *codec, int ranks) {
  const pith_sim_topology *t = &s->setup.topology;
  cli_sim_ranks(&s->setup, ranks);
  cli_sim_row row = {.ranks = ranks, .hosts = t->hosts, .spec = codec ? pith_codec_spec(codec) : "none", .is_auto = 1};
  pith_status status =
      pith_sim_estimate(t, codec, s->bytes / sizeof(float), PITH_F32, &row.result.algorithm, &row.result.seconds);
  if (status != PITH_OK) {
    return cli_fail(status == PITH_ERR_ARGUMENT ? CLI_USAGE : CLI_FAILED, "%s", pith_error());
  }
  *add_row(s) = row;
  return CLI_OK;
}

static int run_ranks(sim *s, const pith_codec *codec, int ranks) {
  const char *taken = NULL;
  size_t first = s->rows.count;
  if (s->is_estimate) {
    return estimate(s, codec, ranks);
  }
  int code = find_auto(s, codec, ranks, &taken);
  for (size_t a = 0; a < s->algorithm_count && code == CLI_OK && ranks > 1; a++) {
    code = simulate(s, codec, ranks, s->algorithm[a]);
  }
  if (code == CLI_OK && ranks == 1) {
    code = simulate(s, codec, 1, NULL);
  }
  if (code == CLI_OK) {
    compare(s, first, taken);
  }
  return code;
}

/* One schedule to a file: of the first number of ranks, by the algorithm that was asked for. */
static int export(sim *s, const pith_codec *codec) {
  cli_sim_ranks(&s->setup, s->rank_count[0]);
  pith_status status = pith_sim_export(&s->setup.topology, codec, s->bytes / sizeof(float), PITH_F32,
                                       s->is_auto ? NULL : s->algorithm[0], s->export);
  return status == PITH_OK ? CLI_OK : cli_fail(status == PITH_ERR_SYSTEM ? CLI_FAILED : CLI_USAGE, "%s", pith_error());
}

static int run_codec(sim *s, const char *spec) {
  pith_codec *codec = NULL;
  cli_sim_setup before = s->setup;
  size_t n = s->bytes / sizeof(float);
  int is_plain = !strcmp(spec, "none");
  if (!is_plain && pith_codec_create(spec, &codec) != PITH_OK) {
    return cli_fail(CLI_USAGE, "%s: %s", spec, pith_error());
  }
  int is_given = s->setup.has_encode && s->setup.has_decode;
  int code = s->speed   ? cli_sim_speed_read(&s->setup, codec, s->speed)
             : is_given ? CLI_OK
                        : cli_sim_speed_measure(&s->setup, codec, n, (cli_dist)s->dist);
  if (s->export && code == CLI_OK) {
    code = export(s, codec);
  }
  for (size_t i = 0; i < s->rank_counts && code == CLI_OK && !s->export; i++) {
    code = run_ranks(s, codec, s->rank_count[i]);
  }
  for (size_t i = 0; i < s->rows.count; i++) { /* their specs outlive the codec */
    if (codec && s->rows.row[i].spec == pith_codec_spec(codec)) {
      s->rows.row[i].spec = spec;
    }
  }
  s->setup = before;
  pith_codec_destroy(codec);
  return code;
}

static int run_barriers(sim *s) {
  int code = CLI_OK;
  for (size_t i = 0; i < s->rank_counts && code == CLI_OK; i++) {
    code = simulate(s, NULL, s->rank_count[i], NULL);
    if (code == CLI_OK) {
      s->rows.row[s->rows.count - 1].is_auto = 1; /* there is one algorithm */
    }
  }
  return code;
}

static cli_sim_view view_of(const sim *s) {
  return s->is_estimate ? CLI_SIM_ESTIMATES : s->is_auto ? CLI_SIM_CHOICES : CLI_SIM_ALL;
}

static int run(sim *s) {
  int code = read_settings(s);
  if (code == CLI_OK && s->is_barrier && (s->specs.count || s->algorithms.count || s->export)) {
    return cli_fail(CLI_USAGE, "a barrier has no codec and no algorithm to choose");
  }
  if (code == CLI_OK && s->is_estimate && (s->is_barrier || s->algorithms.count || s->export || s->plot)) {
    return cli_fail(CLI_USAGE,
                    "--estimate is of an allreduce by what the library takes: without --algo, --export and --plot");
  }
  if (!s->specs.count) {
    s->specs.item[s->specs.count++] = "none";
  }
  for (size_t i = 0; i < s->specs.count && code == CLI_OK && !s->is_barrier; i++) {
    code = run_codec(s, s->specs.item[i]);
  }
  if (code == CLI_OK && s->is_barrier) {
    s->bytes = 0;
    code = run_barriers(s);
  }
  if (code != CLI_OK || s->export) {
    return code;
  }
  if (!s->json || strcmp(s->json, "-") != 0) {
    cli_sim_print(&s->setup, s->bytes, &s->rows, view_of(s), s->is_wide);
  }
  code = s->json ? cli_sim_write_json(&s->setup, s->bytes, &s->rows, view_of(s), s->json) : CLI_OK;
  return code == CLI_OK && s->plot ? cli_sim_plot(&s->rows, s->bytes, s->plot) : code;
}

int cli_sim(int argc, char **argv) {
  if (argc && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) {
    return cli_parts_help("sim", cli_sim_part, "Simulates collectives of any number of ranks, on any network.");
  }
  int is_barrier = argc && !strcmp(argv[0], "barrier");
  if (!is_barrier && (!argc || strcmp(argv[0], "allreduce") != 0)) {
    return cli_parts_unknown("sim", cli_sim_part, argc ? argv[0] : NULL);
  }
  sim s = {.bytes = (size_t)16 << 20, .is_barrier = is_barrier};
  cli_parsed parsed = parse(argc - 1, argv + 1, &s);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  int code = run(&s);
  free(s.rows.row);
  return code;
}
