/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of plan and statistics files: see reader.h. */
#include "profile/reader.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)256 << 20)
#define NUMBER_MAX 40 /* characters: more than any number needs */

pith_reader pith__reader_of(pith_bytes text, const char *what) {
  return (pith_reader){text.data, (const char *)text.data + text.size, what, 1};
}

pith_status pith__reader_fail(const pith_reader *r, const char *message, const char *detail) {
  return pith_fail(PITH_ERR_CORRUPT, "the %s is damaged at line %zu: %s%s", r->what, r->line, message, detail);
}

static char peek(pith_reader *r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) {
    r->line += *r->at == '\n';
    r->at++;
  }
  return r->at < r->end ? *r->at : 0;
}

static pith_status expect(pith_reader *r, char c) {
  char wanted[] = {'"', c, '"', 0};
  if (peek(r) != c || r->at == r->end) {
    return pith__reader_fail(r, r->at == r->end ? "it ends too early, before " : "expected ", wanted);
  }
  r->at++;
  return PITH_OK;
}

/* Before entry `index` of an object or array: *more is 0 at the closing bracket, which is then taken. */
static pith_status read_more(pith_reader *r, char close, size_t index, int *more) {
  *more = peek(r) != close || r->at == r->end;
  if (!*more) {
    r->at++;
    return PITH_OK;
  }
  return index ? expect(r, ',') : PITH_OK;
}

pith_status pith__read_array(pith_reader *r, pith_read_element read, void *self) {
  int more = 1;
  PITH_TRY(expect(r, '['));
  for (size_t i = 0;; i++) {
    PITH_TRY(read_more(r, ']', i, &more));
    if (!more) {
      return PITH_OK;
    }
    PITH_TRY(read(self, i));
  }
}

pith_status pith__read_end(pith_reader *r) {
  peek(r);
  return r->at == r->end ? PITH_OK : pith__reader_fail(r, "something follows the end", "");
}

/* ---- Strings ----------------------------------------------------------------------------------------------------- */

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

static int read_hex(pith_reader *r, uint32_t *code) {
  *code = 0;
  for (int i = 0; i < 4; i++, r->at++) {
    int digit = r->at < r->end ? hex_digit(*r->at) : -1;
    if (digit < 0) {
      return 0;
    }
    *code = *code << 4 | (uint32_t)digit;
  }
  return 1;
}

/* At most as many bytes as the escape had characters. */
static char *put_utf8(char *out, uint32_t code) {
  if (code < 0x80) {
    *out++ = (char)code;
  } else if (code < 0x800) {
    *out++ = (char)(0xc0 | code >> 6);
    *out++ = (char)(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    *out++ = (char)(0xe0 | code >> 12);
    *out++ = (char)(0x80 | (code >> 6 & 0x3f));
    *out++ = (char)(0x80 | (code & 0x3f));
  } else {
    *out++ = (char)(0xf0 | code >> 18);
    *out++ = (char)(0x80 | (code >> 12 & 0x3f));
    *out++ = (char)(0x80 | (code >> 6 & 0x3f));
    *out++ = (char)(0x80 | (code & 0x3f));
  }
  return out;
}

/* What follows \u: one code, or the two halves of a large one. */
static int read_unicode(pith_reader *r, uint32_t *code) {
  uint32_t low;
  if (!read_hex(r, code) || *code == 0 || (*code >= 0xdc00 && *code < 0xe000)) {
    return 0;
  }
  if (*code < 0xd800 || *code >= 0xe000) {
    return 1;
  }
  if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u') {
    return 0;
  }
  r->at += 2;
  if (!read_hex(r, &low) || low < 0xdc00 || low >= 0xe000) {
    return 0;
  }
  *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
  return 1;
}

static int read_escape(pith_reader *r, char **out) {
  static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  uint32_t code;
  if (r->at == r->end) {
    return 0;
  }
  char c = *r->at++;
  const char *found = c ? strchr(names, c) : NULL;
  if (found) {
    *(*out)++ = meanings[found - names];
    return 1;
  }
  if (c != 'u' || !read_unicode(r, &code)) {
    return 0;
  }
  *out = put_utf8(*out, code);
  return 1;
}

static pith_status unescape(pith_reader *r, char *out) {
  while (r->at < r->end && *r->at != '"') {
    char c = *r->at++;
    if ((unsigned char)c < 0x20 || (c == '\\' && !read_escape(r, &out))) {
      return pith__reader_fail(r, "a string has a character that cannot be", "");
    }
    if (c != '\\') {
      *out++ = c;
    }
  }
  *out = 0;
  return expect(r, '"');
}

pith_status pith__read_string(pith_reader *r, char **text) {
  PITH_TRY(expect(r, '"'));
  const char *close = memchr(r->at, '"', (size_t)(r->end - r->at));
  while (close && close[-1] == '\\') { /* may be too far: that only makes more room */
    close = memchr(close + 1, '"', (size_t)(r->end - close - 1));
  }
  size_t room = (size_t)((close ? close : r->end) - r->at) + 1;
  char *made = malloc(room);
  PITH_REQUIRE(made, PITH_ERR_MEMORY, "no memory for a string of %zu bytes", room);
  pith_status status = unescape(r, made);
  if (status != PITH_OK) {
    free(made);
    return status;
  }
  *text = made;
  return PITH_OK;
}

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

static pith_status read_key(pith_reader *r, const char *const *keys, unsigned *seen, unsigned *key) {
  char *text = NULL;
  unsigned k = 0;
  PITH_TRY(pith__read_string(r, &text));
  while (keys[k] && strcmp(keys[k], text) != 0) {
    k++;
  }
  pith_status status = PITH_OK;
  if (!keys[k] || *seen & 1u << k) {
    status = pith__reader_fail(r, keys[k] ? "a key comes twice: " : "no such key: ", text);
  }
  free(text);
  PITH_TRY(status);
  *seen |= 1u << k;
  *key = k;
  return expect(r, ':');
}

pith_status pith__read_object(pith_reader *r, const char *const *keys, pith_read_value read, void *self,
                              unsigned *seen) {
  unsigned key = 0;
  int more = 1;
  *seen = 0;
  PITH_TRY(expect(r, '{'));
  for (size_t i = 0;; i++) {
    PITH_TRY(read_more(r, '}', i, &more));
    if (!more) {
      return PITH_OK;
    }
    PITH_TRY(read_key(r, keys, seen, &key));
    PITH_TRY(read(self, key));
  }
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

/* Digits, sign, point and exponent as JSON has them; strtod would also take hexadecimal, blanks, "inf" and "nan". */
static int is_number(const char *s) {
  s += *s == '-';
  if (*s < '0' || *s > '9') {
    return 0;
  }
  s += strspn(s, "0123456789");
  if (*s == '.') {
    size_t digits = strspn(s + 1, "0123456789");
    s += 1 + digits;
    if (!digits) {
      return 0;
    }
  }
  if ((*s | 0x20) == 'e') {
    s += 1 + (s[1] == '-' || s[1] == '+');
    size_t digits = strspn(s, "0123456789");
    s += digits;
    return digits && !*s;
  }
  return !*s;
}

pith_status pith__read_number(pith_reader *r, double *number) {
  char text[NUMBER_MAX + 1];
  size_t size = 0;
  peek(r);
  while (r->at < r->end && size < NUMBER_MAX && *r->at && strchr("0123456789+-.eE", *r->at)) {
    text[size++] = *r->at++;
  }
  text[size] = 0;
  double value = is_number(text) ? strtod(text, NULL) : NAN;
  if (!isfinite(value)) {
    return pith__reader_fail(r, "expected a number", "");
  }
  *number = value;
  return PITH_OK;
}

pith_status pith__read_count(pith_reader *r, size_t *count) {
  double value = 0;
  PITH_TRY(pith__read_number(r, &value));
  if (value < 0 || value > 9e15 || value != floor(value)) {
    return pith__reader_fail(r, "expected a whole number, not negative", "");
  }
  *count = (size_t)value;
  return PITH_OK;
}

typedef struct shape_target {
  pith_reader *r;
  size_t *shape, most, count;
} shape_target;

static pith_status read_dimension(void *self, size_t index) {
  shape_target *target = self;
  if (index == target->most) {
    return pith__reader_fail(target->r, "a shape has too many dimensions", "");
  }
  target->count = index + 1;
  return pith__read_count(target->r, &target->shape[index]);
}

pith_status pith__read_shape(pith_reader *r, size_t *shape, size_t most, size_t *count) {
  shape_target target = {.r = r, .shape = shape, .most = most};
  PITH_TRY(pith__read_array(r, read_dimension, &target));
  *count = target.count;
  return PITH_OK;
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static pith_status read_stream(FILE *file, const char *path, char **data, size_t *size) {
  size_t capacity = 1 << 16;
  *size = 0;
  for (;;) {
    char *grown = realloc(*data, capacity);
    PITH_REQUIRE(grown, PITH_ERR_MEMORY, "no memory for %s", path);
    *data = grown;
    *size += fread(grown + *size, 1, capacity - *size, file);
    PITH_REQUIRE(!ferror(file), PITH_ERR_SYSTEM, "cannot read %s: %s", path, strerror(errno));
    if (*size < capacity) {
      return PITH_OK;
    }
    PITH_REQUIRE(capacity < FILE_MAX, PITH_ERR_RANGE, "%s is too large: over %zu MiB", path, FILE_MAX >> 20);
    capacity *= 2;
  }
}

pith_status pith__read_file(const char *path, pith_bytes *bytes) {
  char *data = NULL;
  size_t size;
  FILE *file = fopen(path, "rb");
  PITH_REQUIRE(file, PITH_ERR_SYSTEM, "cannot open %s: %s", path, strerror(errno));
  pith_status status = read_stream(file, path, &data, &size);
  fclose(file);
  if (status != PITH_OK) {
    free(data);
    return status;
  }
  *bytes = (pith_bytes){data, size};
  return PITH_OK;
}
