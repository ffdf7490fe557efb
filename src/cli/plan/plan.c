/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pith plan`: makes, shows and compares plans. plan_stats.c makes the statistics they come from, plan_plot.c draws,
 * plan_bench.c times the planner.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/base/cli.h"
#include "cli/base/page.h"
#include "cli/base/table.h"
#include "cli/plan/plan_command.h"

/* ---- Shared ------------------------------------------------------------------------------------------------------ */

int cli_plan_failed(const char *what, pith_status status) {
  int usage = status == PITH_ERR_SPEC || status == PITH_ERR_ARGUMENT;
  return cli_fail(usage ? CLI_USAGE : CLI_FAILED, "plan %s: %s", what, pith_error());
}

int cli_real_parse(const char *text, double least, double *number) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end || !isfinite(value) || value < least) {
    return 0;
  }
  *number = value;
  return 1;
}

int cli_plan_cost_of(const char *command, const cli_plan_link *link, const char *rate, pith_plan_cost *cost) {
  unsigned long long bits = 0;
  double latency = 60, compute = 0;
  if (!cli_rate_parse(rate, &bits)) {
    cli_fail(0, "plan %s: --rate %s: expected 100mbit, 1gbit, 2.5gbit, from 8kbit to 400gbit", command, rate);
    return 0;
  }
  if ((link->latency && !cli_real_parse(link->latency, 0, &latency)) ||
      (link->compute && !cli_real_parse(link->compute, 0, &compute))) {
    cli_fail(0, "plan %s: --latency and --compute are numbers, not below 0", command);
    return 0;
  }
  if (link->ranks < 1 || link->ranks > 1000000) {
    cli_fail(0, "plan %s: --ranks %zu: expected 1 to 1000000", command, link->ranks);
    return 0;
  }
  *cost = (pith_plan_cost){.size = sizeof *cost,
                           .ranks = (uint32_t)link->ranks,
                           .latency = fmax(latency, 1e-6) * 1e-6,
                           .bandwidth = (double)bits / 8,
                           .compute = compute * 1e-3};
  return 1;
}

/* 12.3M, 4.56K: bytes for people, in thousands. */
static const char *print_bytes(double bytes, char *text) {
  const char *unit = "";
  double shown = bytes;
  for (const char *u = "KMGT"; *u && shown >= 999.5; u++) {
    shown /= 1000;
    unit = u;
  }
  snprintf(text, 24, bytes < 999.5 ? "%.0f" : "%.3g%.1s", shown, unit);
  return text;
}

static void print_shape(const pith_plan_layer *layer, char *text, size_t size) {
  size_t used = 0;
  text[0] = 0;
  for (size_t i = 0; i < layer->dimensions && used + 24 < size; i++) {
    used += (size_t)snprintf(text + used, size - used, "%s%zu", i ? "×" : "", layer->shape[i]);
  }
}

typedef struct row {
  char shape[160], bits[24], bytes[24], share[24];
} row;

static void format_row(const pith_plan_layer *layer, double budget, row *r) {
  memset(r, 0, sizeof *r);
  print_shape(layer, r->shape, sizeof r->shape);
  if (layer->bytes >= 0) {
    print_bytes(layer->bytes, r->bytes);
    if (layer->n) {
      snprintf(r->bits, sizeof r->bits, "%.3f", 8 * layer->bytes / (double)layer->n);
    }
  }
  if (layer->error >= 0 && budget > 0) {
    snprintf(r->share, sizeof r->share, "%.2f", 100 * layer->error / budget);
  }
}

static void print_total(const pith_plan_info *info, double values) {
  char bytes[24], size[160] = "", budget[80] = "";
  if (info->bytes >= 0 && values > 0) {
    snprintf(size, sizeof size, ", %s bytes, %.3f bits per value, %.1f× less than f32", print_bytes(info->bytes, bytes),
             8 * info->bytes / values, info->bytes > 0 ? 4 * values / info->bytes : 0.0);
  } else if (info->bytes >= 0) {
    snprintf(size, sizeof size, ", %s bytes", print_bytes(info->bytes, bytes));
  }
  if (info->bytes >= 0 && info->budget > 0 && info->error >= 0) {
    snprintf(budget, sizeof budget, "; %.2f%% of the error budget used", 100 * info->error / info->budget);
  }
  putchar('\n');
  cli_say(stdout, "", "%zu layers%s%s", info->layers, size, budget);
}

void cli_plan_print(const pith_plan *plan) {
  cli_table table = {.columns = 6,
                     .column = {{.title = "layer"},
                                {.title = "shape"},
                                {.title = "spec"},
                                {.title = "bits", .right = 1},
                                {.title = "bytes", .right = 1},
                                {.title = "% of budget", .right = 1}}};
  pith_plan_info info = PITH_PLAN_INFO_INIT;
  pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
  double values = 0;
  row r;
  pith_plan_info_get(plan, &info);
  for (size_t i = 0; pith_plan_layer_get(plan, i, &layer) == PITH_OK; i++) {
    format_row(&layer, info.budget, &r);
    cli_table_fit(&table, 0, layer.name);
    cli_table_fit(&table, 1, r.shape);
    cli_table_fit(&table, 2, layer.spec);
    cli_table_fit(&table, 3, r.bits);
    cli_table_fit(&table, 4, r.bytes);
    values += (double)layer.n;
  }
  cli_table_head(&table);
  for (size_t i = 0; pith_plan_layer_get(plan, i, &layer) == PITH_OK; i++) {
    format_row(&layer, info.budget, &r);
    cli_table_row(&table, (const char *const[]){layer.name, r.shape, layer.spec, r.bits, r.bytes, r.share});
  }
  print_total(&info, values);
}

/* ---- make -------------------------------------------------------------------------------------------------------- */

typedef struct make_options {
  const char *budget, *alpha, *families, *rate, *before, *critical, *otherwise, *threshold, *floor, *output, *svg;
  const char *cap, *tolerance, *topology;
  pith_sim_topology where; /* with `topology` */
  int method, objective, metric, mix;
  cli_plan_link link;
} make_options;

static int read_numbers(const make_options *o, pith_plan_request *r) {
  if (o->alpha && (!cli_real_parse(o->alpha, 0, &r->alpha) || r->alpha <= 0)) {
    cli_fail(0, "plan make: --alpha %s: expected a number above 0", o->alpha);
    return 0;
  }
  if (o->threshold && (!cli_real_parse(o->threshold, 0, &r->threshold) || r->threshold <= 0)) {
    cli_fail(0, "plan make: --threshold %s: expected a number above 0", o->threshold);
    return 0;
  }
  if (o->floor && (!cli_real_parse(o->floor, 0, &r->floor) || r->floor < 0 || r->floor > 1)) {
    cli_fail(0, "plan make: --floor %s: expected a share from 0 to 1", o->floor);
    return 0;
  }
  if (o->cap && (!cli_real_parse(o->cap, 0, &r->cap) || r->cap < 1)) {
    cli_fail(0, "plan make: --cap %s: expected a factor of at least 1", o->cap);
    return 0;
  }
  if (o->tolerance && (!cli_real_parse(o->tolerance, 0, &r->tolerance) || r->tolerance <= 0 || r->tolerance > 1)) {
    cli_fail(0, "plan make: --tolerance %s: expected a share from 0 to 1", o->tolerance);
    return 0;
  }
  if (o->budget && !cli_real_parse(o->budget, 0, &r->budget)) {
    r->uniform = o->budget; /* not a number: the error of that spec */
  }
  return 1;
}

/* A spec that cannot be is a slip on the command line, whatever the statistics. */
static int is_spec(const char *text) {
  pith_codec *codec = NULL;
  double number;
  int good = !text || cli_real_parse(text, 0, &number) || pith_codec_create(text, &codec) == PITH_OK;
  pith_codec_destroy(codec);
  if (!good) {
    cli_fail(0, "plan make: %s", pith_error());
  }
  return good;
}

static int check_make(const make_options *o) {
  if (!o->budget && !o->critical) {
    cli_fail(0, "plan make: which budget? --budget q:4 (the error of that spec on all layers), or a sum of errors");
    return 0;
  }
  if (o->alpha && o->tolerance) {
    cli_fail(0, "plan make: --alpha and --tolerance both say what the budget is: give one of them");
    return 0;
  }
  if (o->mix && o->families) {
    cli_fail(0, "plan make: --mix and --families say two things: give one of them");
    return 0;
  }
  if (o->rate && o->topology) {
    cli_fail(0, "plan make: --rate and --topology both say what the network is: give one of them");
    return 0;
  }
  if (o->objective == PITH_PLAN_TIME && !o->rate && !o->topology) {
    cli_fail(0, "plan make: --objective time needs the rate of the link: --rate 1gbit, or --topology FILE");
    return 0;
  }
  return is_spec(o->budget) && is_spec(o->critical) && is_spec(o->otherwise);
}

/* How the plan compares with the spec that gave its budget. */
static void print_gain(const pith_plan *plan, const pith_profile *profile, const pith_plan_request *made) {
  pith_plan *reference;
  pith_plan_info mine = PITH_PLAN_INFO_INIT, other = PITH_PLAN_INFO_INIT;
  pith_plan_request request = {
      .size = sizeof request, .method = PITH_PLAN_UNIFORM, .uniform = made->uniform, .metric = made->metric};
  const char *uniform = made->uniform;
  char bytes[24];
  if (!uniform || pith_plan_make(profile, &request, &reference) != PITH_OK) {
    return;
  }
  pith_plan_info_get(plan, &mine);
  pith_plan_info_get(reference, &other);
  cli_say(stdout, "", "%s on all layers: %s bytes; the plan has %.3f of that, and %.3f of its error", uniform,
          print_bytes(other.bytes, bytes), mine.bytes / other.bytes, other.error > 0 ? mine.error / other.error : 0.0);
  pith_plan_destroy(reference);
}

static int deliver(const make_options *o, const pith_plan *plan, const pith_profile *profile,
                   const pith_plan_request *request) {
  if (o->output && !strcmp(o->output, "-")) {
    fputs(pith_plan_text(plan), stdout);
  } else {
    cli_plan_print(plan);
    print_gain(plan, profile, request);
    int code = o->topology ? cli_plan_print_algorithms(plan, &o->where) : CLI_OK;
    if (code != CLI_OK) {
      return code;
    }
  }
  if (o->output && strcmp(o->output, "-") != 0) {
    pith_status status = pith_plan_save(plan, o->output);
    if (status != PITH_OK) {
      return cli_plan_failed("make", status);
    }
  }
  return o->svg ? cli_plan_plot(plan, o->svg) : CLI_OK;
}

static int make_from(const make_options *o, pith_plan_request *r, const char *path) {
  pith_profile *profile = NULL, *before = NULL;
  pith_plan *plan = NULL;
  pith_status status = pith_profile_load(path, &profile);
  if (status == PITH_OK && o->before) {
    status = pith_profile_load(o->before, &before);
    r->before = before;
  }
  if (status == PITH_OK) {
    status = pith_plan_make(profile, r, &plan);
  }
  int code = status == PITH_OK ? deliver(o, plan, profile, r) : cli_plan_failed("make", status);
  pith_plan_destroy(plan);
  pith_profile_destroy(before);
  pith_profile_destroy(profile);
  return code;
}

int cli_plan_make(int argc, char **argv) {
  make_options o = {.link = {.ranks = 4}};
  cli_list files = {.count = 0};
  const cli_option options[] = {
      {"--budget", CLI_TEXT, &o.budget, "SPEC|NUMBER",
       "what may be lost: the error of a spec on all layers, or a sum of errors by the metric"},
      {"--alpha", CLI_TEXT, &o.alpha, "FACTOR", "multiply the error of the spec by this (1)"},
      {"--tolerance", CLI_TEXT, &o.tolerance, "SHARE",
       "instead of --alpha: the share of a step's progress that may be lost, ‖e‖²/‖g‖²"},
      {"--metric", CLI_CHOICE, &o.metric, "l2sq|l2", "what is summed over layers: ‖e‖² or ‖e‖ (l2sq)"},
      {"--cap", CLI_TEXT, &o.cap, "FACTOR", "no layer gets more than this times the strength of the spec (no limit)"},
      {"--floor", CLI_TEXT, &o.floor, "SHARE",
       "lgreco: no layer gets less than this share of the bytes that the spec gives it (0)"},
      {"--method", CLI_CHOICE, &o.method, "lgreco|kmeans|accordion|uniform|cgxkmeans|linear|best|bayes|global",
       "the method that assigns specs (lgreco)"},
      {"--families", CLI_TEXT, &o.families, "NAMES",
       "methods to choose from, such as q,topk (the method of the budget's spec)"},
      {"--mix", CLI_FLAG, &o.mix, NULL, "choose from all candidates"},
      {"--objective", CLI_CHOICE, &o.objective, "bytes|time", "what to minimize (bytes)"},
      {"--rate", CLI_TEXT, &o.rate, "RATE", "rate of the link, for --objective time: 100mbit, 1gbit"},
      {"--topology", CLI_TEXT, &o.topology, "FILE",
       "the network of --ranks ranks, in the format of pith sim: prints which algorithms the library would choose "
       "there, and --objective time uses the times of exchanges there"},
      CLI_PLAN_LINK_OPTIONS(&o.link),
      {"--critical", CLI_TEXT, &o.critical, "SPEC",
       "accordion: the spec in critical phases, where the norm of the gradient changes fast"},
      {"--otherwise", CLI_TEXT, &o.otherwise, "SPEC", "accordion: the spec in other phases"},
      {"--before", CLI_TEXT, &o.before, "STATS",
       "accordion: statistics of the previous window (without them all layers are critical)"},
      {"--threshold", CLI_TEXT, &o.threshold, "SHARE",
       "accordion: the relative change of the norm that makes a phase critical (0.5)"},
      {"-o", CLI_TEXT, &o.output, "FILE", "write the plan; - prints it"},
      {"--svg", CLI_TEXT, &o.svg, "FILE", "draw bits per value against size"},
      {.name = NULL}};
  const cli_usage usage = {
      "plan make", "STATS",
      "Makes a plan from a statistics file. A plan gives each layer a spec, so that all layers together are smallest "
      "(or the step is fastest) within an error budget. With --critical and --otherwise, accordion sets the budget of "
      "lgreco.",
      options};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, &files);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  if (files.count != 1) {
    return cli_fail(CLI_USAGE, "plan make: which statistics? pith plan make stats.json --budget q:4");
  }
  pith_plan_cost cost;
  pith_plan_request r = {.size = sizeof r,
                         .method = (pith_plan_method)o.method,
                         .objective = (pith_plan_objective)o.objective,
                         .metric = (pith_plan_metric)o.metric,
                         .families = o.mix ? "mix" : o.families,
                         .critical = o.critical,
                         .otherwise = o.otherwise};
  if (!check_make(&o) || !read_numbers(&o, &r) || (o.rate && !cli_plan_cost_of("make", &o.link, o.rate, &cost))) {
    return CLI_USAGE;
  }
  r.cost = o.rate ? &cost : NULL;
  if (o.topology) {
    double compute = 0;
    int code = cli_plan_topology(o.topology, o.link.ranks, &o.where);
    if (code != CLI_OK) {
      return code;
    }
    if (o.link.compute && !cli_real_parse(o.link.compute, 0, &compute)) {
      return cli_fail(CLI_USAGE, "plan make: --compute %s: expected a number, not below 0", o.link.compute);
    }
    cost = (pith_plan_cost){.size = sizeof cost, .compute = compute * 1e-3, .topology = &o.where};
    r.cost = &cost;
  }
  return make_from(&o, &r, files.item[0]);
}

/* ---- show -------------------------------------------------------------------------------------------------------- */

static pith_status load_priced(const char *path, const char *stats, pith_plan **plan) {
  pith_profile *profile = NULL;
  pith_status status = pith_plan_load(path, plan);
  if (status == PITH_OK && stats) {
    status = pith_profile_load(stats, &profile);
    status = status == PITH_OK ? pith_plan_price(*plan, profile) : status;
  }
  pith_profile_destroy(profile);
  return status;
}

int cli_plan_show(int argc, char **argv) {
  const char *stats = NULL, *svg = NULL;
  int rules = 0;
  cli_list files = {.count = 0};
  const cli_option options[] = {{"--stats", CLI_TEXT, &stats, "STATS", "take bytes and errors from these statistics"},
                                {"--svg", CLI_TEXT, &svg, "FILE", "draw bits per value against size"},
                                {"--rules", CLI_FLAG, &rules, NULL, "print the plan as rules: name=spec;…"},
                                {.name = NULL}};
  const cli_usage usage = {"plan show", "PLAN", "Shows a plan as a table, and checks it.", options};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, &files);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  if (files.count != 1) {
    return cli_fail(CLI_USAGE, "plan show: which plan? pith plan show plan.json");
  }
  pith_plan *plan = NULL;
  pith_status status = load_priced(files.item[0], stats, &plan);
  int code = status == PITH_OK ? CLI_OK : cli_plan_failed("show", status);
  if (code == CLI_OK && rules) {
    puts(pith_plan_rules(plan));
  } else if (code == CLI_OK) {
    cli_plan_print(plan);
  }
  if (code == CLI_OK && svg) {
    code = cli_plan_plot(plan, svg);
  }
  pith_plan_destroy(plan);
  return code;
}

/* ---- compare ----------------------------------------------------------------------------------------------------- */

typedef struct comparison {
  const pith_profile *profile;
  cli_list rates;
  pith_plan_cost cost[CLI_LIST_MAX];
  double norm, values;
  cli_table table;
} comparison;

static void measure_model(comparison *c) {
  pith_profile_layer layer = PITH_PROFILE_LAYER_INIT;
  for (size_t i = 0; pith_profile_layer_get(c->profile, i, &layer) == PITH_OK && i < pith_profile_layers(c->profile);
       i++) {
    c->norm += layer.norm;
    c->values += (double)layer.n;
  }
}

/* A plan's file, or a spec for all layers. */
static pith_status take_plan(const comparison *c, const char *name, pith_plan **plan) {
  FILE *file = fopen(name, "rb");
  if (!file) {
    return pith_plan_uniform(c->profile, name, plan);
  }
  fclose(file);
  pith_status status = pith_plan_load(name, plan);
  return status == PITH_OK ? pith_plan_price(*plan, c->profile) : status;
}

static pith_status print_plan(const comparison *c, const char *name, const pith_plan *plan) {
  pith_plan_info info = PITH_PLAN_INFO_INIT;
  char text[4 + CLI_LIST_MAX][24];
  const char *cells[CLI_COLUMNS_MAX] = {name};
  size_t used = 1;
  pith_plan_info_get(plan, &info);
  cells[used++] = print_bytes(info.bytes, text[0]);
  snprintf(text[1], 24, "%.3f", 8 * info.bytes / c->values);
  snprintf(text[2], 24, "%.4g", info.error);
  snprintf(text[3], 24, "%.4f", c->norm > 0 ? sqrt(info.error / c->norm) : 0.0);
  cells[used++] = text[1];
  cells[used++] = text[2];
  cells[used++] = text[3];
  for (size_t i = 0; i < c->rates.count; i++) {
    double seconds;
    pith_status status = pith_plan_seconds(plan, c->profile, &c->cost[i], &seconds);
    if (status != PITH_OK) {
      return status;
    }
    snprintf(text[4 + i], 24, "%.2f ms", 1e3 * seconds);
    cells[used++] = text[4 + i];
  }
  cli_table_row(&c->table, cells);
  return PITH_OK;
}

static void print_heading(comparison *c, const cli_list *plans) {
  static const cli_column columns[] = {{.title = "plan"},
                                       {.title = "bytes", .right = 1, .width = 6},
                                       {.title = "bits", .right = 1, .width = 6},
                                       {.title = "squared error", .right = 1},
                                       {.title = "relative", .right = 1}};
  memcpy(c->table.column, columns, sizeof columns);
  c->table.columns = 5 + c->rates.count;
  for (size_t i = 0; i < c->rates.count; i++) {
    c->table.column[5 + i] = (cli_column){.title = c->rates.item[i], .right = 1, .width = 10};
  }
  for (size_t i = 0; i < plans->count; i++) {
    cli_table_fit(&c->table, 0, plans->item[i]);
  }
  cli_table_head(&c->table);
}

static int compare(comparison *c, const cli_list *plans) {
  measure_model(c);
  print_heading(c, plans);
  for (size_t i = 0; i < plans->count; i++) {
    pith_plan *plan = NULL;
    pith_status status = take_plan(c, plans->item[i], &plan);
    if (status == PITH_OK) {
      status = print_plan(c, plans->item[i], plan);
    }
    pith_plan_destroy(plan);
    if (status != PITH_OK) {
      return cli_plan_failed("compare", status);
    }
  }
  return CLI_OK;
}

int cli_plan_compare(int argc, char **argv) {
  const char *stats = NULL;
  cli_plan_link link = {.ranks = 4};
  cli_list plans = {.count = 0};
  comparison c = {.rates = {.count = 0}};
  const cli_option options[] = {
      {"--stats", CLI_TEXT, &stats, "STATS", "the statistics from which bytes, errors and times are computed"},
      {"--rate", CLI_LIST, &c.rates, "RATE", "predict the time of a step at this rate; may be repeated"},
      CLI_PLAN_LINK_OPTIONS(&link),
      {.name = NULL}};
  const cli_usage usage = {
      "plan compare", "PLAN|SPEC…",
      "Compares plans, and single specs for all layers: bytes, error, and the predicted time of a step.", options};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, &plans);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  if (!plans.count || !stats || c.rates.count > CLI_COLUMNS_MAX - 5) {
    return cli_fail(CLI_USAGE, "plan compare: %s: pith plan compare plan.json q:4 --stats stats.json --rate 1gbit",
                    !plans.count ? "which plans?"
                    : !stats     ? "which statistics?"
                                 : "too many rates");
  }
  for (size_t i = 0; i < c.rates.count; i++) {
    if (!cli_plan_cost_of("compare", &link, c.rates.item[i], &c.cost[i])) {
      return CLI_USAGE;
    }
  }
  pith_profile *profile = NULL;
  pith_status status = pith_profile_load(stats, &profile);
  c.profile = profile;
  int code = status == PITH_OK ? compare(&c, &plans) : cli_plan_failed("compare", status);
  pith_profile_destroy(profile);
  return code;
}

/* ---- Which ------------------------------------------------------------------------------------------------------- */

static const struct {
  cli_part part;
  int (*run)(int argc, char **argv);
} parts[] = {
    {{"stats", "statistics from files of gradients"}, cli_plan_stats},
    {{"make", "a plan from statistics and an error budget"}, cli_plan_make},
    {{"show", "a plan as a table, and as a plot"}, cli_plan_show},
    {{"compare", "plans side by side: bytes, error, predicted time"}, cli_plan_compare},
    {{"bench", "how long planning takes on this machine"}, cli_plan_bench},
};
enum { PARTS = sizeof parts / sizeof *parts };

int cli_plan_part(size_t index, cli_part *part) {
  if (index < PARTS) {
    *part = parts[index].part;
  }
  return index < PARTS;
}

int cli_plan(int argc, char **argv) {
  if (argc && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) {
    return cli_parts_help("plan", cli_plan_part, "Plans give every layer its own spec.");
  }
  for (size_t i = 0; i < PARTS && argc; i++) {
    if (!strcmp(argv[0], parts[i].part.name)) {
      return parts[i].run(argc - 1, argv + 1);
    }
  }
  return cli_parts_unknown("plan", cli_plan_part, argc ? argv[0] : NULL);
}
