/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 for the connections of tcp. OpenSSL is in a module (modules/tls.c, pith_tls.so) that is opened when a job
 * asks for encryption, so that the library itself links to libc alone. This is the contract between the two.
 *
 * A session is one connection. It reads and writes its socket by itself and never blocks. Bytes that it has taken and
 * that the socket has no room for stay in the session until flush() brings them out.
 */
#ifndef PITH_TRANSPORT_TLS_H
#define PITH_TRANSPORT_TLS_H

#include <sys/types.h>
#include <sys/uio.h>

#include "transport/transport.h"

#define PITH_TLS_ABI 1u
#define PITH_TLS_ENTRY "pith_tls_module_entry"
#define PITH_TLS_KEY_SIZE 32
#define PITH_TLS_BINDING_SIZE 32

typedef struct pith_tls_host { /* what the module may call */
  pith_status (*fail)(pith_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
  ssize_t (*read)(int fd, void *buffer, size_t size); /* as pith__socket_read */
  ssize_t (*write)(int fd, const struct iovec *pieces, int count);
} pith_tls_host;

typedef struct pith_tls_ops pith_tls_ops;

/* What the sessions of a transport share: certificates, or the pre-shared key. */
typedef struct pith_tls {
  const pith_tls_ops *ops;
} pith_tls;

typedef struct pith_tls_session {
  const pith_tls_ops *ops;
} pith_tls_session;

struct pith_tls_ops {
  /* The TLS library in words, such as "OpenSSL 3.0.11". */
  const char *(*version)(void);

  /* Reads the files of PITH_TLS_CERT. The errors name the file. */
  pith_status (*open)(const pith_tls_config *config, pith_tls **tls);
  /* The key of PITH_TLS_PSK, before the first session. */
  void (*set_key)(pith_tls *tls, const uint8_t key[PITH_TLS_KEY_SIZE]);
  void (*close)(pith_tls *tls); /* after all sessions */

  /* A session on a connected socket, which stays the caller's. NULL: no memory. */
  pith_tls_session *(*start)(pith_tls *tls, int fd, int is_caller);
  void (*end)(pith_tls_session *session); /* sends nothing */

  /* 1: the session is established; 0: not yet; -1: it failed, see trouble(). A caller may learn only afterwards that
   * the listener does not want it: then read() fails. */
  int (*shake_hands)(pith_tls_session *session);

  /* A number that both ends share, and no other pair of ends does. Returns whether there is one. */
  int (*binding)(pith_tls_session *session, uint8_t value[PITH_TLS_BINDING_SIZE]);

  /* As pith__socket_read and pith__socket_write: bytes moved, 0 for none now, -1 at the end; then see trouble(). */
  ssize_t (*read)(pith_tls_session *session, void *buffer, size_t size);
  ssize_t (*write)(pith_tls_session *session, const struct iovec *pieces, int count);

  /* Tries to bring out what was taken. Returns 1 if some is left, 0 if none is, -1 if the socket is broken. */
  int (*flush)(pith_tls_session *session);
  int (*has_output)(const pith_tls_session *session); /* as flush(), without trying */

  /* Whether read() may find something that poll() does not know of: the socket gave it already. */
  int (*has_input)(const pith_tls_session *session);

  /* Says that no more will follow, so that the end cannot be taken for a cut. flush() brings it out. */
  void (*say_goodbye)(pith_tls_session *session);

  /* Why the session is over, in words that follow "rank 1 is gone: "; and whether it is because one end refuses the
   * other, which has another key or another certificate, and not because the connection ended. */
  const char *(*trouble)(const pith_tls_session *session);
  int (*is_refused)(const pith_tls_session *session);
};

typedef struct pith_tls_module {
  uint32_t abi;      /* PITH_TLS_ABI; of all fields the first, for ever */
  uint32_t ops_size; /* sizeof(pith_tls_ops) */
  const pith_tls_ops *ops;
} pith_tls_module;

/* What the module exports as PITH_TLS_ENTRY. The host lives as long as the process. */
typedef const pith_tls_module *(*pith_tls_entry_fn)(const pith_tls_host *host);

/* Opens pith_tls.so; it stays open until the process ends. If that fails, the error says what and why. */
pith_status pith__tls_find(const pith_tls_ops **ops);

/* "off", "psk" or "cert", and back. */
const char *pith__tls_mode_name(pith_tls_mode mode);
pith_status pith__tls_mode_parse(const char *text, pith_tls_mode *mode);

#endif
