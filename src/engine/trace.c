/* Events are written one a line as they end; the array is closed when the process exits. */
#include "engine/trace.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
static int decided; /* whether the environment was looked at */

/* The name with %r replaced; appended where nothing tells ranks apart. */
static void name_for(const char *pattern, int rank, char *name, size_t size) {
  const char *at = strstr(pattern, "%r");
  if (at) {
    snprintf(name, size, "%.*s%d%s", (int)(at - pattern), pattern, rank, at + 2);
  } else if (strstr(pattern, "%p")) {
    snprintf(name, size, "%s", pattern);
  } else {
    snprintf(name, size, "%s.%d", pattern, rank);
  }
}

static void close_file(void) {
  pthread_mutex_lock(&mutex);
  if (file) {
    fprintf(file, "{}]\n");
    fclose(file);
    file = NULL;
  }
  pthread_mutex_unlock(&mutex);
}

static void open_file(int rank) {
  const char *pattern = getenv("PITH_TRACE");
  char name[1024], whole[1100];
  decided = 1;
  if (!pattern || !*pattern) {
    return;
  }
  name_for(pattern, rank, name, sizeof name);
  if (!pith__log_file_name(name, whole, sizeof whole) || !(file = fopen(whole, "w"))) {
    fprintf(stderr, "pith: cannot write PITH_TRACE %s; nothing is traced\n", name);
    return;
  }
  fprintf(file, "[\n");
  atexit(close_file);
}

int pith__trace_start(int rank) {
  pthread_mutex_lock(&mutex);
  if (!decided) {
    open_file(rank);
  }
  int on = file != NULL;
  pthread_mutex_unlock(&mutex);
  return on;
}

void pith__trace(int rank, const char *kind, const char *name, const char *detail, double start, double end) {
  pthread_mutex_lock(&mutex);
  if (file) {
    fprintf(file,
            "{\"ph\":\"X\",\"pid\":%d,\"tid\":\"%s\",\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"detail\":\"%"
            "s\"}},\n",
            rank, kind, name, start * 1e6, (end - start) * 1e6, detail ? detail : "");
  }
  pthread_mutex_unlock(&mutex);
}
