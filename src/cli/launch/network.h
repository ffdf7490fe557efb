/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small networks inside this machine, for `pith lab`: hosts that are network namespaces, each behind a link of a given
 * rate to one switch. Nothing of it is seen in the machine's own network, and no namespace has a name: the kernel
 * removes all of it when the last process and the last descriptor are gone, however they go.
 */
#ifndef PITH_CLI_NETWORK_H
#define PITH_CLI_NETWORK_H

#include <stddef.h>

enum { CLI_NETWORK_HOSTS_MAX = 1000, CLI_ADDRESS_SIZE = 24, CLI_REASON_SIZE = 512 };

#define CLI_NETWORK_INTERFACE "link0" /* the name of the interface on every host */

typedef struct cli_network {
  size_t hosts;
  unsigned long long rate; /* bits per second, each way */
  size_t mtu;
  size_t burst;             /* bytes that may pass at once; 0: chosen by the rate */
  unsigned long long delay; /* the longest wait in a queue, in milliseconds, before packets are dropped */
  int *host;                /* namespaces, closed on exec */
  int own_user;             /* the process is in a user namespace that was made for this: see user_namespace.h */
} cli_network;

/* Makes the network and leaves its namespaces in `host`. Where this process may not do that, it moves into a user
 * namespace of its own first. Returns 0 after saying what is wrong. */
int cli_network_create(cli_network *network);

/* What a link lets through. */
typedef enum cli_link_state {
  CLI_LINK_WHOLE,
  CLI_LINK_CUT,     /* nothing: the switch's end is down, as if the cable were pulled */
  CLI_LINK_CUT_IN,  /* what the host sends, but nothing to it */
  CLI_LINK_CUT_OUT, /* what is sent to the host, but nothing from it */
} cli_link_state;

/* Gives the link of a host that state and rate (0: the network's). What is on its way through a direction that stays
 * open is not lost. Returns 0 after saying what is wrong. */
int cli_network_set_link(const cli_network *network, size_t host, cli_link_state state, unsigned long long rate);
void cli_network_destroy(cli_network *network);

/* "10.77.0.1" for host 0. */
const char *cli_network_address(size_t host, char text[CLI_ADDRESS_SIZE]);

/* Whether networks can be made here, by making a small one in a process of its own; if not, why and what to do.
 * *own_user: whether it takes a user namespace. */
int cli_network_probe(char reason[CLI_REASON_SIZE], int *own_user);

#endif
