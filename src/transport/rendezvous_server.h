/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two files of rank 0's side share: rendezvous_server.c accepts connections and reads the hellos,
 * rendezvous_answer.c sends the table, or the error, to all clients.
 */
#ifndef PITH_TRANSPORT_RENDEZVOUS_SERVER_H
#define PITH_TRANSPORT_RENDEZVOUS_SERVER_H

#include <sys/epoll.h>

#include "transport/rendezvous_wire.h"

#define RENDEZVOUS_EVENTS_MOST 256 /* taken from the system at a time */

typedef struct rendezvous_connection {
  int fd;          /* -1: the slot is free */
  int rank;        /* -1 until its hello is accepted, and for a client that disagrees */
  int has_hello;   /* hello and record are complete, and it waits for the reply */
  double deadline; /* for the hello; later, to take the next bytes of the reply */
  size_t moved;    /* bytes of hello and record received; later, bytes of the reply sent */
  uint8_t nonce[RENDEZVOUS_NONCE];
  rendezvous_hello hello;
  rendezvous_reply reply;
  uint8_t *record; /* the address record of this rank */
} rendezvous_connection;

typedef struct rendezvous_server {
  const pith_rendezvous *r;
  int listener, watch; /* watch: the epoll descriptor */
  double deadline;
  rendezvous_connection *connections; /* slots that never move: events carry their number */
  int *free_slots;                    /* numbers of free slots */
  int most, free_count;
  int hello_count, missing_count;
  double next_check;  /* when to look for silent connections */
  int expected;       /* clients that will connect; INT_MAX after ranks disagreed about the number */
  uint8_t *missing;   /* a flag for each rank */
  pith_status status; /* what all clients will be told */
  char text[RENDEZVOUS_TEXT];
  char rejected[160]; /* the last connection that was rejected, and why: for the error about missing ranks */
  int lack;           /* the errno of the last accept that failed for want of descriptors or memory; or 0 */
  double lacks_since; /* then: since when */
} rendezvous_server;

/* Watches a descriptor; `number` comes back with its events. `how` and the result are epoll_ctl's. */
int pith__rendezvous_watch(const rendezvous_server *s, int how, int fd, int number, uint32_t events);

/* Waits until there are events, at most until that time, and returns how many. Returns early after a signal, and when
 * it is time to ask whether the caller was interrupted. */
int pith__rendezvous_events(const rendezvous_server *s, struct epoll_event events[RENDEZVOUS_EVENTS_MOST],
                            double until);

/* What the replies to all clients have in common. */
rendezvous_reply pith__rendezvous_make_reply(pith_status status, uint64_t job, const void *body, size_t size);

/* Makes c->reply: the same with this client's proof. */
void pith__rendezvous_prove_reply(const rendezvous_server *s, rendezvous_connection *c, const rendezvous_reply *reply);

/* Sends the table of all records to all clients. On success *all and *job are what every client got. */
pith_status pith__rendezvous_answer_table(rendezvous_server *s, const void *mine, size_t size, pith_records *all,
                                          uint64_t *job);

/* Sends s->text to all clients. Gives up a client that takes nothing for `patience` seconds. */
void pith__rendezvous_answer_error(rendezvous_server *s, pith_status status, double patience);

#endif
