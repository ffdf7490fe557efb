/* SPDX-License-Identifier: Apache-2.0 */
/* Time over ranks as a picture, both in logarithms: a line for each codec and algorithm. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/base/plot.h"
#include "cli/sim/sim.h"

typedef struct series {
  const cli_sim_row *first[CLI_PLOT_NAMES];
  size_t count;
} series;

static int is_drawn(const cli_sim_row *row) { return !*row->why_not && row->result.seconds > 0; }

static int is_alike(const cli_sim_row *a, const cli_sim_row *b) {
  return a->spec == b->spec && !strcmp(a->result.algorithm, b->result.algorithm);
}

static void name_of(const cli_sim_row *row, char *text, size_t size) {
  snprintf(text, size, "%s %s", row->spec, row->result.algorithm);
}

static void find_series(series *s, const cli_sim_rows *rows) {
  for (size_t i = 0; i < rows->count; i++) {
    size_t k = 0;
    while (k < s->count && !is_alike(s->first[k], &rows->row[i])) {
      k++;
    }
    if (is_drawn(&rows->row[i]) && k == s->count && k < CLI_PLOT_NAMES) {
      s->first[s->count++] = &rows->row[i];
    }
  }
}

static void find_range(cli_plot *p, const cli_sim_rows *rows) {
  p->x_low = p->y_low = INFINITY;
  p->x_high = p->y_high = -INFINITY;
  for (size_t i = 0; i < rows->count; i++) {
    const cli_sim_row *row = &rows->row[i];
    if (is_drawn(row)) {
      p->x_low = fmin(p->x_low, floor(log2(row->ranks)));
      p->x_high = fmax(p->x_high, ceil(log2(row->ranks)));
      p->y_low = fmin(p->y_low, floor(log10(row->result.seconds)));
      p->y_high = fmax(p->y_high, ceil(log10(row->result.seconds)));
    }
  }
  p->x_high = fmax(p->x_high, p->x_low + 1);
  p->y_high = fmax(p->y_high, p->y_low + 1);
}

static void draw_axes(cli_plot *p, size_t bytes) {
  char text[64], size[24];
  double step = ceil((p->x_high - p->x_low) / 12);
  for (double x = p->x_low; x <= p->x_high; x += step) {
    snprintf(text, sizeof text, "%.0f", exp2(x));
    cli_plot_x_tick(p, x, text, NULL);
  }
  for (double y = p->y_low; y <= p->y_high; y++) {
    double seconds = pow(10, y);
    int unit = seconds < 0.9e-3 ? 2 : seconds < 0.9 ? 1 : 0;
    snprintf(text, sizeof text, "%g %s", seconds * pow(1000, unit), (const char *[]){"s", "ms", "µs"}[unit]);
    cli_plot_y_tick(p, y, text);
  }
  snprintf(text, sizeof text, "time of %s%s", bytes ? "an allreduce of " : "a barrier",
           bytes ? cli_size_print(bytes, size) : "");
  cli_plot_axes(p, "ranks", text);
}

static int draw_series(cli_plot *p, const cli_sim_rows *rows, const cli_sim_row *first, size_t index) {
  double *x = calloc(rows->count, 2 * sizeof *x), *y = x ? x + rows->count : NULL;
  size_t count = 0;
  if (!x) {
    return cli_fail(CLI_FAILED, "out of memory");
  }
  for (size_t i = 0; i < rows->count; i++) {
    if (is_drawn(&rows->row[i]) && is_alike(&rows->row[i], first)) {
      x[count] = log2(rows->row[i].ranks);
      y[count++] = log10(rows->row[i].result.seconds);
    }
  }
  cli_plot_line(p, index, x, y, count);
  char text[sizeof p->name->text];
  name_of(first, text, sizeof text);
  for (size_t i = 0; i < count; i++) {
    cli_plot_point(p, index, x[i], y[i], text);
  }
  cli_plot_name_series(p, index, y[count - 1], text);
  free(x);
  return CLI_OK;
}

int cli_sim_plot(const cli_sim_rows *rows, size_t bytes, const char *path) {
  series s = {.count = 0};
  cli_plot p = {.names = 0};
  find_series(&s, rows);
  if (!s.count) {
    return cli_fail(CLI_FAILED, "--plot %s: there is nothing to draw", path);
  }
  size_t longest = 0;
  for (size_t i = 0; i < s.count; i++) {
    char text[sizeof p.name->text];
    name_of(s.first[i], text, sizeof text);
    longest = strlen(text) > longest ? strlen(text) : longest;
  }
  find_range(&p, rows);
  int failed = cli_plot_begin(
      &p, path, bytes ? "Time of an allreduce by the number of ranks" : "Time of a barrier by the number of ranks",
      longest);
  if (failed) {
    return failed;
  }
  draw_axes(&p, bytes);
  for (size_t i = 0; i < s.count && !failed; i++) {
    failed = draw_series(&p, rows, s.first[i], i);
  }
  int unwritten = cli_plot_end(&p);
  return failed ? failed : unwritten;
}
