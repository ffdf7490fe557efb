/* Tables. Widths count characters, not bytes: formulas and names are UTF-8. */
#include "cli/table.h"

#include <stdio.h>

static size_t text_width(const char *text) {
  size_t width = 0;
  for (; *text; text++) {
    width += (*text & 0xc0) != 0x80;
  }
  return width;
}

void cli_table_fit(cli_table *table, size_t column, const char *text) {
  size_t width = text_width(text);
  if (width > table->column[column].width) {
    table->column[column].width = width;
  }
}

static size_t last_filled(const cli_table *table, const char *const *cells) {
  size_t last = table->columns - 1;
  while (last > 0 && (!cells[last] || !*cells[last])) {
    last--;
  }
  return last;
}

void cli_table_row(const cli_table *table, const char *const *cells) {
  size_t last = last_filled(table, cells);
  for (size_t i = 0; i <= last; i++) {
    const cli_column *column = &table->column[i];
    const char *text = cells[i] ? cells[i] : "";
    size_t width = text_width(text);
    int padding = width < column->width ? (int)(column->width - width) : 0;
    int before = column->right ? padding : 0, after = column->right || i == last ? 0 : padding;
    printf("%s%*s%s%*s", i ? "  " : "", before, "", text, after, "");
  }
  putchar('\n');
}

void cli_table_head(cli_table *table) {
  const char *titles[CLI_COLUMNS_MAX] = {NULL};
  for (size_t i = 0; i < table->columns; i++) {
    titles[i] = table->column[i].title;
    cli_table_fit(table, i, titles[i]);
  }
  cli_table_row(table, titles);
}
