/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON writer. */
#include "cli/base/json.h"

#include <inttypes.h>
#include <math.h>

static void put_line_start(cli_json *json) { fprintf(json->file, "\n%*s", 2 * json->depth, ""); }

/* Bytes of the UTF-8 character at s, or 0 if it is none. Overlong forms and surrogates are none. */
static int utf8_length(const unsigned char *s) {
  static const struct {
    unsigned char mask, lead, length;
    uint32_t least;
  } forms[] = {{0x80, 0x00, 1, 0}, {0xe0, 0xc0, 2, 0x80}, {0xf0, 0xe0, 3, 0x800}, {0xf8, 0xf0, 4, 0x10000}};
  for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
    if ((s[0] & forms[f].mask) != forms[f].lead) {
      continue;
    }
    uint32_t code = s[0] & (unsigned char)~forms[f].mask;
    for (int i = 1; i < forms[f].length; i++) {
      if ((s[i] & 0xc0) != 0x80) { /* also stops at the final zero */
        return 0;
      }
      code = code << 6 | (s[i] & 0x3f);
    }
    int surrogate = code >= 0xd800 && code < 0xe000;
    return code < forms[f].least || code > 0x10ffff || surrogate ? 0 : forms[f].length;
  }
  return 0;
}

static void put_string(FILE *file, const char *text) {
  const unsigned char *s = (const unsigned char *)text;
  fputc('"', file);
  while (*s) {
    int length = utf8_length(s);
    if (length == 0) {
      fputs("\\ufffd", file);
      length = 1;
    } else if (*s == '"' || *s == '\\') {
      fprintf(file, "\\%c", *s);
    } else if (*s < 0x20 || *s == 0x7f) {
      fprintf(file, "\\u%04x", *s);
    } else {
      fwrite(s, 1, (size_t)length, file);
    }
    s += length;
  }
  fputc('"', file);
}

/* What stands before any value: comma, line, key. */
static void put_key(cli_json *json, const char *key) {
  if (json->filled) {
    fputc(',', json->file);
  }
  if (json->depth > 0) {
    put_line_start(json);
  }
  if (key) {
    put_string(json->file, key);
    fputs(": ", json->file);
  }
  json->filled = 1;
}

static void open_scope(cli_json *json, const char *key, char bracket) {
  put_key(json, key);
  fputc(bracket, json->file);
  json->depth++;
  json->filled = 0;
}

static void close_scope(cli_json *json, char bracket) {
  json->depth--;
  if (json->filled) {
    put_line_start(json);
  }
  fputc(bracket, json->file);
  json->filled = 1;
  if (json->depth == 0) {
    fputc('\n', json->file);
  }
}

void cli_json_object(cli_json *json, const char *key) { open_scope(json, key, '{'); }
void cli_json_object_end(cli_json *json) { close_scope(json, '}'); }
void cli_json_array(cli_json *json, const char *key) { open_scope(json, key, '['); }
void cli_json_array_end(cli_json *json) { close_scope(json, ']'); }

void cli_json_string(cli_json *json, const char *key, const char *value) {
  put_key(json, key);
  if (value) {
    put_string(json->file, value);
  } else {
    fputs("null", json->file);
  }
}

void cli_json_number(cli_json *json, const char *key, double value) {
  put_key(json, key);
  if (isfinite(value)) {
    fprintf(json->file, "%.9g", value);
  } else {
    fputs("null", json->file);
  }
}

void cli_json_count(cli_json *json, const char *key, uint64_t value) {
  put_key(json, key);
  fprintf(json->file, "%" PRIu64, value);
}

void cli_json_bool(cli_json *json, const char *key, int value) {
  put_key(json, key);
  fputs(value ? "true" : "false", json->file);
}
