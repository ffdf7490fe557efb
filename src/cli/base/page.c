/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out paragraphs word by word. */
#include "cli/base/page.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { NARROWEST = 40, LINE_SIZE = 4096 };

size_t cli_page_width(FILE *file) {
  struct winsize size;
  int fd = fileno(file);
  if (fd < 0 || !isatty(fd) || ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_col > CLI_PAGE_WIDTH) {
    return CLI_PAGE_WIDTH;
  }
  return size.ws_col < NARROWEST ? NARROWEST : size.ws_col;
}

size_t cli_bytes_width(const char *text, size_t size) {
  size_t width = 0;
  for (size_t i = 0; i < size; i++) {
    width += (text[i] & 0xc0) != 0x80;
  }
  return width;
}

size_t cli_text_width(const char *text) { return cli_bytes_width(text, strlen(text)); }

void cli_pad(FILE *file, const char *text, size_t width) {
  size_t used = cli_text_width(text);
  fprintf(file, "%s%*s", text, used < width ? (int)(width - used) : 0, "");
}

/* Bytes of the next word. Of one that is longer than `room`, as specs may be, what ends with a comma and fits. */
static size_t word_size(const char *text, size_t room) {
  size_t size = strcspn(text, " \n"), best = 0;
  if (cli_bytes_width(text, size) <= room) {
    return size;
  }
  for (size_t i = 0; i < size; i++) {
    if (strchr(",|;", text[i]) && cli_bytes_width(text, i + 1) <= room) {
      best = i + 1;
    }
  }
  return best ? best : size;
}

void cli_paragraph(FILE *file, const char *first, const char *rest, const char *text) {
  size_t page = cli_page_width(file), used = cli_text_width(first), words = 0;
  const size_t indent = cli_text_width(rest) < page ? cli_text_width(rest) : 0;
  fputs(first, file);
  for (text += strspn(text, " \n"); *text; text += strspn(text, " \n")) {
    size_t size = word_size(text, page - indent), width = cli_bytes_width(text, size);
    if (words && used + 1 + width > page) {
      fprintf(file, "\n%s", rest);
      used = cli_text_width(rest);
      words = 0;
    }
    fprintf(file, "%s%.*s", words ? " " : "", (int)size, text);
    used += width + (words > 0);
    words++;
    text += size;
  }
  fputc('\n', file);
}

void cli_say(FILE *file, const char *first, const char *format, ...) {
  char *text = NULL, rest[LINE_SIZE];
  size_t indent = cli_text_width(first);
  va_list args;
  va_start(args, format);
  if (vasprintf(&text, format, args) < 0) {
    text = NULL;
  }
  va_end(args);
  snprintf(rest, sizeof rest, "%*s", (int)indent, "");
  cli_paragraph(file, first, rest, text ? text : format);
  free(text);
}

void cli_paragraphs(FILE *file, const char *text) {
  while (*text) {
    size_t size = strcspn(text, "\n");
    if (size == 0 || *text == ' ') { /* an empty line, or an example */
      fprintf(file, "%.*s\n", (int)size, text);
    } else { /* up to the next of those */
      char *paragraph;
      while (text[size] == '\n' && text[size + 1] && text[size + 1] != '\n' && text[size + 1] != ' ') {
        size += 1 + strcspn(text + size + 1, "\n");
      }
      if ((paragraph = strndup(text, size))) {
        cli_paragraph(file, "", "", paragraph);
        free(paragraph);
      }
    }
    text += size + (text[size] == '\n');
  }
}
