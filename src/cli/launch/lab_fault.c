/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links are changed by network.c. Processes belong to a host if they are in its network namespace: this finds what
 * ranks have started, too, and needs no list of them.
 */
#include "cli/launch/lab_fault.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/base/cli.h"
#include "cli/base/nearest.h"

enum { TEXT_SIZE = 64, FAULTS_MOST = 1024, SCANS = 3 };

static const struct {
  const char *name, *effect;
} kinds[] = {
    [CLI_FAULT_CUT] = {"cut", "is cut off"},
    [CLI_FAULT_CUT_IN] = {"cut-in", "receives nothing"},
    [CLI_FAULT_CUT_OUT] = {"cut-out", "sends nothing"},
    [CLI_FAULT_SLOW] = {"slow", "has a link of"},
    [CLI_FAULT_PAUSE] = {"pause", "is paused"},
    [CLI_FAULT_RESTORE] = {"restore", "has its link back"},
    [CLI_FAULT_RESUME] = {"resume", "goes on"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static int parse_kind(const char *name, cli_fault_kind *kind) {
  const char *nearest = NULL;
  for (int i = 0; i < KINDS; i++) {
    if (!strcmp(name, kinds[i].name)) {
      *kind = (cli_fault_kind)i;
      return 1;
    }
    cli_nearest(name, kinds[i].name, &nearest);
  }
  cli_fail(0, "lab: there is no fault \"%s\"%s%s%s; expected cut, cut-in, cut-out, slow, pause, restore or resume",
           name, nearest ? ", did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
  return 0;
}

static int parse_host(const char *text, size_t hosts, size_t *host) {
  char *end = NULL;
  unsigned long number = text && *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
  if (!end || *end) {
    cli_fail(0, "lab: \"%s\" is not a host: expected a number, 0 for the first", text ? text : "");
    return 0;
  }
  if (number >= hosts) {
    cli_fail(0, "lab: there is no host %lu: this lab has %zu, and the first is host 0", number, hosts);
    return 0;
  }
  *host = number;
  return 1;
}

/* Kind, host and rate, which only slow has. NULL: not given. */
static int parse_words(const char *kind, const char *host, const char *rate, size_t hosts, cli_fault *fault) {
  if (!parse_kind(kind, &fault->kind) || !parse_host(host, hosts, &fault->host)) {
    return 0;
  }
  if (!rate != (fault->kind != CLI_FAULT_SLOW)) {
    cli_fail(0, "lab: %s %zu: %s", kind, fault->host, rate ? "only slow takes a rate" : "which rate? slow 2 64kbit");
    return 0;
  }
  if (rate && !cli_rate_parse(rate, &fault->rate)) {
    cli_fail(0, "lab: \"%s\" is not a rate; expected 64kbit, 100mbit, 1gbit, from 8kbit to 400gbit", rate);
    return 0;
  }
  return 1;
}

int cli_fault_parse_line(const char *line, size_t hosts, cli_fault *fault) {
  char text[TEXT_SIZE], *next = NULL;
  snprintf(text, sizeof text, "%s", line);
  const char *kind = strtok_r(text, " \t", &next), *host = strtok_r(NULL, " \t", &next);
  const char *rate = strtok_r(NULL, " \t", &next);
  *fault = (cli_fault){.time = 0};
  return parse_words(kind ? kind : "", host, rate, hosts, fault);
}

/* 5, 5s, 1.5s, 200ms; moves on behind it. */
static int parse_seconds(char **at, double *seconds) {
  char *end;
  if (**at < '0' || **at > '9') {
    return 0;
  }
  double number = strtod(*at, &end);
  int is_milli = !strncmp(end, "ms", 2);
  end += is_milli ? 2 : *end == 's';
  *at = end;
  *seconds = is_milli ? number / 1000 : number;
  return isfinite(*seconds);
}

static int undo(cli_fault_kind kind, cli_fault_kind *other) {
  *other = kind == CLI_FAULT_PAUSE ? CLI_FAULT_RESUME : CLI_FAULT_RESTORE;
  return kind != CLI_FAULT_RESTORE && kind != CLI_FAULT_RESUME;
}

/* KIND:HOST[:RATE]@TIME[+DURATION] to one or two faults; how many, 0 after saying what is wrong. */
static size_t parse_item(char *item, size_t hosts, cli_fault fault[2]) {
  char whole[TEXT_SIZE], *next = NULL;
  double duration = 0;
  snprintf(whole, sizeof whole, "%s", item);
  char *at = strchr(item, '@'), *time = at ? at + 1 : NULL;
  int good = time != NULL && parse_seconds(&time, &fault[0].time), lasts = good && *time == '+';
  if (lasts) {
    time++;
    good = parse_seconds(&time, &duration);
  }
  if (!good || *time) {
    cli_fail(0, "lab: --fault %s: expected FAULT:HOST@TIME or FAULT:HOST@TIME+DURATION, as in cut:2@5s+3s", whole);
    return 0;
  }
  *at = '\0';
  const char *kind = strtok_r(item, ":", &next), *host = strtok_r(NULL, ":", &next), *rate = strtok_r(NULL, "", &next);
  if (!parse_words(kind ? kind : "", host, rate, hosts, &fault[0])) {
    return 0;
  }
  fault[1] = (cli_fault){.host = fault[0].host, .time = fault[0].time + duration};
  if (!undo(fault[0].kind, &fault[1].kind) && lasts) {
    cli_fail(0, "lab: --fault %s: %s takes no duration", whole, kinds[fault[0].kind].name);
    return 0;
  }
  return lasts ? 2 : 1;
}

/* Behind all that are not later. */
static void insert(cli_faults *faults, const cli_fault *fault) {
  size_t i = faults->count++;
  for (; i > 0 && faults->item[i - 1].time > fault->time; i--) {
    faults->item[i] = faults->item[i - 1];
  }
  faults->item[i] = *fault;
}

static int parse_list(const char *list, size_t hosts, cli_faults *faults) {
  for (const char *at = list; *at;) {
    char item[TEXT_SIZE];
    cli_fault fault[2] = {{.time = 0}};
    size_t length = strcspn(at, ",");
    snprintf(item, sizeof item, "%.*s", (int)(length < TEXT_SIZE ? length : TEXT_SIZE - 1), at);
    size_t count = parse_item(item, hosts, fault);
    if (count == 0) {
      return 0;
    }
    if (faults->count + count > FAULTS_MOST) {
      cli_fail(0, "lab: more than %d faults", FAULTS_MOST);
      return 0;
    }
    for (size_t i = 0; i < count; i++) {
      insert(faults, &fault[i]);
    }
    at += length + (at[length] == ',');
  }
  return 1;
}

int cli_faults_parse(const cli_list *texts, size_t hosts, cli_faults *faults) {
  *faults = (cli_faults){.item = calloc(FAULTS_MOST, sizeof *faults->item)};
  if (!faults->item) {
    cli_fail(0, "no memory");
    return 0;
  }
  for (size_t i = 0; i < texts->count; i++) {
    if (!parse_list(texts->item[i], hosts, faults)) {
      cli_faults_free(faults);
      return 0;
    }
  }
  return 1;
}

void cli_faults_free(cli_faults *faults) {
  free(faults->item);
  *faults = (cli_faults){.count = 0};
}

/* ---- Doing ------------------------------------------------------------------------------------------------------- */

static int is_in_namespace(const char *process, const struct stat *network) {
  char path[TEXT_SIZE];
  struct stat theirs;
  snprintf(path, sizeof path, "/proc/%.20s/ns/net", process);
  return stat(path, &theirs) == 0 && theirs.st_ino == network->st_ino && theirs.st_dev == network->st_dev;
}

/* Sends a signal to all processes of a host; how many there are. */
static int signal_processes(int network, int number) {
  struct stat host;
  DIR *folder = opendir("/proc");
  int count = 0;
  if (!folder || fstat(network, &host) != 0) {
    count = -1;
  }
  for (const struct dirent *entry; count >= 0 && (entry = readdir(folder));) {
    if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && is_in_namespace(entry->d_name, &host)) {
      count += kill((pid_t)strtol(entry->d_name, NULL, 10), number) == 0;
    }
  }
  if (folder) {
    closedir(folder);
  }
  return count;
}

/* More than once: a process may have started another one while we looked. */
static int signal_host(int network, int number) {
  for (int i = 0, before = -1, count = 0; i < SCANS && count != before; i++) {
    before = count;
    count = signal_processes(network, number);
    if (count < 0) {
      cli_fail(0, "lab: cannot look for the processes of a host: %s", strerror(errno));
      return 0;
    }
  }
  return 1;
}

int cli_fault_apply(const cli_network *network, const cli_fault *fault) {
  static const cli_link_state state[KINDS] = {
      [CLI_FAULT_CUT] = CLI_LINK_CUT, [CLI_FAULT_CUT_IN] = CLI_LINK_CUT_IN, [CLI_FAULT_CUT_OUT] = CLI_LINK_CUT_OUT};
  switch (fault->kind) {
    case CLI_FAULT_PAUSE:
      return signal_host(network->host[fault->host], SIGSTOP);
    case CLI_FAULT_RESUME:
      return signal_host(network->host[fault->host], SIGCONT);
    case CLI_FAULT_CUT:
    case CLI_FAULT_CUT_IN:
    case CLI_FAULT_CUT_OUT:
    case CLI_FAULT_SLOW:
    case CLI_FAULT_RESTORE:
      break;
  }
  return cli_network_set_link(network, fault->host, state[fault->kind], fault->rate);
}

const char *cli_fault_describe(const cli_fault *fault, char text[CLI_REASON_SIZE]) {
  char rate[TEXT_SIZE] = "";
  if (fault->kind == CLI_FAULT_SLOW) {
    snprintf(rate, sizeof rate, " %llu bit/s each way", fault->rate);
  }
  snprintf(text, CLI_REASON_SIZE, "host %zu %s%s", fault->host, kinds[fault->kind].effect, rate);
  return text;
}
