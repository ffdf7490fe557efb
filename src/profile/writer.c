/* SPDX-License-Identifier: Apache-2.0 */
/* The writer of plan and statistics files: see writer.h. */
#include "profile/writer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int make_room(pith_writer *w, size_t more) {
  if (w->size + more + 1 <= w->capacity) {
    return 1;
  }
  size_t capacity = 2 * w->capacity + more + 1;
  char *grown = w->failed ? NULL : realloc(w->text, capacity);
  if (!grown) {
    w->failed = 1;
    return 0;
  }
  w->text = grown;
  w->capacity = capacity;
  return 1;
}

void pith__write(pith_writer *w, const char *format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int size = vsnprintf(NULL, 0, format, args);
  if (size >= 0 && make_room(w, (size_t)size)) {
    w->size += (size_t)vsnprintf(w->text + w->size, w->capacity - w->size, format, again);
  }
  va_end(again);
  va_end(args);
}

void pith__write_string(pith_writer *w, const char *text) {
  pith__write(w, "\"");
  for (const char *s = text; *s;) {
    size_t plain = 0;
    while ((unsigned char)s[plain] >= 0x20 && s[plain] != '"' && s[plain] != '\\') {
      plain++;
    }
    pith__write(w, "%.*s", (int)plain, s);
    s += plain;
    if (*s) {
      pith__write(w, *s == '"' || *s == '\\' ? "\\%c" : "\\u%04x", *s);
      s++;
    }
  }
  pith__write(w, "\"");
}

/* The shortest of a few precisions that reads back as the same. */
void pith__write_number(pith_writer *w, double number) {
  char text[40];
  for (int digits = 6; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, number);
    if (strtod(text, NULL) == number) {
      break;
    }
  }
  pith__write(w, "%s", text);
}

void pith__write_shape(pith_writer *w, const size_t *shape, size_t dimensions) {
  pith__write(w, "[");
  for (size_t i = 0; i < dimensions; i++) {
    pith__write(w, "%s%zu", i ? ", " : "", shape[i]);
  }
  pith__write(w, "]");
}

pith_status pith__writer_close(pith_writer *w, char **text) {
  if (w->failed || !w->text) {
    free(w->text);
    return pith_fail(PITH_ERR_MEMORY, "no memory for the text of a file");
  }
  *text = w->text;
  return PITH_OK;
}

static pith_status write_and_rename(const char *fresh, const char *path, const char *text) {
  size_t size = strlen(text);
  FILE *file = fopen(fresh, "wb");
  PITH_REQUIRE(file, PITH_ERR_SYSTEM, "cannot write %s: %s", fresh, strerror(errno));
  int good = fwrite(text, 1, size, file) == size;
  good = fclose(file) == 0 && good;
  if (!good || rename(fresh, path)) {
    int reason = errno;
    remove(fresh);
    return pith_fail(PITH_ERR_SYSTEM, "cannot write %s: %s", path, strerror(reason));
  }
  return PITH_OK;
}

pith_status pith__write_file(const char *path, const char *text) {
  pith_writer name = {.text = NULL};
  char *fresh = NULL;
  pith__write(&name, "%s.new", path);
  PITH_TRY(pith__writer_close(&name, &fresh));
  pith_status status = write_and_rename(fresh, path, text);
  free(fresh);
  return status;
}
