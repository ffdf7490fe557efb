/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a job from the command line, and finding a port for it. */
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "cli/launch/launch.h"

static int can_listen(size_t port) {
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0); /* of both families */
  int good = fd >= 0 && bind(fd, (struct sockaddr *)&six, sizeof six) == 0;
  if (fd < 0) {
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    good = fd >= 0 && bind(fd, (struct sockaddr *)&four, sizeof four) == 0;
  }
  if (fd >= 0) {
    close(fd);
  }
  return good;
}

size_t cli_free_port(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  size_t first = (size_t)time.tv_nsec / 64 + (size_t)getpid() * 7919, lowest = 20000, ports = 12000;
  for (size_t i = 0; i < 1000; i++) {
    size_t port = lowest + (first + i) % ports;
    if (can_listen(port)) {
      return port;
    }
  }
  return 0;
}

cli_parsed cli_job_parse(const cli_usage *usage, int argc, char **argv, cli_job *job) {
  int rest;
  cli_parsed parsed = cli_options_parse_leading(usage, argc, argv, &rest);
  if (parsed != CLI_PARSED) {
    return parsed;
  }
  job->command = argv + rest;
  for (size_t i = 0; i < job->env.count; i++) {
    if (strcspn(job->env.item[i], "=") == 0 || !strchr(job->env.item[i], '=')) {
      cli_fail(0, "%s: --env %s: expected K=V", usage->command, job->env.item[i]);
      return CLI_PARSED_BAD;
    }
  }
  if (job->master_port > UINT16_MAX || job->ranks > CLI_RANKS_MAX || job->grace > 86400) {
    cli_fail(0, "%s: %s is out of range", usage->command,
             job->ranks > CLI_RANKS_MAX ? "-n"
             : job->grace > 86400       ? "--grace"
                                        : "--master-port");
    return CLI_PARSED_BAD;
  }
  return CLI_PARSED;
}
