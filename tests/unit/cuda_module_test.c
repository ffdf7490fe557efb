/* SPDX-License-Identifier: Apache-2.0 */
/* The reason why the CUDA module cannot be used reaches the user: which file, what is wrong with it, and what to do.
 * The other half, a module that is in order, is tests/cli/cuda_build.sh. */
#include <pith/cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "test.h"

/* The error of a process that looks for the module in these folders. */
static const char *refusal(const char *folders) {
  setenv("PITH_MODULE_PATH", folders, 1);
  CHECK_EQ(pith_cuda_probe(NULL), PITH_ERR_UNSUPPORTED);
  return pith_error();
}

static void check_says(const char *text, const char *part) {
  CHECK_MSG(strstr(text, part), "\"%s\" does not say \"%s\"", text, part);
}

static void check_refused(const char *folders, const char *path, const char *reason) {
  const char *text = refusal(folders);
  check_says(text, path);
  check_says(text, reason);
}

TEST(an_undefined_symbol_is_named_with_its_file) {
  check_refused(BROKEN "/symbol", BROKEN "/symbol/libpith_cuda.so",
                "undefined symbol: pith_symbol_that_nobody_defines");
  check_says(pith_error(), "make cuda");
  check_says(pith_error(), "PITH_MODULE_PATH");
}

TEST(a_file_that_is_no_library_is_named) {
  char folder[] = "/tmp/pith-module-XXXXXX", path[64];
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/libpith_cuda.so", folder);
  FILE *file = fopen(path, "w");
  CHECK(file && fputs("This is no shared object, however long it may be: it is a sentence.\n", file) >= 0 &&
        fclose(file) == 0);
  const char *text = refusal(folder);
  unlink(path);
  rmdir(folder);
  check_says(text, path);
  check_says(text, "invalid ELF header");
}

TEST(a_broken_module_does_not_hide_behind_a_later_one) {
  check_refused(BROKEN "/symbol:" BROKEN "/abi", BROKEN "/symbol/libpith_cuda.so", "undefined symbol");
}

TEST(a_broken_module_does_not_hide_behind_folders_without_one) {
  check_refused("/nowhere:" BROKEN "/symbol:/nowhere/else", BROKEN "/symbol/libpith_cuda.so", "undefined symbol");
}

TEST(a_library_without_the_entry_is_named) {
  check_refused(BROKEN "/entry", BROKEN "/entry/libpith_cuda.so", "does not export");
}

TEST(a_module_of_another_version_is_named) {
  check_refused(BROKEN "/abi", BROKEN "/abi/libpith_cuda.so", "another version");
}

TEST(the_next_call_gets_the_same_reason) {
  check_refused(BROKEN "/symbol", BROKEN "/symbol/libpith_cuda.so", "undefined symbol");
  check_refused(BROKEN "/abi", BROKEN "/symbol/libpith_cuda.so", "undefined symbol");
}

TEST(without_a_module_the_error_says_where_it_was_looked_for_and_what_to_do) {
  char beside[] = BUILD "/tests/libpith_cuda.so";
  if (access(beside, F_OK) == 0 || access("/usr/local/lib/pith/libpith_cuda.so", F_OK) == 0) {
    test_skip("there is a module where this test expects none");
  }
  const char *text = refusal("/nowhere");
  check_says(text, "there is no CUDA module");
  check_says(text, "/nowhere");
  check_says(text, "make cuda");
  check_says(text, "pip install");
}
