/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets between processes of one host, which keep message boundaries (SOCK_SEQPACKET: a packet comes whole or not at
 * all) and can hand over a descriptor. Names are random and in the abstract name space: nothing stays in the system
 * however a process ends. Every process of the host can list them and connect: who must not is for the caller to find
 * out.
 */
#ifndef PITH_TRANSPORT_UNIX_SOCKET_H
#define PITH_TRANSPORT_UNIX_SOCKET_H

#include "base/status.h"

#define PITH_UNIX_NAME 37 /* bytes of a name; no zero ends it */

/* Sockets do not block and are closed by children that are forked: end them with pith__fd_close(). */
int pith__unix_open(void);
pith_status pith__unix_listen(int *listener, char name[PITH_UNIX_NAME]);
int pith__unix_is_name(const void *bytes, size_t size);
/* 0; or -1 with errno. EAGAIN: the listener's queue is full, which cannot be polled for. */
int pith__unix_connect(int socket, const void *name);

/* Whether the process at the other end runs as the same user as this one, and as which it runs. */
int pith__unix_same_user(int socket, unsigned *user);

/* With a descriptor, of which the other side gets a copy; -1: without. Returns whether it was sent. */
int pith__packet_send(int socket, const void *data, size_t size, int descriptor);

typedef enum pith_packet_state { PITH_PACKET_NONE, PITH_PACKET_VALID, PITH_PACKET_INVALID } pith_packet_state;

/* Reads a packet of exactly that size, with a descriptor if `descriptor` is not NULL, else without. */
pith_packet_state pith__packet_receive(int socket, void *data, size_t size, int *descriptor);

#endif
