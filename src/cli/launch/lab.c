/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pith lab`: ranks on hosts that are network namespaces, behind links of a given rate: what a cluster with a slow
 * network does, on one machine. network.c makes the links, launch.c runs the ranks, lab_control.c changes links
 * and hosts meanwhile (lab_fault.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "cli/base/page.h"
#include "cli/launch/lab_control.h"
#include "cli/launch/launch.h"
#include "cli/launch/network.h"
#include "cli/launch/run.h"

enum { NAME_SIZE = 48, MTU_MIN = 576, MTU_MAX = 65535 };

typedef struct lab {
  cli_job job;
  cli_network network;
  size_t per_host;
  const char *rate, *control;
  cli_list fault;
  cli_faults schedule;
  cli_host *host;
  char (*name)[NAME_SIZE];
  char master[CLI_ADDRESS_SIZE];
} lab;

static int check(lab *l) {
  if (!*l->job.command || !l->job.ranks || !l->rate) {
    cli_fail(0, "lab: %s pith lab -n 4 --rate 1gbit -- COMMAND",
             !l->rate        ? "which rate?"
             : !l->job.ranks ? "how many ranks?"
                             : "which command?");
    return 0;
  }
  if (!cli_rate_parse(l->rate, &l->network.rate)) {
    cli_fail(0, "lab: --rate %s: expected 100mbit, 1gbit, 2.5gbit, from 8kbit to 400gbit", l->rate);
    return 0;
  }
  if (l->network.mtu < MTU_MIN || l->network.mtu > MTU_MAX) {
    cli_fail(0, "lab: --mtu %zu: expected %d to %d", l->network.mtu, MTU_MIN, MTU_MAX);
    return 0;
  }
  l->network.hosts = l->per_host ? (l->job.ranks + l->per_host - 1) / l->per_host : 0;
  if (l->network.hosts < 1 || l->network.hosts > CLI_NETWORK_HOSTS_MAX) {
    cli_fail(0, "lab: %zu ranks, %zu on a host: expected 1 to %d hosts", l->job.ranks, l->per_host,
             CLI_NETWORK_HOSTS_MAX);
    return 0;
  }
  return cli_faults_parse(&l->fault, l->network.hosts, &l->schedule);
}

static void place(lab *l) {
  size_t left = l->job.ranks;
  for (size_t i = 0; i < l->network.hosts; i++) {
    snprintf(l->name[i], NAME_SIZE, "lab%ld-%zu", (long)getpid(), i); /* other than those of other labs */
    l->host[i] = (cli_host){.name = l->name[i],
                            .interface = CLI_NETWORK_INTERFACE,
                            .network = l->network.host[i],
                            .ranks = left < l->per_host ? left : l->per_host};
    left -= l->host[i].ranks;
  }
  l->job.host = l->host;
  l->job.hosts = l->network.hosts;
  if (!l->job.master_port) {
    l->job.master_port = cli_free_port();
  }
  l->job.master_addr = cli_network_address(0, l->master);
}

static void describe(const lab *l) {
  char last[CLI_ADDRESS_SIZE];
  cli_say(stderr, "pith: ",
          "lab of %zu host%s, %zu rank%s on each, behind links of %s each way (mtu %zu, no latency added), %s to %s%s",
          l->network.hosts, l->network.hosts > 1 ? "s" : "", l->per_host, l->per_host > 1 ? "s" : "", l->rate,
          l->network.mtu, l->master, cli_network_address(l->network.hosts - 1, last),
          l->network.own_user ? "; in a user namespace of its own" : "");
}

static int launch(lab *l) {
  pid_t control = 0;
  if ((l->control || l->schedule.count) && !(control = cli_control_start(&l->network, &l->schedule, l->control))) {
    return CLI_FAILED;
  }
  int code = cli_launch(&l->job);
  cli_control_end(control);
  return code;
}

static int run(lab *l) {
  if (!check(l)) {
    return CLI_USAGE;
  }
  l->host = calloc(l->network.hosts, sizeof *l->host);
  l->name = calloc(l->network.hosts, sizeof *l->name);
  int code = CLI_FAILED;
  if (!l->host || !l->name) {
    cli_fail(code, "no memory");
  } else if (cli_network_create(&l->network)) {
    place(l);
    describe(l);
    code = launch(l);
    cli_network_destroy(&l->network);
  }
  cli_faults_free(&l->schedule);
  free(l->host);
  free(l->name);
  return code;
}

int cli_lab(int argc, char **argv) {
  lab l = {.job = {.grace = CLI_GRACE}, .network = {.mtu = 1500, .delay = 50}, .per_host = 1};
  const cli_option options[] = {
      {"-n", CLI_POSITIVE, &l.job.ranks, "RANKS", "how many ranks"},
      {"--per-host", CLI_POSITIVE, &l.per_host, "RANKS", "how many of them share a host (1)"},
      {"--rate", CLI_TEXT, &l.rate, "RATE", "of every link, in each direction: 100mbit, 1gbit, 2.5gbit"},
      {"--mtu", CLI_COUNT, &l.network.mtu, "BYTES", "the largest packet (1500)"},
      {"--burst", CLI_SIZE, &l.network.burst, "BYTES",
       "how much may pass a link at once (1 ms of the rate, at least 32K)"},
      {"--control", CLI_TEXT, &l.control, "PIPE",
       "make a named pipe and read commands from it: a rate for all links (echo 100mbit >PIPE), or a fault of a host "
       "(echo cut 2 >PIPE, echo restore 2 >PIPE)"},
      {"--fault", CLI_LIST, &l.fault, "FAULT:HOST@TIME[+DURATION],…",
       "a fault of a host, its time and duration: cut:2@5s+3s cuts host 2 off from 5 s to 8 s; may be repeated"},
      CLI_JOB_OPTIONS(&l.job),
      {.name = NULL}};
  const cli_usage usage = {
      "lab", "-- COMMAND [ARGUMENT]…",
      "Runs a command as \"pith run\" does, with emulated hosts. Each host is a network namespace of this machine, "
      "with a link to one switch. Token buckets limit each link in both directions; no latency is added. Ranks of a "
      "host have the same PITH_HOSTID. PITH_IFNAME, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the interface.\n"
      "\n"
      "Needs the programs ip and tc (iproute2). Root is not needed if the system lets users create namespaces: the "
      "lab then has its own user namespace, in which ranks keep their user. The machine's own network is not changed, "
      "and nothing is left behind, however the lab ends.\n"
      "\n"
      "Faults: cut (nothing passes the link of the host), cut-in and cut-out (nothing to it, nothing from it), "
      "slow:HOST:RATE, and pause (stops its processes). restore repairs the link, and resume continues the processes; "
      "with a duration both happen after that time. Hosts count from 0, times from the start of the ranks: 5, 1.5s, "
      "200ms.",
      options};
  cli_parsed parsed = cli_job_parse(&usage, argc, argv, &l.job);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  return run(&l);
}
