/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Namespaces are kept as descriptors of this process; `ip` and `tc` do the rest, started inside the namespace they
 * shall work on. Each link is a veth pair from a host to a bridge in a namespace of its own. A token bucket at either
 * end shapes what leaves it, hence the link in both directions.
 */
#include "cli/launch/network.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "cli/launch/user_namespace.h"

enum { WORD_SIZE = 64, WORDS_MAX = 32, PATH_SIZE = 512 };

typedef struct tools {
  char ip[PATH_SIZE], tc[PATH_SIZE];
} tools;

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

/* The folders of PATH, then those where administrators' programs are: ordinary users often lack them. */
static int find_program(const char *name, char path[PATH_SIZE]) {
  const char *from[] = {getenv("PATH"), "/usr/sbin:/sbin:/usr/bin:/bin"};
  for (size_t i = 0; i < 2; i++) {
    for (const char *at = from[i]; at && *at;) {
      size_t length = strcspn(at, ":");
      if (at[0] == '/') {
        snprintf(path, PATH_SIZE, "%.*s/%s", (int)length, at, name);
        if (access(path, X_OK) == 0) {
          return 1;
        }
      }
      at += length + (at[length] == ':');
    }
  }
  return 0;
}

static int find_tools(tools *t, char reason[CLI_REASON_SIZE]) {
  const char *missing = !find_program("ip", t->ip) ? "ip" : !find_program("tc", t->tc) ? "tc" : NULL;
  if (missing) {
    snprintf(reason, CLI_REASON_SIZE,
             "the program \"%s\" is missing: install iproute2 (Debian, Ubuntu: apt-get install iproute2; Fedora: dnf "
             "install iproute iproute-tc)",
             missing);
  }
  return !missing;
}

static _Noreturn void become_tool(int network, const char *path, char **argv, int quiet) {
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) {
    dup2(null, 0);
    dup2(null, 1);
    if (quiet) {
      dup2(null, 2);
    }
  }
  if (network < 0 || setns(network, CLONE_NEWNET) == 0) {
    cli_user_namespace_keep_rights(); /* root keeps them anyway */
    execv(path, argv);
  }
  _exit(127);
}

/* Runs a program in a namespace; `words` are separated by blanks. Returns whether it ended with 0. */
static int run_in(int network, const char *path, const char *words, int quiet) {
  char text[PATH_SIZE], *argv[WORDS_MAX + 2], *next = NULL;
  size_t count = 0;
  argv[count++] = (char *)path;
  snprintf(text, sizeof text, "%s", words);
  for (char *word = strtok_r(text, " ", &next); word && count <= WORDS_MAX; word = strtok_r(NULL, " ", &next)) {
    argv[count++] = word;
  }
  argv[count] = NULL;
  pid_t pid = fork();
  if (pid == 0) {
    become_tool(network, path, argv, quiet);
  }
  int status = -1;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
    if (!quiet) {
      cli_fail(0, "lab: failed: %s %s", path, words);
    }
    return 0;
  }
  return 1;
}

/* ---- Namespaces -------------------------------------------------------------------------------------------------- */

/* A process is born into a new namespace, and dies when a descriptor keeps it. */
static int make_namespace(void) {
  char path[WORD_SIZE];
  pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
      pause();
    }
  }
  if (pid < 0) {
    return -1;
  }
  snprintf(path, sizeof path, "/proc/%ld/ns/net", (long)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC), number = errno;
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  errno = number;
  return fd;
}

static int make_all(int *fds, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (fds[i] < 0 && (fds[i] = make_namespace()) < 0) {
      return 0;
    }
  }
  return 1;
}

/* As the user we are, else in a user namespace. */
static int make_namespaces(cli_network *n, size_t count, char reason[CLI_REASON_SIZE]) {
  for (size_t i = 0; i < count; i++) {
    n->host[i] = -1;
  }
  if (make_all(n->host, count)) {
    return 1;
  }
  if (errno == EPERM) {
    if (!cli_user_namespace_enter(reason, CLI_REASON_SIZE)) {
      return 0;
    }
    n->own_user = 1;
    if (make_all(n->host, count)) {
      return 1;
    }
  }
  if (n->own_user) {
    cli_user_namespace_explain(errno, reason, CLI_REASON_SIZE);
  } else {
    snprintf(reason, CLI_REASON_SIZE, "no network namespace: %s", strerror(errno));
  }
  return 0;
}

/* ---- Links ------------------------------------------------------------------------------------------------------- */

/* What passes while the timer is late must be in the bucket: with less than a millisecond of it, a busy machine loses
 * some of the rate. Short messages get it in advance, hence not more. */
static size_t choose_burst(const cli_network *n, unsigned long long rate) {
  size_t burst = (size_t)(rate / 8 / 1000), least = 32768;
  burst = n->burst ? n->burst : burst > least ? burst : least;
  return burst > n->mtu + 64 ? burst : n->mtu + 64;
}

/* Replaces the queue of what leaves an interface: by a token bucket, or by one that drops all. A bucket that is there
 * already changes its rate and keeps its packets. */
static int shape(const tools *t, const cli_network *n, int network, const char *interface, unsigned long long rate,
                 int drops, int quiet) {
  char words[PATH_SIZE];
  if (drops) {
    snprintf(words, sizeof words, "qdisc replace dev %s root blackhole", interface);
  } else {
    snprintf(words, sizeof words, "qdisc replace dev %s root tbf rate %llubit burst %zu latency %llums", interface,
             rate, choose_burst(n, rate), n->delay);
  }
  return run_in(network, t->tc, words, quiet);
}

/* IPv6 addresses would chatter on the link. */
static int bring_up(const tools *t, int network, const char *interface, size_t mtu, int quiet) {
  char words[PATH_SIZE];
  snprintf(words, sizeof words, "link set dev %s mtu %zu addrgenmode none up", interface, mtu);
  return run_in(network, t->ip, words, quiet);
}

static int make_link(const tools *t, const cli_network *n, int bridge, size_t i, int quiet) {
  char port[WORD_SIZE], words[PATH_SIZE], address[CLI_ADDRESS_SIZE];
  int host = n->host[i];
  snprintf(port, sizeof port, "port%zu", i);
  snprintf(words, sizeof words, "link add %s type veth peer name " CLI_NETWORK_INTERFACE " netns /proc/%ld/fd/%d", port,
           (long)getpid(), host);
  if (!run_in(bridge, t->ip, words, quiet)) {
    return 0;
  }
  snprintf(words, sizeof words, "link set dev %s master switch", port);
  if (!run_in(bridge, t->ip, words, quiet)) {
    return 0;
  }
  snprintf(words, sizeof words, "address add %s/16 dev " CLI_NETWORK_INTERFACE, cli_network_address(i, address));
  return run_in(host, t->ip, words, quiet) && run_in(host, t->ip, "link set dev lo up", quiet) &&
         shape(t, n, bridge, port, n->rate, 0, quiet) && shape(t, n, host, CLI_NETWORK_INTERFACE, n->rate, 0, quiet) &&
         bring_up(t, bridge, port, n->mtu, quiet) && bring_up(t, host, CLI_NETWORK_INTERFACE, n->mtu, quiet);
}

static int make_links(const tools *t, const cli_network *n, int bridge, int quiet) {
  if (!run_in(bridge, t->ip, "link add switch type bridge mcast_snooping 0", quiet) ||
      !bring_up(t, bridge, "switch", n->mtu, quiet)) {
    return 0;
  }
  for (size_t i = 0; i < n->hosts; i++) {
    if (!make_link(t, n, bridge, i, quiet)) {
      return 0;
    }
  }
  return 1;
}

/* The switch's namespace is kept behind those of the hosts, and goes with them. */
static int create(cli_network *n, char reason[CLI_REASON_SIZE], int quiet) {
  tools t;
  n->host = calloc(n->hosts + 1, sizeof *n->host);
  if (!n->host) {
    snprintf(reason, CLI_REASON_SIZE, "no memory");
    return 0;
  }
  if (!find_tools(&t, reason) || !make_namespaces(n, n->hosts + 1, reason)) {
    return 0;
  }
  if (!make_links(&t, n, n->host[n->hosts], quiet)) {
    snprintf(reason, CLI_REASON_SIZE,
             "namespaces can be made, links between them cannot: the kernel needs veth, bridge and sch_tbf; an "
             "administrator can "
             "load them with \"modprobe -a veth bridge sch_tbf\"");
    return 0;
  }
  return 1;
}

int cli_network_create(cli_network *network) {
  char reason[CLI_REASON_SIZE];
  if (!create(network, reason, 0)) {
    cli_fail(0, "lab: %s", reason);
    cli_network_destroy(network);
    return 0;
  }
  return 1;
}

int cli_network_set_link(const cli_network *n, size_t host, cli_link_state state, unsigned long long rate) {
  char reason[CLI_REASON_SIZE], port[WORD_SIZE], words[PATH_SIZE];
  int bridge = n->host[n->hosts];
  tools t;
  if (!find_tools(&t, reason)) {
    cli_fail(0, "lab: %s", reason);
    return 0;
  }
  snprintf(port, sizeof port, "port%zu", host);
  snprintf(words, sizeof words, "link set dev %s %s", port, state == CLI_LINK_CUT ? "down" : "up");
  rate = rate ? rate : n->rate;
  return run_in(bridge, t.ip, words, 0) &&
         (state == CLI_LINK_CUT ||
          (shape(&t, n, bridge, port, rate, state == CLI_LINK_CUT_IN, 0) &&
           shape(&t, n, n->host[host], CLI_NETWORK_INTERFACE, rate, state == CLI_LINK_CUT_OUT, 0)));
}

void cli_network_destroy(cli_network *network) {
  for (size_t i = 0; network->host && i <= network->hosts; i++) {
    if (network->host[i] > 0) {
      close(network->host[i]);
    }
  }
  free(network->host);
  network->host = NULL;
}

enum { PROBE_FAILED, PROBE_GOOD, PROBE_GOOD_AS_USER };

/* Entering a user namespace cannot be undone, and needs a process of one thread: a child does it. */
static _Noreturn void probe(int pipe) {
  cli_network network = {.hosts = 1, .rate = 1000000000, .mtu = 1500, .delay = 50};
  char reason[CLI_REASON_SIZE] = "";
  int good = create(&network, reason, 1);
  cli_network_destroy(&network);
  ssize_t written = write(pipe, reason, sizeof reason);
  _exit(!good || written < 0 ? PROBE_FAILED : network.own_user ? PROBE_GOOD_AS_USER : PROBE_GOOD);
}

int cli_network_probe(char reason[CLI_REASON_SIZE], int *own_user) {
  int fd[2], status = 0;
  *own_user = 0;
  snprintf(reason, CLI_REASON_SIZE, "cannot start a process to find out");
  if (pipe2(fd, O_CLOEXEC) != 0) {
    return 0;
  }
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    close(fd[0]);
    probe(fd[1]);
  }
  close(fd[1]);
  ssize_t got = read(fd[0], reason, CLI_REASON_SIZE);
  close(fd[0]);
  if (pid < 0 || waitpid(pid, &status, 0) != pid || got < CLI_REASON_SIZE || !WIFEXITED(status)) {
    return 0;
  }
  *own_user = WEXITSTATUS(status) == PROBE_GOOD_AS_USER;
  return WEXITSTATUS(status) != PROBE_FAILED;
}

const char *cli_network_address(size_t host, char text[CLI_ADDRESS_SIZE]) {
  snprintf(text, CLI_ADDRESS_SIZE, "10.77.%zu.%zu", (host + 1) / 256 % 256, (host + 1) % 256);
  return text;
}
