/* A plan as a picture: bits per value of each layer against its size, a colour for each method. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/base/cli.h"
#include "cli/plan/plan_command.h"

enum { WIDTH = 720, HEIGHT = 440, LEFT = 64, RIGHT = 120, TOP = 24, BOTTOM = 48, FAMILIES = 8, FAMILY_SIZE = 32 };

static const char *const colours[FAMILIES] = {"#4269d0", "#ff725c", "#3ca951", "#a463f2",
                                              "#efb118", "#6cc5b0", "#97bbf5", "#9c6b4e"};

typedef struct plot {
  FILE *file;
  double least, most; /* log10 of sizes */
  double bottom, top; /* log2 of bits */
  char family[FAMILIES][FAMILY_SIZE];
  size_t families;
} plot;

static double x_of(const plot *p, double n) {
  return LEFT + (log10(n) - p->least) / (p->most - p->least) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const plot *p, double bits) {
  return TOP + (p->top - log2(bits)) / (p->top - p->bottom) * (HEIGHT - TOP - BOTTOM);
}

/* "topk" of ef/topk:0.01 */
static void family_of(const char *spec, char *family) {
  const char *stage = strrchr(spec, '/');
  stage = stage ? stage + 1 : spec;
  snprintf(family, FAMILY_SIZE, "%.*s", (int)strcspn(stage, ":,"), stage);
}

static size_t colour_of(plot *p, const char *spec) {
  char family[FAMILY_SIZE];
  family_of(spec, family);
  size_t i = 0;
  while (i < p->families && strcmp(p->family[i], family) != 0) {
    i++;
  }
  if (i == p->families && i < FAMILIES) {
    memcpy(p->family[p->families++], family, FAMILY_SIZE);
  }
  return i < FAMILIES ? i : FAMILIES - 1;
}

static int is_drawn(const pith_plan_layer *layer) { return layer->n > 0 && layer->bytes > 0; }

static size_t find_range(plot *p, const pith_plan *plan) {
  pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
  size_t points = 0;
  p->least = p->bottom = INFINITY;
  p->most = p->top = -INFINITY;
  for (size_t i = 0; pith_plan_layer_get(plan, i, &layer) == PITH_OK; i++) {
    if (is_drawn(&layer)) {
      double n = (double)layer.n, bits = 8 * layer.bytes / n;
      p->least = fmin(p->least, floor(log10(n)));
      p->most = fmax(p->most, floor(log10(n)) + 1);
      p->bottom = fmin(p->bottom, floor(log2(bits)));
      p->top = fmax(p->top, ceil(log2(bits)));
      points++;
    }
  }
  p->top = fmax(p->top, p->bottom + 1);
  return points;
}

static void draw_axes(const plot *p) {
  fprintf(p->file, "<g stroke=\"#ddd\" fill=\"none\">\n");
  for (double e = p->least; e <= p->most; e++) {
    fprintf(p->file, "<path d=\"M%.1f %d V%d\"/>\n", x_of(p, pow(10, e)), TOP, HEIGHT - BOTTOM);
  }
  for (double b = p->bottom; b <= p->top; b++) {
    fprintf(p->file, "<path d=\"M%d %.1f H%d\"/>\n", LEFT, y_of(p, exp2(b)), WIDTH - RIGHT);
  }
  fprintf(p->file, "</g>\n<g fill=\"#333\">\n");
  for (double e = p->least; e <= p->most; e++) {
    fprintf(p->file,
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">10<tspan dy=\"-5\" font-size=\"9\">%.0f</tspan></text>\n",
            x_of(p, pow(10, e)), HEIGHT - BOTTOM + 18, e);
  }
  for (double b = p->bottom; b <= p->top; b++) {
    fprintf(p->file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 8, y_of(p, exp2(b)) + 4,
            exp2(b));
  }
  fprintf(p->file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">values of the layer</text>\n",
          (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10);
  fprintf(
      p->file,
      "<text x=\"16\" y=\"%d\" text-anchor=\"middle\" transform=\"rotate(-90 16 %d)\">bits per value</text>\n</g>\n",
      (TOP + HEIGHT - BOTTOM) / 2, (TOP + HEIGHT - BOTTOM) / 2);
}

/* Names come from files: what means something in XML is written otherwise. */
static void put_text(FILE *file, const char *text) {
  for (; *text; text++) {
    if (*text == '<' || *text == '&' || *text == '>' || (unsigned char)*text < 0x20) {
      fprintf(file, (unsigned char)*text < 0x20 ? "?" : "&#%d;", *text);
    } else {
      fputc(*text, file);
    }
  }
}

static void draw_points(plot *p, const pith_plan *plan) {
  pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
  for (size_t i = 0; pith_plan_layer_get(plan, i, &layer) == PITH_OK; i++) {
    if (is_drawn(&layer)) {
      double bits = 8 * layer.bytes / (double)layer.n;
      fprintf(p->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\" fill-opacity=\"0.75\"><title>",
              x_of(p, (double)layer.n), y_of(p, bits), colours[colour_of(p, layer.spec)]);
      put_text(p->file, layer.name);
      fprintf(p->file, ": %s, %zu values, %.3f bits</title></circle>\n", layer.spec, layer.n, bits);
    }
  }
}

static void draw_legend(const plot *p) {
  for (size_t i = 0; i < p->families; i++) {
    int y = TOP + 12 + 20 * (int)i;
    fprintf(p->file,
            "<circle cx=\"%d\" cy=\"%d\" r=\"5\" fill=\"%s\"/><text x=\"%d\" y=\"%d\" fill=\"#333\">%s</text>\n",
            WIDTH - RIGHT + 20, y, colours[i], WIDTH - RIGHT + 32, y + 4, p->family[i]);
  }
}

int cli_plan_plot(const pith_plan *plan, const char *path) {
  plot p = {.families = 0};
  if (!find_range(&p, plan)) {
    return cli_fail(CLI_FAILED, "plan: nothing to draw: the plan says nothing of sizes and bytes; give --stats");
  }
  p.file = fopen(path, "w");
  if (!p.file) {
    return cli_fail(CLI_FAILED, "plan: cannot write %s: %s", path, strerror(errno));
  }
  fprintf(
      p.file,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
      WIDTH, HEIGHT, WIDTH, HEIGHT);
  draw_axes(&p);
  draw_points(&p, plan);
  draw_legend(&p);
  fputs("</svg>\n", p.file);
  int bad = ferror(p.file);
  bad |= fclose(p.file);
  return bad ? cli_fail(CLI_FAILED, "plan: cannot write %s", path) : CLI_OK;
}
