/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PITH_TRACE=FILE: what every rank does when, for chrome://tracing or ui.perfetto.dev. %r is the rank, %h the host, %p
 * the process; without %r or %p each rank adds its number to the name. Costs nothing when it is off. Events are written
 * one a line as they end; the array is closed when the process exits.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/log.h"
#include "comm/comm.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
static int decided;        /* whether the environment was looked at */
static unsigned opened_in; /* which process: children write nothing */

static void close_file(void) {
  if (opened_in != pith__fork_number()) {
    return;
  }
  pthread_mutex_lock(&mutex);
  if (file) {
    fprintf(file, "{}]\n");
    fclose(file);
    file = NULL;
  }
  pthread_mutex_unlock(&mutex);
}

static void open_file(int rank) {
  const char *given = secure_getenv("PITH_TRACE");
  char pattern[1024], name[1100];
  decided = 1;
  if (!given || !*given) {
    return;
  }
  int tells_ranks_apart = strstr(given, "%r") || strstr(given, "%p");
  snprintf(pattern, sizeof pattern, "%s%s", given, tells_ranks_apart ? "" : ".%r");
  int fd = pith__log_file_name(pattern, rank, name, sizeof name)
               ? open(name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666)
               : -1;
  if (!(file = fd >= 0 ? fdopen(fd, "w") : NULL)) {
    fprintf(stderr, "pith: cannot write PITH_TRACE %s; nothing is traced\n", given);
    return;
  }
  setvbuf(file, NULL, _IOLBF, 0); /* nothing is left in the buffer that a forked child would write again */
  opened_in = pith__fork_number();
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

/* One event from `start` to `end` (pith__now()). Texts are plain. `detail` is shown as an argument. */
static void trace(int rank, const char *kind, const char *name, const char *detail, double start, double end) {
  pthread_mutex_lock(&mutex);
  if (file) {
    fprintf(file,
            "{\"ph\":\"X\",\"pid\":%d,\"tid\":\"%s\",\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"detail\":\"%"
            "s\"}},\n",
            rank, kind, name, start * 1e6, (end - start) * 1e6, detail ? detail : "");
  }
  pthread_mutex_unlock(&mutex);
}

void pith__trace_work(const pith_operation *op, const pith_task *task, double start) {
  char detail[64];
  pith_work_fn w = task->work;
  int encodes = w == pith__work_encode || w == pith__work_encode_result;
  int decodes = w == pith__work_decode || w == pith__work_decode_result || w == pith__work_decode_to_dst;
  snprintf(detail, sizeof detail, "%zu values from %zu", task->n, task->first);
  trace(op->comm->rank, "work", encodes ? "encode" : decodes ? "decode" : "reduce", detail, start, pith__now());
}

void pith__trace_operation(const pith_operation *op) {
  char name[64], detail[PITH_SPEC_MAX + 64];
  const pith_codec *codec = op->job.codec;
  snprintf(name, sizeof name, "%s %llu", pith__operation_name(op->frame.operation),
           (unsigned long long)op->frame.sequence);
  snprintf(detail, sizeof detail, "%zu values, %s", op->job.src.n, codec ? codec->spec : "uncompressed");
  trace(op->comm->rank, "operations", name, detail, op->started_at, pith__now());
}
