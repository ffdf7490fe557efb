/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pith plan stats`: statistics from recorded gradients. A list names them: a line "NAME SHAPE FILE" for each, the
 * file holding the raw values; a name that comes again is another sample of the same layer.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/base/cli.h"
#include "cli/base/lines.h"
#include "cli/base/page.h"
#include "cli/plan/plan_command.h"

enum { DIMENSIONS_MAX = 8, LINE_MAX_SIZE = 8192, CANDIDATES_SIZE = 16384 };

typedef struct sample {
  char *name, *path;
  size_t shape[DIMENSIONS_MAX], dimensions, n;
  size_t layer; /* the same for all samples of a name */
} sample;

typedef struct record {
  sample *sample;
  size_t samples, layers;
  const char *folder; /* of the list: file names start there */
  size_t folder_size;
} record;

/* ---- The list ---------------------------------------------------------------------------------------------------- */

static int parse_shape(const char *text, sample *s) {
  s->n = 1;
  s->dimensions = 0;
  for (const char *at = text;;) {
    char *end;
    errno = 0;
    unsigned long long size = *at >= '0' && *at <= '9' ? strtoull(at, &end, 10) : 0;
    if (size == 0 || errno || s->dimensions == DIMENSIONS_MAX || s->n > ((size_t)1 << 40) / size) {
      return 0;
    }
    s->shape[s->dimensions++] = (size_t)size;
    s->n *= (size_t)size;
    if (!*end) {
      return 1;
    }
    if (*end != 'x') {
      return 0;
    }
    at = end + 1;
  }
}

static void *must(void *memory) {
  if (!memory) {
    exit(cli_fail(CLI_FAILED, "out of memory"));
  }
  return memory;
}

static char *join(const record *r, const char *file) {
  size_t folder = file[0] == '/' ? 0 : r->folder_size;
  size_t rest = strlen(file) + 1;
  char *path = must(malloc(folder + rest));
  memcpy(path, r->folder, folder);
  memcpy(path + folder, file, rest);
  return path;
}

/* The layer of that name, or a new one. Returns 0 if its shape was another before. */
static int find_layer(record *r, sample *s) {
  for (size_t i = 0; i < r->samples; i++) {
    const sample *other = &r->sample[i];
    if (!strcmp(other->name, s->name)) {
      s->layer = other->layer;
      return s->dimensions == other->dimensions && !memcmp(s->shape, other->shape, s->dimensions * sizeof *s->shape);
    }
  }
  s->layer = r->layers++;
  return 1;
}

static int add_line(record *r, char *line, const char *list, size_t number) {
  char *rest = NULL, *name = strtok_r(line, " \t\r\n", &rest);
  if (!name || *name == '#') {
    return 1;
  }
  char *shape = strtok_r(NULL, " \t\r\n", &rest), *file = strtok_r(NULL, "\r\n", &rest);
  sample s = {.name = NULL};
  if (!shape || !file || !parse_shape(shape, &s)) {
    cli_fail(0, "plan stats: %s, line %zu: expected NAME SHAPE FILE, as in fc1.weight 512x784 fc1.f32", list, number);
    return 0;
  }
  s.name = must(strdup(name));
  s.path = join(r, file + strspn(file, " \t"));
  r->sample = must(realloc(r->sample, (r->samples + 1) * sizeof *r->sample));
  int good = find_layer(r, &s);
  r->sample[r->samples++] = s;
  if (!good) {
    cli_fail(0, "plan stats: %s, line %zu: layer %s had another shape before", list, number, s.name);
  }
  return good;
}

static int read_list(record *r, const char *list) {
  char line[LINE_MAX_SIZE];
  FILE *file = fopen(list, "r");
  int good = 1;
  if (!file) {
    cli_fail(0, "plan stats: cannot open %s: %s", list, strerror(errno));
    return 0;
  }
  const char *slash = strrchr(list, '/');
  r->folder = list;
  r->folder_size = slash ? (size_t)(slash - list) + 1 : 0;
  for (size_t number = 1; good && fgets(line, sizeof line, file); number++) {
    good = add_line(r, line, list, number);
  }
  fclose(file);
  if (good && !r->samples) {
    cli_fail(0, "plan stats: %s names no gradient", list);
    return 0;
  }
  return good;
}

static void free_record(record *r) {
  for (size_t i = 0; i < r->samples; i++) {
    free(r->sample[i].name);
    free(r->sample[i].path);
  }
  free(r->sample);
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

static int load_values(const sample *s, size_t bytes, void *values) {
  FILE *file = fopen(s->path, "rb");
  char more;
  if (!file) {
    cli_fail(0, "plan stats: cannot open %s: %s", s->path, strerror(errno));
    return 0;
  }
  int good = fread(values, 1, bytes, file) == bytes && fread(&more, 1, 1, file) == 0;
  fclose(file);
  if (!good) {
    cli_fail(0, "plan stats: %s does not have the %zu bytes of layer %s", s->path, bytes, s->name);
  }
  return good;
}

static int measure(const record *r, pith_profile *profile, pith_dtype dtype) {
  int code = CLI_OK;
  for (size_t i = 0; i < r->samples && code == CLI_OK; i++) {
    const sample *s = &r->sample[i];
    size_t bytes = s->n * pith_dtype_size(dtype);
    void *values = must(malloc(bytes));
    pith_ctx ctx = PITH_CTX_INIT;
    ctx.step = i;
    if (!load_values(s, bytes, values)) {
      code = CLI_FAILED;
    } else if (pith_profile_update(profile, s->layer, (pith_cspan){values, s->n, dtype}, &ctx) != PITH_OK) {
      code = cli_fail(CLI_FAILED, "plan stats: %s", pith_error());
    }
    free(values);
  }
  return code;
}

static pith_status create(const record *r, const char *candidates, pith_profile **profile) {
  pith_layer *layers = must(calloc(r->layers, sizeof *layers));
  for (size_t i = 0; i < r->samples; i++) {
    const sample *s = &r->sample[i];
    layers[s->layer] = (pith_layer){sizeof(pith_layer), s->name, s->shape, s->dimensions, PITH_F32, NULL};
  }
  pith_status status = pith_profile_create(layers, r->layers, candidates, profile);
  free(layers);
  return status;
}

static void report(const record *r, const pith_profile *profile, const char *output) {
  size_t fixed = 0;
  for (size_t i = 0; i < r->layers; i++) {
    pith_profile_layer layer = PITH_PROFILE_LAYER_INIT;
    pith_profile_layer_get(profile, i, &layer);
    fixed += (size_t)(layer.fixed != 0);
    if (layer.skipped) {
      cli_fail(0, "layer %s: %llu gradients with NaN or Inf were left out", layer.name,
               (unsigned long long)layer.skipped);
    }
  }
  cli_say(stdout, "", "%zu gradients of %zu layers (%zu of them travel uncompressed), %zu candidates: %s", r->samples,
          r->layers, fixed, pith_profile_candidates(profile), output);
}

static int run(const char *list, const char *candidates, pith_dtype dtype, const char *output) {
  record r = {.samples = 0};
  pith_profile *profile = NULL;
  int code = read_list(&r, list) ? CLI_OK : CLI_FAILED;
  if (code == CLI_OK) {
    pith_status status = create(&r, candidates, &profile);
    code = status == PITH_OK ? measure(&r, profile, dtype) : cli_plan_failed("stats", status);
  }
  if (code == CLI_OK) {
    pith_status status = pith_profile_save(profile, output);
    code = status == PITH_OK ? CLI_OK : cli_plan_failed("stats", status);
  }
  if (code == CLI_OK) {
    report(&r, profile, output);
  }
  pith_profile_destroy(profile);
  free_record(&r);
  return code;
}

/* Candidates around each spec given; none twice. */
static pith_status join_candidates(const cli_list *around, cli_buffer *all) {
  const char *mix = "mix";
  for (size_t i = 0; i < (around->count ? around->count : 1); i++) {
    char text[CANDIDATES_SIZE];
    pith_status status = pith_plan_candidates(around->count ? around->item[i] : mix, text, sizeof text);
    if (status != PITH_OK) {
      return status;
    }
    cli_buffer_add(all, text, strlen(text));
    cli_buffer_add(all, ";", 1);
  }
  cli_buffer_add(all, "", 1);
  return PITH_OK;
}

int cli_plan_stats(int argc, char **argv) {
  cli_list files = {.count = 0}, around = {.count = 0};
  const char *output = "stats.json", *candidates = NULL;
  int dtype = PITH_F32;
  const cli_option options[] = {
      {"--around", CLI_LIST, &around, "SPEC",
       "measure strengths around this spec; may be repeated (strengths of all families)"},
      {"--candidates", CLI_TEXT, &candidates, "SPEC;…", "measure these instead"},
      {"--dtype", CLI_CHOICE, &dtype, "f32|f16|bf16", "type of the values in the files (f32)"},
      {"-o", CLI_TEXT, &output, "FILE", "write the statistics to this file (stats.json)"},
      {.name = NULL}};
  const cli_usage usage = {
      "plan stats", "LIST",
      "Makes statistics from recorded gradients. LIST has a line \"NAME SHAPE FILE\" for each, as in\n"
      "  fc1.weight 512x784 fc1.f32\n"
      "The file contains the raw values. A name that appears again is another sample of that layer.",
      options};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, &files);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  if (files.count != 1) {
    return cli_fail(CLI_USAGE, "plan stats: which list? pith plan stats gradients.txt -o stats.json");
  }
  cli_buffer all = {NULL, 0, 0};
  pith_status status = candidates ? PITH_OK : join_candidates(&around, &all);
  int code = status == PITH_OK ? run(files.item[0], candidates ? candidates : all.data, (pith_dtype)dtype, output)
                               : cli_plan_failed("stats", status);
  cli_buffer_free(&all);
  return code;
}
