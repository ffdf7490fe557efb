/* SPDX-License-Identifier: Apache-2.0 */
/* Tables: column widths, and cells of several lines. */
#include "cli/base/table.h"

#include <stdio.h>
#include <string.h>

#include "cli/base/page.h"

enum { NARROWEST = 8 };

void cli_table_fit(cli_table *table, size_t column, const char *text) {
  size_t width = text ? cli_text_width(text) : 0;
  if (width > table->column[column].width) {
    table->column[column].width = width;
  }
}

static size_t total_width(const cli_table *table) {
  size_t total = 0, shown = 0;
  for (size_t i = 0; i < table->columns; i++) {
    if (!table->column[i].hidden) {
      total += table->column[i].width + (shown++ ? 2 : 0);
    }
  }
  return total;
}

/* The widest column of text that can be narrower; NULL if there is none. */
static cli_column *widest(cli_table *table) {
  cli_column *found = NULL;
  for (size_t i = 0; i < table->columns; i++) {
    cli_column *column = &table->column[i];
    size_t least = column->title ? cli_text_width(column->title) : 0;
    int can_shrink = !column->hidden && !column->right && column->width > (least > NARROWEST ? least : NARROWEST);
    if (can_shrink && (!found || column->width > found->width)) {
      found = column;
    }
  }
  return found;
}

static void shrink_to_page(cli_table *table) {
  size_t page = cli_page_width(stdout);
  cli_column *column;
  while (!table->wide && total_width(table) > page && (column = widest(table))) {
    column->width--;
  }
}

/* Bytes of the next line of a cell: up to the last place to break, or as many characters as fit. */
static size_t line_size(const char *text, size_t width) {
  size_t used = 0, best = 0, i = 0;
  for (; text[i]; i++) {
    int starts = (text[i] & 0xc0) != 0x80;
    if (starts && used++ == width) {
      return text[i] == ' ' || !best ? i : best;
    }
    if (strchr(" ,/;", text[i])) {
      best = i + 1;
    }
  }
  return i;
}

static size_t last_filled(const cli_table *table, const char *const *cells) {
  size_t last = 0;
  for (size_t i = 0; i < table->columns; i++) {
    if (!table->column[i].hidden && cells[i] && *cells[i]) {
      last = i;
    }
  }
  return last;
}

/* Prints one line of a row and moves the cells to what is left of them. Returns whether anything is left. */
static int print_line(const cli_table *table, const char **cells) {
  size_t last = last_filled(table, cells), shown = 0;
  int more = 0;
  for (size_t i = 0; i <= last; i++) {
    const cli_column *column = &table->column[i];
    const char *text = cells[i] ? cells[i] : "";
    if (column->hidden) {
      continue;
    }
    size_t size = column->right || table->wide ? strlen(text) : line_size(text, column->width), end = size;
    while (end && text[end - 1] == ' ') {
      end--;
    }
    cells[i] = text + size + strspn(text + size, " ");
    more |= *cells[i] != 0;
    size_t width = cli_bytes_width(text, end), padding = width < column->width ? column->width - width : 0;
    size_t before = column->right ? padding : 0, after = column->right || i == last ? 0 : padding;
    printf("%s%*s%.*s%*s", shown++ ? "  " : "", (int)before, "", (int)end, text, (int)after, "");
  }
  putchar('\n');
  return more;
}

void cli_table_row(const cli_table *table, const char *const *cells) {
  const char *left[CLI_COLUMNS_MAX] = {NULL};
  memcpy(left, cells, table->columns * sizeof *left);
  while (print_line(table, left)) {
  }
}

void cli_table_head(cli_table *table) {
  const char *titles[CLI_COLUMNS_MAX] = {NULL};
  for (size_t i = 0; i < table->columns; i++) {
    titles[i] = table->column[i].title;
    cli_table_fit(table, i, titles[i]);
  }
  shrink_to_page(table);
  cli_table_row(table, titles);
}
