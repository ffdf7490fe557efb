/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as a picture: bits per value of each layer against its size, a colour for each method. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/base/cli.h"
#include "cli/base/plot.h"
#include "cli/plan/plan_command.h"

enum { FAMILIES = CLI_PLOT_COLOURS, FAMILY_SIZE = 32 };

/* The methods of the plan, each with the bits of its layers for the place of its name. */
typedef struct families {
  char name[FAMILIES][FAMILY_SIZE];
  double sum[FAMILIES];
  size_t layers[FAMILIES];
  size_t count;
} families;

/* "topk" of ef/topk:0.01 */
static void family_of(const char *spec, char *family) {
  const char *stage = strrchr(spec, '/');
  stage = stage ? stage + 1 : spec;
  snprintf(family, FAMILY_SIZE, "%.*s", (int)strcspn(stage, ":,"), stage);
}

static size_t find_family(families *f, const char *spec) {
  char family[FAMILY_SIZE];
  family_of(spec, family);
  size_t i = 0;
  while (i < f->count && strcmp(f->name[i], family) != 0) {
    i++;
  }
  if (i == f->count && i < FAMILIES) {
    memcpy(f->name[f->count++], family, FAMILY_SIZE);
  }
  return i < FAMILIES ? i : FAMILIES - 1;
}

static int is_drawn(const pith_plan_layer *layer) { return layer->n > 0 && layer->bytes > 0; }

static double bits_of(const pith_plan_layer *layer) { return 8 * layer->bytes / (double)layer->n; }

static size_t find_range(cli_plot *p, families *f, const pith_plan *plan) {
  pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
  size_t points = 0;
  p->x_low = p->y_low = INFINITY;
  p->x_high = p->y_high = -INFINITY;
  for (size_t i = 0; pith_plan_layer_get(plan, i, &layer) == PITH_OK; i++) {
    if (is_drawn(&layer)) {
      double n = log10((double)layer.n), bits = log2(bits_of(&layer));
      p->x_low = fmin(p->x_low, floor(n));
      p->x_high = fmax(p->x_high, floor(n) + 1);
      p->y_low = fmin(p->y_low, floor(bits));
      p->y_high = fmax(p->y_high, ceil(bits));
      size_t family = find_family(f, layer.spec);
      f->sum[family] += bits;
      f->layers[family]++;
      points++;
    }
  }
  p->y_high = fmax(p->y_high, p->y_low + 1);
  return points;
}

static void draw_axes(cli_plot *p) {
  char text[32];
  for (double e = p->x_low; e <= p->x_high; e++) {
    snprintf(text, sizeof text, "%.0f", e);
    cli_plot_x_tick(p, e, "10", text);
  }
  double step = ceil((p->y_high - p->y_low) / 10);
  for (double b = p->y_low; b <= p->y_high; b += step) {
    snprintf(text, sizeof text, b < 0 ? "1/%g" : "%g", exp2(fabs(b)));
    cli_plot_y_tick(p, b, text);
  }
  cli_plot_axes(p, "values of the layer", "bits per value");
}

static void draw_points(cli_plot *p, families *f, const pith_plan *plan) {
  pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
  for (size_t i = 0; pith_plan_layer_get(plan, i, &layer) == PITH_OK; i++) {
    if (is_drawn(&layer)) {
      char title[512];
      snprintf(title, sizeof title, "%s: %s, %zu values, %.3f bits", layer.name, layer.spec, layer.n, bits_of(&layer));
      cli_plot_point(p, find_family(f, layer.spec), log10((double)layer.n), log2(bits_of(&layer)), title);
    }
  }
}

int cli_plan_plot(const pith_plan *plan, const char *path) {
  cli_plot p = {.names = 0, .has_points_only = 1};
  families f = {.count = 0};
  if (!find_range(&p, &f, plan)) {
    return cli_fail(CLI_FAILED, "plan: nothing to draw: the plan does not contain sizes and bytes; give --stats");
  }
  size_t longest = 0;
  for (size_t i = 0; i < f.count; i++) {
    longest = strlen(f.name[i]) > longest ? strlen(f.name[i]) : longest;
  }
  int failed = cli_plot_begin(&p, path, "Bits per value of each layer by its size", longest);
  if (failed) {
    return failed;
  }
  draw_axes(&p);
  draw_points(&p, &f, plan);
  for (size_t i = 0; i < f.count; i++) {
    cli_plot_name_series(&p, i, f.sum[i] / (double)f.layers[i], f.name[i]);
  }
  return cli_plot_end(&p);
}
