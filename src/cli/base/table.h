/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables on standard output. Rows are printed as they come, so that a long benchmark shows its first result at once;
 * a column that must be wider than its title is told of its texts beforehand. A table fits the page: where its
 * columns are too wide together, the widest columns of text become narrower and their cells take several lines.
 */
#ifndef PITH_CLI_TABLE_H
#define PITH_CLI_TABLE_H

#include <stddef.h>

enum { CLI_COLUMNS_MAX = 20 };

typedef struct cli_column {
  const char *title;
  int right;    /* aligned to the right, for numbers; never broken */
  size_t width; /* in characters; grows to that of the title and of the texts fitted */
  int hidden;   /* not printed, though rows have a cell for it */
} cli_column;

typedef struct cli_table {
  size_t columns;
  cli_column column[CLI_COLUMNS_MAX];
  int wide; /* may be wider than the page (--wide) */
} cli_table;

void cli_table_fit(cli_table *table, size_t column, const char *text);
void cli_table_head(cli_table *table);

/* One text for each column; NULL is empty. */
void cli_table_row(const cli_table *table, const char *const *cells);

#endif
