/* SPDX-License-Identifier: Apache-2.0 */
/* Words for the fields of a pith_method. */
#include "cli/methods.h"

#include <stdio.h>
#include <string.h>

const cli_cap cli_caps[] = {
    {PITH_CAP_FIXED, "FIXED", "payload bytes follow from the number of values alone"},
    {PITH_CAP_CHUNKED, "CHUNKED", "any aligned piece can be encoded by itself"},
    {PITH_CAP_LINEAR, "LINEAR", "payloads of several ranks add up"},
    {PITH_CAP_SPARSE, "SPARSE", "only some values travel, with their indices"},
    {PITH_CAP_ROUNDS, "ROUNDS", "takes several exchanges"},
    {PITH_CAP_VOTE, "VOTE", "ranks are joined by majority, not by mean"},
    {PITH_CAP_UNBIASED, "UNBIASED", "the expectation of the decoded value is the value"},
    {PITH_CAP_SEEDED, "SEEDED", "decoding needs the encoder's seed, step and layer"},
    {PITH_CAP_ONCE, "ONCE", "payloads of all ranks are gathered, and sums not encoded"},
};
const size_t cli_cap_count = sizeof cli_caps / sizeof *cli_caps;

const char *cli_kind_name(pith_kind kind) {
  static const char *const names[] = {"codec", "transform", "memory", "preset"};
  return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "?";
}

const char *cli_caps_print(uint32_t caps, char *text, size_t size) {
  size_t used = 0;
  text[0] = 0;
  for (size_t i = 0; i < cli_cap_count; i++) {
    if ((caps & (uint32_t)cli_caps[i].cap) && used < size) {
      used += (size_t)snprintf(text + used, size - used, "%s%s", used ? " " : "", cli_caps[i].name);
    }
  }
  return text;
}

const char *cli_range_print(const pith_param *param, char *text, size_t size) {
  if (param->type == PITH_PARAM_CHOICE) {
    snprintf(text, size, "%s", param->choices);
  } else {
    snprintf(text, size, "%.7g…%.7g", param->min, param->max);
  }
  return text;
}

int cli_method_is_foreign(const pith_method *method) { return method->wire_id >= 0x8000; }

int cli_method_exists(const char *name) {
  pith_method method = PITH_METHOD_INIT;
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    if (!strcmp(method.name, name)) {
      return 1;
    }
  }
  return 0;
}
