/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of other sizes: what is read of them, what is written to them, and what is refused. */
#include "base/struct_size.h"

#include "test.h"

/* As pith_adapter_step of a later version might be, with two more fields. */
typedef struct longer {
  pith_adapter_step step;
  double more, last;
} longer;

TEST(a_struct_of_our_size_is_taken_as_it_is) {
  pith_adapter_step given = {sizeof given, 1, 2, 3}, full = {0};
  CHECK_OK(PITH_STRUCT_READ(pith_adapter_step, &given, &full));
  CHECK(memcmp(&given, &full, sizeof full) == 0);
}

TEST(fields_that_an_older_struct_lacks_keep_their_defaults) {
  longer given = {{PITH_FIRST_pith_adapter_step, 1, 2, 3}, 4, 5}, full = {{0}, 6, 7};
  CHECK_OK(pith__struct_read(&full, sizeof full, &given, PITH_FIRST_pith_adapter_step, "longer"));
  CHECK(full.step.waiting == 3 && full.more == 6 && full.last == 7);
  CHECK_EQ(full.step.size, sizeof full);
  given.step.size = offsetof(longer, last);
  CHECK_OK(pith__struct_read(&full, sizeof full, &given, PITH_FIRST_pith_adapter_step, "longer"));
  CHECK(full.more == 4 && full.last == 7);
}

TEST(a_newer_struct_is_taken_where_what_we_do_not_know_is_zero) {
  longer given = {{sizeof given, 1, 2, 3}, 0, 0};
  pith_adapter_step full = {0};
  CHECK_OK(PITH_STRUCT_READ(pith_adapter_step, &given.step, &full));
  CHECK(full.span == 2);
  CHECK_EQ(full.size, sizeof full);
  given.last = 1;
  full.span = 9;
  CHECK_STATUS(PITH_STRUCT_READ(pith_adapter_step, &given.step, &full), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("built for a newer version");
  CHECK(full.span == 9);
}

TEST(sizes_that_no_version_has_had_are_refused) {
  const size_t sizes[] = {0, 1, PITH_FIRST_pith_adapter_step - 8, PITH_FIRST_pith_adapter_step + 4, 1 << 20, SIZE_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    pith_adapter_step given = {sizes[i], 1, 2, 3}, full = {0};
    CHECK_STATUS(PITH_STRUCT_READ(pith_adapter_step, &given, &full), PITH_ERR_ARGUMENT);
    CHECK_ERROR_SAYS("pith_adapter_step.size is");
    CHECK_STATUS(PITH_STRUCT_WRITE(pith_adapter_step, &full, &given), PITH_ERR_ARGUMENT);
    CHECK(given.seconds == 1);
  }
}

TEST(no_more_is_written_than_the_size_says) {
  longer full = {{0, 1, 2, 3}, 4, 5}, to = {{PITH_FIRST_pith_adapter_step, 0, 0, 0}, 8, 9};
  CHECK_OK(pith__struct_write(&to, &full, sizeof full, PITH_FIRST_pith_adapter_step, "longer"));
  CHECK(to.step.waiting == 3 && to.more == 8 && to.last == 9);
  CHECK_EQ(to.step.size, PITH_FIRST_pith_adapter_step);
  to.step.size = sizeof to; /* a newer program: what we do not know stays */
  CHECK_OK(PITH_STRUCT_WRITE(pith_adapter_step, &full.step, &to.step));
  CHECK(to.more == 8 && to.last == 9);
}

TEST(elements_are_as_far_apart_as_the_program_has_them) {
  longer array[3] = {
      {{sizeof(longer), 1, 0, 0}, 0, 0}, {{sizeof(longer), 2, 0, 0}, 0, 0}, {{sizeof(longer), 3, 0, 0}, 0, 0}};
  for (size_t i = 0; i < 3; i++) {
    pith_adapter_step full = {0};
    CHECK_OK(PITH_STRUCT_READ_AT(pith_adapter_step, &array[0].step, i, &full));
    CHECK(full.seconds == (double)(i + 1));
  }
  pith_adapter_step full = {0};
  array[2].step.size = sizeof full;
  CHECK_STATUS(PITH_STRUCT_READ_AT(pith_adapter_step, &array[0].step, 2, &full), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("element 2");
}
