/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures that commands draw: one look for all of them, as SVG. A plot has a frame with ticks, and series in numbered
 * colours, each with its name. Text and colours suit light and dark surroundings, a phone and paper. */
#ifndef PITH_CLI_PLOT_H
#define PITH_CLI_PLOT_H

#include <stddef.h>
#include <stdio.h>

enum { CLI_PLOT_COLOURS = 8, CLI_PLOT_NAMES = 64 };

/* A name beside the frame, at the height of what it names. */
typedef struct cli_plot_name {
  double y;
  size_t series;
  char text[64];
} cli_plot_name;

/* Coordinates are the caller's, already as they are drawn: logarithms where the axis has a logarithmic scale. */
typedef struct cli_plot {
  double x_low, x_high, y_low, y_high; /* set by the caller before cli_plot_begin() */
  int has_points_only;                 /* likewise: names stand behind a point, not behind a piece of line */
  FILE *file;
  const char *path;
  double right; /* where the frame ends */
  cli_plot_name name[CLI_PLOT_NAMES];
  size_t names;
} cli_plot;

/* Opens the file and draws the frame. `longest` is the number of characters of the longest name that will stand beside
 * the frame. Returns an exit code and prints what is wrong. */
int cli_plot_begin(cli_plot *plot, const char *path, const char *title, size_t longest);

/* What the axes are, with units. */
void cli_plot_axes(cli_plot *plot, const char *x_name, const char *y_name);

/* A line of the grid with its number. `up` is a text that stands raised behind it, as an exponent; NULL: none. */
void cli_plot_x_tick(cli_plot *plot, double x, const char *text, const char *up);
void cli_plot_y_tick(cli_plot *plot, double y, const char *text);

/* A point; `title` appears when it is pointed at, and may be NULL. Texts may have any bytes. */
void cli_plot_point(cli_plot *plot, size_t series, double x, double y, const char *title);

/* A line through `count` points. */
void cli_plot_line(cli_plot *plot, size_t series, const double *x, const double *y, size_t count);

/* The name of a series beside the frame, at the height y or as near as other names leave room. */
void cli_plot_name_series(cli_plot *plot, size_t series, double y, const char *text);

/* Writes the names and closes the file. Returns an exit code and prints what is wrong. */
int cli_plot_end(cli_plot *plot);

#endif
