/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses in words, and the thread's last error. */
#include "base/status.h"

#include <pith/pith.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

static _Thread_local char error_text[sizeof(pith_kept_error)];

const char *pith_version(void) {
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
  return TEXT(PITH_VERSION_MAJOR) "." TEXT(PITH_VERSION_MINOR) "." TEXT(PITH_VERSION_PATCH);
}

const char *pith_status_string(pith_status status) {
  switch (status) {
#define PITH_STATUS_CASE(name, value, text) \
  case PITH_##name:                         \
    return text;
    PITH_STATUS_LIST(PITH_STATUS_CASE)
#undef PITH_STATUS_CASE
  }
  return "unknown status";
}

const char *pith_error(void) { return error_text; }

pith_status pith_fail(pith_status status, const char *format, ...) {
  /* Formatted aside first: an argument may point into the previous message. */
  char text[sizeof error_text];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  snprintf(error_text, sizeof error_text, "%s", text);
  PITH_LOG_INFO("%s: %s", pith_status_string(status), error_text);
  return status;
}

void pith__error_keep(pith_kept_error *kept) { memcpy(kept->text, error_text, sizeof error_text); }

void pith__error_restore(const pith_kept_error *kept) { memcpy(error_text, kept->text, sizeof error_text); }

size_t pith_dtype_size(pith_dtype dtype) {
  switch (dtype) {
    case PITH_F64:
    case PITH_I64:
      return 8;
    case PITH_F32:
    case PITH_I32:
      return 4;
    case PITH_F16:
    case PITH_BF16:
    case PITH_I16:
      return 2;
    case PITH_I8:
    case PITH_U8:
      return 1;
  }
  return 0;
}

const char *pith_dtype_name(pith_dtype dtype) {
  static const char *const names[] = {"f32", "f16", "bf16", "i8", "i16", "i32", "f64", "i64", "u8"};
  return (unsigned)dtype < sizeof names / sizeof *names ? names[dtype] : "?";
}
