/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command started by sshd has its own process group, and ssh passes no signals on. Hence the watcher: it lives in the
 * same group, ignores what it passes on, and reads until the connection ends.
 */
#include "cli/launch/remote.h"

#include <string.h>

static void add(cli_buffer *out, const char *text) { cli_buffer_add(out, text, strlen(text)); }

void cli_shell_quote(cli_buffer *out, const char *text) {
  add(out, "'");
  for (; *text; text++) {
    if (*text == '\'') {
      add(out, "'\\''");
    } else {
      cli_buffer_add(out, text, 1);
    }
  }
  add(out, "'");
}

static void add_words(cli_buffer *out, char *const *words, size_t count) {
  for (size_t i = 0; i < count; i++) {
    add(out, " ");
    cli_shell_quote(out, words[i]);
  }
}

static const char watcher[] =
    " || exit 1; exec 3<&0; "
    "pass() { kill -s \"$1\" -- \"-$$\" || kill -s \"$1\" \"$$\"; }; "
    "(trap '' HUP INT QUIT TERM TSTP; while read -r signal; do pass \"$signal\"; done; pass KILL) "
    "<&3 >/dev/null 2>&1 & "
    "exec env";

char *cli_remote_command(const char *folder, char *const *variables, size_t count, int secret, char *const *command) {
  cli_buffer script = {NULL, 0, 0}, line = {NULL, 0, 0};
  if (secret) {
    add(&script, "IFS= read -r PITH_SECRET; export PITH_SECRET; ");
  }
  add(&script, "cd ");
  cli_shell_quote(&script, folder);
  add(&script, watcher);
  add_words(&script, variables, count);
  while (*command) {
    add_words(&script, command++, 1);
  }
  add(&script, " </dev/null 3<&-");
  cli_buffer_add(&script, "", 1);
  add(&line, "exec sh -c "); /* the login shell may be any */
  cli_shell_quote(&line, script.data);
  cli_buffer_add(&line, "", 1);
  cli_buffer_free(&script);
  return line.data;
}
