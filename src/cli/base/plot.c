/* SPDX-License-Identifier: Apache-2.0 */
/* See plot.h. The colours are those of python/pith/_look.py; tests/python/test_look.py compares them. They are written
 * out in a style sheet without variables, since printing tools and editors of SVG know no more. */
#include "cli/base/plot.h"

#include <errno.h>
#include <string.h>

#include "cli/base/cli.h"

enum { WIDTH = 600, HEIGHT = 400, LEFT = 64, TOP = 34, BOTTOM = 50, ROW = 17, CHARACTER = 7 };

typedef struct colours {
  const char *paper, *ink, *soft, *line;
  const char *series[CLI_PLOT_COLOURS];
} colours;

static const colours light = {
    "#ffffff",
    "#1b1f24",
    "#57606a",
    "#d8dee4",
    {"#0072b2", "#b35900", "#00785a", "#a8337a", "#7f6300", "#5b4bb7", "#24292f", "#656d76"},
};

static const colours dark = {
    "#0d1117",
    "#e6edf3",
    "#9aa4af",
    "#30363d",
    {"#56b4e9", "#f0a04b", "#2fc79a", "#e58ac0", "#e3c84b", "#b3a6ff", "#f0f3f6", "#9aa4af"},
};

/* Names and specs come from files: what means something in XML is written otherwise. */
static void put_text(FILE *file, const char *text) {
  for (; *text; text++) {
    if (strchr("<>&\"", *text)) {
      fprintf(file, "&#%d;", *text);
    } else {
      fputc((unsigned char)*text < 0x20 ? '?' : *text, file);
    }
  }
}

static void write_colours(FILE *file, const colours *c) {
  fprintf(file, ".paper{fill:%s}text{fill:%s}.soft{fill:%s}.grid{stroke:%s}.axis{stroke:%s}.p{stroke:%s}\n", c->paper,
          c->ink, c->soft, c->line, c->soft, c->paper);
  for (int i = 0; i < CLI_PLOT_COLOURS; i++) {
    fprintf(file, ".l%d{stroke:%s}.p%d,text.n%d{fill:%s}\n", i, c->series[i], i, i, c->series[i]);
  }
}

static double across(const cli_plot *p, double x) {
  return LEFT + (x - p->x_low) / (p->x_high - p->x_low) * (p->right - LEFT);
}

static double down(const cli_plot *p, double y) {
  return TOP + (p->y_high - y) / (p->y_high - p->y_low) * (HEIGHT - TOP - BOTTOM);
}

int cli_plot_begin(cli_plot *p, const char *path, const char *title, size_t longest) {
  p->path = path;
  p->names = 0;
  p->right = WIDTH - 24 - (double)(longest * CHARACTER);
  p->file = fopen(path, "w");
  if (!p->file) {
    return cli_fail(CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
  }
  fprintf(p->file, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\">\n<title>", WIDTH,
          HEIGHT);
  put_text(p->file, title);
  fputs(
      "</title>\n<style>\n"
      "svg{font:12px system-ui,-apple-system,\"Segoe UI\",Roboto,\"Noto Sans\",\"DejaVu Sans\",sans-serif}\n"
      ".axis,.grid{fill:none}.line{fill:none;stroke-width:2}.far{stroke-dasharray:5 3}\n",
      p->file);
  write_colours(p->file, &light);
  fputs("@media (prefers-color-scheme:dark){\n", p->file);
  write_colours(p->file, &dark);
  fputs("}\n@media print{\n", p->file);
  write_colours(p->file, &light);
  fprintf(p->file, "}\n</style>\n<rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n", WIDTH, HEIGHT);
  return CLI_OK;
}

void cli_plot_axes(cli_plot *p, const char *x_name, const char *y_name) {
  fprintf(p->file, "<path class=\"axis\" d=\"M%d %d H%.1f\"/>\n<text class=\"soft\" x=\"4\" y=\"16\">", LEFT,
          HEIGHT - BOTTOM, p->right);
  put_text(p->file, y_name);
  fprintf(p->file, "</text>\n<text class=\"soft\" x=\"%.1f\" y=\"%d\" text-anchor=\"end\">", p->right, HEIGHT - 10);
  put_text(p->file, x_name);
  fputs("</text>\n", p->file);
}

void cli_plot_x_tick(cli_plot *p, double x, const char *text, const char *up) {
  fprintf(p->file,
          "<path class=\"grid\" d=\"M%.1f %d V%d\"/><text class=\"soft\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">",
          across(p, x), TOP, HEIGHT - BOTTOM, across(p, x), HEIGHT - BOTTOM + 17);
  put_text(p->file, text);
  if (up) {
    fputs("<tspan dy=\"-4\" font-size=\"11\">", p->file);
    put_text(p->file, up);
    fputs("</tspan>", p->file);
  }
  fputs("</text>\n", p->file);
}

void cli_plot_y_tick(cli_plot *p, double y, const char *text) {
  fprintf(p->file,
          "<path class=\"grid\" d=\"M%d %.1f H%.1f\"/><text class=\"soft\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">",
          LEFT, down(p, y), p->right, LEFT - 7, down(p, y) + 4);
  put_text(p->file, text);
  fputs("</text>\n", p->file);
}

void cli_plot_point(cli_plot *p, size_t series, double x, double y, const char *title) {
  fprintf(p->file, "<circle class=\"p p%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\">", series % CLI_PLOT_COLOURS,
          across(p, x), down(p, y));
  if (title) {
    fputs("<title>", p->file);
    put_text(p->file, title);
    fputs("</title>", p->file);
  }
  fputs("</circle>\n", p->file);
}

void cli_plot_line(cli_plot *p, size_t series, const double *x, const double *y, size_t count) {
  fprintf(p->file, "<polyline class=\"line l%zu%s\" points=\"", series % CLI_PLOT_COLOURS,
          series < CLI_PLOT_COLOURS ? "" : " far");
  for (size_t i = 0; i < count; i++) {
    fprintf(p->file, "%s%.1f,%.1f", i ? " " : "", across(p, x[i]), down(p, y[i]));
  }
  fputs("\"/>\n", p->file);
}

/* Kept in the order of their heights, the highest first. */
void cli_plot_name_series(cli_plot *p, size_t series, double y, const char *text) {
  if (p->names == CLI_PLOT_NAMES) {
    return;
  }
  size_t i = p->names++;
  for (; i > 0 && p->name[i - 1].y < y; i--) {
    p->name[i] = p->name[i - 1];
  }
  p->name[i].y = y;
  p->name[i].series = series;
  snprintf(p->name[i].text, sizeof p->name[i].text, "%s", text);
}

/* Each at its height, or below the one before; all of them are moved up where the last would lie below the picture. */
static void write_names(cli_plot *p) {
  double at[CLI_PLOT_NAMES], above = 0;
  for (size_t i = 0; i < p->names; i++) {
    at[i] = down(p, p->name[i].y) + 4;
    above = at[i] = at[i] > above + ROW ? at[i] : above + ROW;
  }
  double below = HEIGHT - 8 + ROW;
  for (size_t i = p->names; i-- > 0;) {
    below = at[i] = at[i] < below - ROW ? at[i] : below - ROW;
  }
  for (size_t i = 0; i < p->names; i++) {
    size_t series = p->name[i].series, colour = series % CLI_PLOT_COLOURS;
    if (p->has_points_only) {
      fprintf(p->file, "<circle class=\"p p%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"/>", colour, p->right + 11,
              at[i] - 4);
    } else {
      fprintf(p->file, "<path class=\"line l%zu%s\" d=\"M%.1f %.1f L%.1f %.1f\"/>", colour,
              series < CLI_PLOT_COLOURS ? "" : " far", p->right + 5, at[i] - 4, p->right + 13, at[i] - 4);
    }
    fprintf(p->file, "<text class=\"n%zu\" x=\"%.1f\" y=\"%.1f\">", colour, p->right + 17, at[i]);
    put_text(p->file, p->name[i].text);
    fputs("</text>\n", p->file);
  }
}

int cli_plot_end(cli_plot *p) {
  write_names(p);
  fputs("</svg>\n", p->file);
  int failed = ferror(p->file);
  failed |= fclose(p->file) != 0;
  return failed ? cli_fail(CLI_FAILED, "cannot write %s", p->path) : CLI_OK;
}
