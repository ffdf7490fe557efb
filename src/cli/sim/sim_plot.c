/* Time over ranks as a picture, both in logarithms: a line for each codec and algorithm. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/sim/sim.h"

enum { WIDTH = 760, HEIGHT = 440, LEFT = 72, RIGHT = 200, TOP = 24, BOTTOM = 48, COLOURS = 8, SERIES_MAX = 64 };

static const char *const colours[COLOURS] = {"#4269d0", "#ff725c", "#3ca951", "#a463f2",
                                             "#efb118", "#6cc5b0", "#97bbf5", "#9c6b4e"};

typedef struct plot {
  FILE *file;
  double least, most;                    /* log2 of ranks */
  double bottom, top;                    /* log10 of seconds */
  const cli_sim_row *series[SERIES_MAX]; /* the first row of each */
  size_t count;
} plot;

static int is_drawn(const cli_sim_row *row) { return !*row->why_not && row->result.seconds > 0; }

static int is_alike(const cli_sim_row *a, const cli_sim_row *b) {
  return a->spec == b->spec && !strcmp(a->result.algorithm, b->result.algorithm);
}

static double x_of(const plot *p, double ranks) {
  return LEFT + (log2(ranks) - p->least) / (p->most - p->least) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const plot *p, double seconds) {
  return TOP + (p->top - log10(seconds)) / (p->top - p->bottom) * (HEIGHT - TOP - BOTTOM);
}

static size_t find_range(plot *p, const cli_sim_rows *rows) {
  size_t drawn = 0;
  p->least = p->bottom = INFINITY;
  p->most = p->top = -INFINITY;
  for (size_t i = 0; i < rows->count; i++) {
    const cli_sim_row *row = &rows->row[i];
    if (is_drawn(row)) {
      p->least = fmin(p->least, floor(log2(row->ranks)));
      p->most = fmax(p->most, ceil(log2(row->ranks)));
      p->bottom = fmin(p->bottom, floor(log10(row->result.seconds)));
      p->top = fmax(p->top, ceil(log10(row->result.seconds)));
      size_t s = 0;
      while (s < p->count && !is_alike(p->series[s], row)) {
        s++;
      }
      if (s == p->count && s < SERIES_MAX) {
        p->series[p->count++] = row;
      }
      drawn++;
    }
  }
  p->most = fmax(p->most, p->least + 1);
  p->top = fmax(p->top, p->bottom + 1);
  return drawn;
}

static void draw_axes(const plot *p) {
  for (double x = p->least; x <= p->most; x++) {
    fprintf(p->file,
            "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#ddd\"/>"
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n",
            x_of(p, exp2(x)), TOP, x_of(p, exp2(x)), HEIGHT - BOTTOM, x_of(p, exp2(x)), HEIGHT - BOTTOM + 18, exp2(x));
  }
  for (double y = p->bottom; y <= p->top; y++) {
    double seconds = pow(10, y);
    fprintf(p->file,
            "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g %s</text>\n",
            LEFT, y_of(p, seconds), WIDTH - RIGHT, y_of(p, seconds), LEFT - 8, y_of(p, seconds) + 4,
            seconds < 0.9e-3 ? seconds * 1e6
            : seconds < 0.9  ? seconds * 1e3
                             : seconds,
            seconds < 0.9e-3 ? "us"
            : seconds < 0.9  ? "ms"
                             : "s");
  }
  fprintf(p->file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">ranks</text>\n", (LEFT + WIDTH - RIGHT) / 2,
          HEIGHT - 10);
}

static void draw_series(const plot *p, const cli_sim_rows *rows, size_t index) {
  const char *colour = colours[index % COLOURS], *dashes = index < COLOURS ? "" : " stroke-dasharray=\"4 3\"";
  const cli_sim_row *first = p->series[index];
  fprintf(p->file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", colour, dashes);
  for (size_t i = 0; i < rows->count; i++) {
    const cli_sim_row *row = &rows->row[i];
    if (is_drawn(row) && is_alike(row, first)) {
      fprintf(p->file, "%.1f,%.1f ", x_of(p, row->ranks), y_of(p, row->result.seconds));
    }
  }
  fprintf(p->file, "\"/>\n");
  for (size_t i = 0; i < rows->count; i++) {
    const cli_sim_row *row = &rows->row[i];
    if (is_drawn(row) && is_alike(row, first)) {
      fprintf(p->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x_of(p, row->ranks),
              y_of(p, row->result.seconds), colour);
    }
  }
  double y = TOP + 8 + 18 * (double)index;
  fprintf(p->file,
          "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"%s/>"
          "<text x=\"%d\" y=\"%.1f\">%s %s</text>\n",
          WIDTH - RIGHT + 12, y, WIDTH - RIGHT + 30, y, colour, dashes, WIDTH - RIGHT + 36, y + 4, first->spec,
          first->result.algorithm);
}

int cli_sim_plot(const cli_sim_rows *rows, const char *path) {
  plot p = {.count = 0};
  if (!find_range(&p, rows)) {
    return cli_fail(CLI_FAILED, "--plot %s: there is nothing to draw", path);
  }
  p.file = fopen(path, "w");
  if (!p.file) {
    return cli_fail(CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
  }
  fprintf(p.file,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
          "font-size=\"12\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
          WIDTH, HEIGHT, WIDTH, HEIGHT);
  draw_axes(&p);
  for (size_t i = 0; i < p.count; i++) {
    draw_series(&p, rows, i);
  }
  fprintf(p.file, "</svg>\n");
  int failed = ferror(p.file);
  failed |= fclose(p.file) != 0;
  return failed ? cli_fail(CLI_FAILED, "cannot write %s", path) : CLI_OK;
}
