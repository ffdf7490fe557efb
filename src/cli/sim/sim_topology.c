/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Topologies of `pith sim`: a table of keys, which files and options share. A file has a key and its value on each
 * line, "rate = 10gbit"; # begins a comment, and text may be quoted.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/sim/sim.h"

enum { LINE_MAX_ = 512, LINES_MAX = 1000 };

typedef enum key_kind {
  KEY_RATE,      /* 10gbit */
  KEY_SECONDS,   /* 50us */
  KEY_GIGABYTES, /* GB/s: seconds for a byte */
  KEY_SPEED,     /* GB/s of f32 values: seconds for a value */
  KEY_FACTOR,
  KEY_POSITIVE, /* a whole number above 0 */
  KEY_COUNT,
  KEY_NUMBER, /* the same, as an int */
  KEY_SIZE,
  KEY_FLAG,
  KEY_STRAGGLER, /* 3:2.5 */
  KEY_SLOW,      /* 3:1gbit */
} key_kind;

typedef struct key {
  const char *name;
  key_kind kind;
  size_t place; /* in cli_sim_setup */
  const char *help;
} key;

#define PLACE(field) offsetof(cli_sim_setup, field)

static const key keys[] = {
    {"hosts", KEY_POSITIVE, PLACE(hosts), "how many hosts"},
    {"per_host", KEY_POSITIVE, PLACE(per_host), "ranks of a host, in place of hosts"},
    {"rate", KEY_RATE, PLACE(topology.rate), "of a host's link, in each direction"},
    {"latency", KEY_SECONDS, PLACE(topology.latency), "from host to host"},
    {"oversubscription", KEY_FACTOR, PLACE(topology.oversubscription),
     "the links of all hosts over what the switch passes on"},
    {"mtu", KEY_COUNT, PLACE(topology.mtu), "bytes of a packet; 0 for no headers of packets"},
    {"inside_rate", KEY_RATE, PLACE(topology.inside_rate), "what a rank sends within its host"},
    {"inside_latency", KEY_SECONDS, PLACE(topology.inside_latency), "within a host"},
    {"cores", KEY_COUNT, PLACE(topology.cores), "of a host; 0 for one for each rank"},
    {"shared_cores", KEY_FLAG, PLACE(topology.shared_cores), "true: all hosts share these cores, as in pith lab"},
    {"message", KEY_SECONDS, PLACE(topology.message), "of a processor, for each message between hosts"},
    {"inside_message", KEY_SECONDS, PLACE(topology.inside_message), "and within a host"},
    {"copy", KEY_GIGABYTES, PLACE(topology.byte), "GB/s at which a processor sends or receives between hosts"},
    {"inside_copy", KEY_GIGABYTES, PLACE(topology.inside_byte), "and within a host"},
    {"encode", KEY_SPEED, PLACE(topology.encode_value), "GB/s of f32 values"},
    {"decode", KEY_SPEED, PLACE(topology.decode_value), "and to decode and add"},
    {"sum", KEY_SPEED, PLACE(topology.sum_value), "and to add as they are"},
    {"pack", KEY_SPEED, PLACE(topology.pack_value), "and to look for the entries of a sparse payload (ranges)"},
    {"pack_entry", KEY_SECONDS, PLACE(topology.pack_entry), "for each entry beside that"},
    {"unpack_entry", KEY_SECONDS, PLACE(topology.unpack_entry), "to add an entry to a sum"},
    {"encode_call", KEY_SECONDS, PLACE(topology.encode_call), "for each call beside that"},
    {"decode_call", KEY_SECONDS, PLACE(topology.decode_call), "likewise"},
    {"straggler", KEY_STRAGGLER, 0, "RANK:FACTOR, a rank whose processor is so many times slower"},
    {"slow_link", KEY_SLOW, 0, "HOST:RATE, a host with another rate"},
    {"rack_hosts", KEY_NUMBER, PLACE(topology.rack_hosts), "hosts of a rack; 0: all are in one"},
    {"rack_oversubscription", KEY_FACTOR, PLACE(topology.rack_oversubscription),
     "the links of a rack's hosts over what it sends to other racks"},
    {"rack_latency", KEY_SECONDS, PLACE(topology.rack_latency), "between racks, beside latency"},
    {"poll", KEY_SECONDS, PLACE(topology.poll), "of a shared core, for each peer that a waiting rank looks at"},
    {"burst", KEY_SIZE, PLACE(topology.burst), "bytes that a host's link passes at once after a pause"},
    {"segment", KEY_SIZE, PLACE(topology.segment), "bytes of one connection before a link turns to the next"},
    {"look", KEY_SECONDS, PLACE(topology.look), "of a processor, for each peer that it looks at before each work"},
    {"chunk", KEY_SIZE, PLACE(topology.chunk), "bytes of a tensor worked on at a time, PITH_CHUNK"},
};
enum { KEY_COUNT_ALL = sizeof keys / sizeof *keys };

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* A number of at least `least`, and what follows it. */
static int read_number(const char *text, double least, double *number, const char **rest) {
  char *end;
  if (!isdigit((unsigned char)*text) && *text != '.') {
    return 0;
  }
  *number = strtod(text, &end);
  *rest = end;
  return end != text && isfinite(*number) && *number >= least;
}

static int read_seconds(const char *text, double *seconds) {
  static const struct {
    const char *name;
    double seconds;
  } units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"µs", 1e-6}, {"ms", 1e-3}, {"s", 1}};
  const char *unit;
  double number;
  if (!read_number(text, 0, &number, &unit)) {
    return 0;
  }
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (!strcmp(unit, units[i].name)) {
      *seconds = number * units[i].seconds;
      return 1;
    }
  }
  *seconds = 0;
  return number <= 0 && !*unit;
}

static int read_rate(const char *text, double *bytes) {
  unsigned long long bits;
  int is_rate = cli_rate_parse(text, &bits);
  *bytes = is_rate ? (double)bits / 8 : *bytes;
  return is_rate;
}

/* "3:…" */
static int read_index(const char *text, int *index, const char **rest) {
  double number;
  const char *end;
  int is_index = read_number(text, 0, &number, &end) && number < 1e6 && number <= floor(number) && *end == ':';
  if (is_index) {
    *index = (int)number;
    *rest = end + 1;
  }
  return is_index;
}

static const char *set_straggler(pith_sim_topology *t, const char *value) {
  static const char expected[] = "expected RANK:FACTOR, as 3:2.5";
  const char *rest;
  double factor;
  int rank;
  if (!read_index(value, &rank, &rest) || !read_number(rest, 1e-3, &factor, &rest) || *rest) {
    return expected;
  }
  t->straggler = rank;
  t->straggler_factor = factor;
  return NULL;
}

static const char *set_slow(pith_sim_topology *t, const char *value) {
  const char *rest;
  double rate = 0;
  int host;
  if (!read_index(value, &host, &rest) || !read_rate(rest, &rate)) {
    return "expected HOST:RATE, as 3:1gbit";
  }
  t->slow_host = host;
  t->slow_rate = rate;
  return NULL;
}

static const char *set(cli_sim_setup *setup, const key *k, const char *value) {
  void *to = (char *)setup + k->place;
  const char *rest;
  double number;
  switch (k->kind) {
    case KEY_RATE:
      return read_rate(value, to) ? NULL : "expected a rate of 8kbit to 400gbit, as 10gbit or 100mbit";
    case KEY_SECONDS:
      return read_seconds(value, to) ? NULL : "expected a time with its unit, as 50us or 1ms";
    case KEY_GIGABYTES:
    case KEY_SPEED:
      if (!read_number(value, 1e-6, &number, &rest) || *rest) {
        return "expected GB/s, as 2.5";
      }
      *(double *)to = (k->kind == KEY_SPEED ? sizeof(float) : 1) / (number * 1e9);
      return NULL;
    case KEY_FACTOR:
      return read_number(value, 1, to, &rest) && !*rest ? NULL : "expected a number of at least 1";
    case KEY_POSITIVE:
    case KEY_COUNT:
    case KEY_NUMBER:
      if (!read_number(value, k->kind == KEY_POSITIVE, &number, &rest) || *rest || number > 1e6 ||
          number > floor(number)) {
        return k->kind == KEY_POSITIVE ? "expected a whole number above 0" : "expected a whole number";
      }
      if (k->kind == KEY_NUMBER) {
        *(int *)to = (int)number;
      } else {
        *(size_t *)to = (size_t)number;
      }
      return NULL;
    case KEY_SIZE:
      return cli_size_parse(value, to) ? NULL : "expected a size, as 512K";
    case KEY_FLAG:
      *(int *)to = !strcmp(value, "true");
      return *(int *)to || !strcmp(value, "false") ? NULL : "expected true or false";
    case KEY_STRAGGLER:
      return set_straggler(&setup->topology, value);
    case KEY_SLOW:
      return set_slow(&setup->topology, value);
  }
  return "";
}

const char *cli_sim_set(cli_sim_setup *setup, const char *name, const char *value) {
  for (size_t i = 0; i < KEY_COUNT_ALL; i++) {
    if (!strcmp(keys[i].name, name)) {
      cli_sim_setup changed = *setup;
      const char *wrong = set(&changed, &keys[i], value);
      if (!wrong) {
        changed.has_encode |= !strcmp(name, "encode");
        changed.has_decode |= !strcmp(name, "decode");
        *setup = changed;
      }
      return wrong;
    }
  }
  return "";
}

void cli_sim_keys(char *text, size_t size) {
  size_t used = 0;
  *text = 0;
  for (size_t i = 0; i < KEY_COUNT_ALL && used < size; i++) {
    used += (size_t)snprintf(text + used, size - used, "  %-21s %s\n", keys[i].name, keys[i].help);
  }
}

void cli_sim_ranks(cli_sim_setup *setup, int ranks) {
  size_t per_host = setup->per_host, hosts = setup->hosts;
  size_t count = per_host ? ((size_t)ranks + per_host - 1) / per_host : hosts ? hosts : (size_t)ranks;
  setup->topology.ranks = ranks;
  setup->topology.hosts = (int)(count < (size_t)ranks ? count : (size_t)ranks);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static char *trim(char *text) {
  while (isspace((unsigned char)*text)) {
    text++;
  }
  size_t length = strlen(text);
  while (length && isspace((unsigned char)text[length - 1])) {
    text[--length] = 0;
  }
  return text;
}

/* Without the quotes around it. */
static char *unquote(char *text) {
  size_t length = strlen(text);
  if (length >= 2 && text[0] == '"' && text[length - 1] == '"') {
    text[length - 1] = 0;
    return text + 1;
  }
  return text;
}

static int read_line(cli_sim_setup *setup, const char *path, unsigned number, char *line) {
  line[strcspn(line, "#")] = 0;
  char *name = trim(line), *equals = strchr(name, '=');
  if (!*name) {
    return CLI_OK;
  }
  if (!equals) {
    return cli_fail(CLI_USAGE, "%s, line %u: expected KEY = VALUE", path, number);
  }
  *equals = 0;
  name = trim(name);
  char *value = unquote(trim(equals + 1));
  const char *wrong = cli_sim_set(setup, name, value);
  if (wrong && !*wrong) {
    return cli_fail(CLI_USAGE, "%s, line %u: there is no key \"%s\"; see \"pith help sim allreduce\"", path, number,
                    name);
  }
  return wrong ? cli_fail(CLI_USAGE, "%s, line %u: %s = %s: %s", path, number, name, value, wrong) : CLI_OK;
}

int cli_sim_read(cli_sim_setup *setup, const char *path) {
  char line[LINE_MAX_];
  int code = CLI_OK;
  FILE *file = fopen(path, "r");
  if (!file) {
    return cli_fail(CLI_USAGE, "cannot read %s: %s", path, strerror(errno));
  }
  for (unsigned number = 1; code == CLI_OK && fgets(line, sizeof line, file); number++) {
    if (number > LINES_MAX) {
      code = cli_fail(CLI_USAGE, "%s has more than %d lines", path, LINES_MAX);
    } else if (!strchr(line, '\n') && !feof(file)) {
      code = cli_fail(CLI_USAGE, "%s, line %u is longer than %d characters", path, number, LINE_MAX_ - 2);
    } else {
      code = read_line(setup, path, number, line);
    }
  }
  if (code == CLI_OK && ferror(file)) {
    code = cli_fail(CLI_USAGE, "cannot read %s: %s", path, strerror(errno));
  }
  fclose(file);
  return code;
}
