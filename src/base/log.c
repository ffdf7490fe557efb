/* SPDX-License-Identifier: Apache-2.0 */
/* The log: one line a message, written with a single call so that lines of several ranks do not mix. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pith_log_level current = PITH_LOG_OFF;
static FILE *sink;

static const char *const level_names[] = {"OFF", "WARN", "INFO", "TRACE"};

int pith__log_file_name(const char *pattern, int rank, char *name, unsigned long size) {
  size_t used = 0;
  for (const char *p = pattern; *p; p++) {
    char piece[256] = {*p, 0};
    if (*p == '%' && p[1] == 'h') {
      gethostname(piece, sizeof piece - 1);
      p++;
    } else if (*p == '%' && p[1] == 'p') {
      snprintf(piece, sizeof piece, "%ld", (long)getpid());
      p++;
    } else if (*p == '%' && p[1] == 'r' && rank >= 0) {
      snprintf(piece, sizeof piece, "%d", rank);
      p++;
    }
    size_t length = strlen(piece);
    if (used + length + 1 > size) {
      return 0;
    }
    memcpy(name + used, piece, length);
    used += length;
  }
  name[used] = 0;
  return 1;
}

static void open_sink(void) {
  sink = stderr;
  const char *pattern = getenv("PITH_DEBUG_FILE");
  char name[1024];
  if (!pattern || !*pattern) {
    return;
  }
  if (!pith__log_file_name(pattern, -1, name, sizeof name)) {
    fprintf(stderr, "pith: PITH_DEBUG_FILE is too long; logging to standard error\n");
    return;
  }
  FILE *file = fopen(name, "a");
  if (!file) {
    fprintf(stderr, "pith: cannot write PITH_DEBUG_FILE %s; logging to standard error\n", name);
    return;
  }
  sink = file;
}

static void start(void) {
  const char *wanted = getenv("PITH_DEBUG");
  if (!wanted || !*wanted) {
    return;
  }
  for (int i = PITH_LOG_OFF; i <= PITH_LOG_TRACE_; i++) {
    if (!strcasecmp(wanted, level_names[i])) {
      current = (pith_log_level)i;
      if (i != PITH_LOG_OFF) {
        open_sink();
      }
      return;
    }
  }
  fprintf(stderr, "pith: PITH_DEBUG=%s is not one of WARN, INFO, TRACE; logging is off\n", wanted);
}

pith_log_level pith__log_level(void) {
  pthread_once(&once, start);
  return current;
}

void pith__log(pith_log_level level, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fprintf(sink, "pith[%ld] %s %s\n", (long)getpid(), level_names[level], text);
  fflush(sink);
}
