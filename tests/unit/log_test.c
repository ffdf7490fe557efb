/* SPDX-License-Identifier: Apache-2.0 */
/* The log: what the environment asks for, and where it goes. Each test is a process, so each reads it afresh. */
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/status.h"
#include "test.h"

/* Logs to a file of this process, fails once, and reads what was written. */
static const char *log_of_a_failure(const char *level) {
  static char text[4096];
  char pattern[] = "/tmp/pith_log_test_%p.txt", name[64];
  CHECK(pith__log_file_name(pattern, -1, name, sizeof name));
  setenv("PITH_DEBUG", level, 1);
  setenv("PITH_DEBUG_FILE", pattern, 1);
  CHECK_EQ(pith_fail(PITH_ERR_RANGE, "seven is %d", 7), PITH_ERR_RANGE);
  FILE *file = fopen(name, "r");
  size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
  if (file) {
    fclose(file);
    remove(name);
  }
  text[size] = 0;
  return text;
}

TEST(failures_are_logged_at_info_with_process_and_status) {
  char wanted[100];
  snprintf(wanted, sizeof wanted, "pith[%ld] INFO value out of range: seven is 7\n", (long)getpid());
  CHECK_STR(log_of_a_failure("info"), wanted);
}

TEST(failures_are_silent_at_warn) { CHECK_STR(log_of_a_failure("WARN"), ""); }

TEST(an_unknown_level_turns_the_log_off) { CHECK_STR(log_of_a_failure("LOUD"), ""); }

TEST(without_the_variable_the_log_is_off) {
  unsetenv("PITH_DEBUG");
  CHECK_EQ(pith__log_level(), PITH_LOG_OFF);
}

TEST(file_names_take_the_rank_where_there_is_one) {
  char name[16];
  CHECK(pith__log_file_name("a.%r-%r", 12, name, sizeof name));
  CHECK_STR(name, "a.12-12");
  CHECK(pith__log_file_name("a.%r", -1, name, sizeof name));
  CHECK_STR(name, "a.%r");
}

TEST(file_names_take_host_and_process) {
  char name[600], host[256] = "", wanted[600];
  gethostname(host, sizeof host - 1);
  snprintf(wanted, sizeof wanted, "a-%s-%ld-%%x%%", host, (long)getpid());
  CHECK(pith__log_file_name("a-%h-%p-%x%", -1, name, sizeof name));
  CHECK_STR(name, wanted);
}

TEST(file_names_that_do_not_fit_are_refused) {
  char name[8];
  CHECK(pith__log_file_name("1234567", -1, name, sizeof name));
  CHECK(!pith__log_file_name("12345678", -1, name, sizeof name));
  CHECK(!pith__log_file_name("123456%p%p%p%p", -1, name, sizeof name));
}

TEST(a_message_may_quote_the_one_before) {
  pith_fail(PITH_ERR_SPEC, "inner");
  pith_fail(PITH_ERR_SPEC, "outer: %s", pith_error());
  CHECK_STR(pith_error(), "outer: inner");
}

TEST(statuses_have_words_for_any_value) {
  CHECK_STR(pith_status_string(PITH_OK), "success");
  CHECK_STR(pith_status_string((pith_status)12345), "unknown status");
  CHECK_EQ(PITH_ERR_SYSTEM, 10);
}
