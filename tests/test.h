/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pith's tests. A file of tests is one program:
 *
 *   TEST(residual_plus_decoded_is_the_input) { … CHECK(a == b); … }
 *
 * Each test runs in a process of its own, with a time limit, so that a crash or a hang is the failure of one test.
 * The first failed check ends the test. A test that checks nothing fails: it proves nothing.
 *
 * The program prints a line for each test and closes with "N passed, N failed, N skipped". Arguments choose tests by
 * pattern; -v shows the output of passed tests too, -l lists names.
 *
 *   PITH_TEST_SEED     the seed to repeat a failure with (printed then); fresh for every run by default
 *   PITH_TEST_TIMEOUT  seconds for each test, in place of its own limit
 *   PITH_TEST_REQUIRE  what must be there, such as "ucx,mpi,ipv6": a test that lacks it fails instead of being skipped
 */
#ifndef PITH_TESTS_TEST_H
#define PITH_TESTS_TEST_H

#include <pith/pith.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TEST_SECONDS 120

/* ---- Defining ---------------------------------------------------------------------------------------------------- */

typedef struct test_case {
  const char *name;
  void (*run)(void);
  unsigned seconds;
  struct test_case *next;
} test_case;

void test_register(test_case *test);

#define TEST(name) TEST_WITHIN(name, TEST_SECONDS)

/* A test that may take longer. */
#define TEST_WITHIN(name, limit)                                        \
  static void test_##name(void);                                        \
  __attribute__((constructor)) static void test_register_##name(void) { \
    static test_case test = {#name, test_##name, (limit), NULL};        \
    test_register(&test);                                               \
  }                                                                     \
  static void test_##name(void)

/* ---- Checking: from any thread of the test ----------------------------------------------------------------------- */

void test_count_check(void);
_Noreturn void test_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *reason, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void test_lacks(const char *what, const char *reason, ...) __attribute__((format(printf, 2, 3)));

#define TEST_REQUIRE(condition, ...)              \
  do {                                            \
    test_count_check();                           \
    if (!(condition)) {                           \
      test_fail(__FILE__, __LINE__, __VA_ARGS__); \
    }                                             \
  } while (0)

#define CHECK(condition) TEST_REQUIRE((condition), "%s", #condition)

/* Like CHECK, with a sentence about the values at hand. */
#define CHECK_MSG(condition, ...) TEST_REQUIRE((condition), __VA_ARGS__)

/* Integers, sizes, enums and pointers. */
#define CHECK_EQ(a, b)                                                                                        \
  do {                                                                                                        \
    _Static_assert(_Generic((a), float: 0, double: 0, default: 1), "compare reals with CHECK_NEAR or CHECK"); \
    unsigned long long test_a = (unsigned long long)(a), test_b = (unsigned long long)(b);                    \
    TEST_REQUIRE(test_a == test_b, "%s is %lld (0x%llx), not %lld (0x%llx)", #a, (long long)test_a, test_a,   \
                 (long long)test_b, test_b);                                                                  \
  } while (0)

#define CHECK_NEAR(a, b, tolerance)                                                                                \
  do {                                                                                                             \
    double test_a = (a), test_b = (b), test_d = test_a - test_b;                                                   \
    TEST_REQUIRE(test_d <= (tolerance) && -test_d <= (tolerance), "%s is %.9g, not %.9g ± %g", #a, test_a, test_b, \
                 (double)(tolerance));                                                                             \
  } while (0)

#define CHECK_STR(a, b)                                                                        \
  do {                                                                                         \
    const char *test_a = (a), *test_b = (b);                                                   \
    TEST_REQUIRE(strcmp(test_a, test_b) == 0, "%s is \"%s\", not \"%s\"", #a, test_a, test_b); \
  } while (0)

#define CHECK_BYTES(a, b, size)                                                                                \
  do {                                                                                                         \
    size_t test_at = test_first_difference((a), (b), (size));                                                  \
    TEST_REQUIRE(test_at == (size), "%s and %s differ from byte %zu of %zu", #a, #b, test_at, (size_t)(size)); \
  } while (0)

/* The call must return that status. */
#define CHECK_STATUS(call, wanted)                                                                                 \
  do {                                                                                                             \
    pith_status test_status = (call);                                                                              \
    TEST_REQUIRE(test_status == (wanted), "%s is \"%s\", not \"%s\" (%s)", #call, pith_status_string(test_status), \
                 pith_status_string(wanted), pith_error());                                                        \
  } while (0)

#define CHECK_OK(call) CHECK_STATUS(call, PITH_OK)

/* The last error message must have this in it: messages are for people, and part of what is promised. */
#define CHECK_ERROR_SAYS(words) \
  TEST_REQUIRE(strstr(pith_error(), (words)), "the error says \"%s\", not \"%s\"", pith_error(), (words))

/* Ends the test with a reason why it cannot run here. */
/* The test has nothing to prove in this build. */
#define SKIP(...) test_skip(__VA_ARGS__)

/* The machine lacks something that can be installed or switched on: "ucx", "ipv6", …. A failure if PITH_TEST_REQUIRE
 * names it. */
#define LACKS(what, ...) test_lacks(what, __VA_ARGS__)

size_t test_first_difference(const void *a, const void *b, size_t size);

/* ---- Random inputs: the same for a seed and a test's name -------------------------------------------------------- */

uint64_t test_random(void);
uint64_t test_below(uint64_t limit); /* 0 … limit - 1 */
double test_uniform(void);           /* [0, 1) */
float test_normal(void);             /* mean 0, variance 1 */

#endif
