/* SPDX-License-Identifier: Apache-2.0 */
/* Messages for people, off unless PITH_DEBUG=WARN|INFO|TRACE; to standard error or to PITH_DEBUG_FILE (%h host, %p
 * process). */
#ifndef PITH_BASE_LOG_H
#define PITH_BASE_LOG_H

typedef enum pith_log_level {
  PITH_LOG_OFF = 0,
  PITH_LOG_WARN_ = 1,
  PITH_LOG_INFO_ = 2,
  PITH_LOG_TRACE_ = 3
} pith_log_level;

/* The level in force; reads the environment once. */
pith_log_level pith__log_level(void);

void pith__log(pith_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define PITH_LOG_(level, ...)           \
  do {                                  \
    if (pith__log_level() >= (level)) { \
      pith__log((level), __VA_ARGS__);  \
    }                                   \
  } while (0)
#define PITH_LOG_WARN(...) PITH_LOG_(PITH_LOG_WARN_, __VA_ARGS__)
#define PITH_LOG_INFO(...) PITH_LOG_(PITH_LOG_INFO_, __VA_ARGS__)
#define PITH_LOG_TRACE(...) PITH_LOG_(PITH_LOG_TRACE_, __VA_ARGS__)

/* Expands %h, %p and, where there is one, the rank %r of a file name. Returns 0 if the result does not fit. */
int pith__log_file_name(const char *pattern, int rank, char *name, unsigned long size);

#endif
