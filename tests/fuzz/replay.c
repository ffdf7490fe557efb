/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target without a fuzzer: every file of a corpus, and mutations of each that are the same every time.
 *
 *   replay FOLDER [mutations of each file]
 *
 * Prints "N passed, N failed, N skipped" as tests do; a finding aborts after naming the file and the mutation.
 */
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include "fuzz/fuzz.h"

#define FILE_MOST (1 << 16)

static char current[512];

/* The seed of the program: mutations must be the same in every run. */
static uint64_t random_state = 0x1234567;

static uint64_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

static void say_where(int signal_number) {
  (void)signal_number;
  size_t length = strlen(current);
  if (write(STDERR_FILENO, current, length) < 0 || write(STDERR_FILENO, "\n", 1) < 0) {
    _exit(1);
  }
}

static size_t read_file(const char *folder, const char *name, uint8_t *data) {
  snprintf(current, sizeof current, "%s/%s", folder, name);
  FILE *file = fopen(current, "rb");
  if (!file) {
    fprintf(stderr, "cannot read %s\n", current);
    exit(2);
  }
  size_t size = fread(data, 1, FILE_MOST, file);
  fclose(file);
  return size;
}

/* Flips bits, overwrites bytes with telling ones, cuts, or repeats a piece. */
static size_t mutate(uint8_t *data, size_t size) {
  static const uint8_t telling[] = {0x00, 0xff, 0x7f, 0x80, 0x01, 0xfe};
  for (uint64_t count = 1 + next_random() % 4; count && size; count--) {
    size_t at = next_random() % size;
    switch (next_random() % 5) {
      case 0:
        data[at] ^= (uint8_t)(1u << next_random() % 8);
        break;
      case 1:
        data[at] = telling[next_random() % sizeof telling];
        break;
      case 2:
        data[at] = (uint8_t)next_random();
        break;
      case 3:
        size = at;
        break;
      default:
        if (size + (size - at) <= FILE_MOST) {
          memmove(data + size, data + at, size - at);
          size += size - at;
        }
    }
  }
  return size;
}

/* A copy of exactly the input's size: reading beyond it is then seen by the sanitizer. */
static void run(const uint8_t *data, size_t size) {
  uint8_t *copy = malloc(size ? size : 1);
  memcpy(copy, data, size);
  LLVMFuzzerTestOneInput(copy, size);
  free(copy);
}

static void run_mutations(const uint8_t *data, size_t size, unsigned long mutations) {
  static uint8_t changed[FILE_MOST];
  size_t name_end = strlen(current);
  for (unsigned long i = 0; i < mutations; i++) {
    snprintf(current + name_end, sizeof current - name_end, " mutation %lu", i);
    memcpy(changed, data, size);
    run(changed, mutate(changed, size));
  }
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static int is_input(const struct dirent *entry) { return entry->d_name[0] != '.'; }

int main(int argc, char **argv) {
  static uint8_t data[FILE_MOST];
  struct dirent **names;
  unsigned long mutations = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
  int count = argc > 1 ? scandir(argv[1], &names, is_input, by_name) : -1;
  if (count < 0) {
    fprintf(stderr, "usage: %s FOLDER [MUTATIONS]\n", argv[0]);
    return 2;
  }
  signal(SIGABRT, say_where);
  signal(SIGSEGV, SIG_DFL);
  for (int i = 0; i < count; i++) {
    size_t size = read_file(argv[1], names[i]->d_name, data);
    run(data, size);
    run_mutations(data, size, mutations);
    free(names[i]);
  }
  free(names);
  printf("ok   %d inputs of %s, %lu mutations of each\n%d passed, 0 failed, 0 skipped\n", count, argv[1], mutations,
         count);
  return count ? 0 : 1;
}
