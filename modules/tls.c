/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 by OpenSSL (src/transport/tls.h is the contract).
 *
 * OpenSSL never sees a socket. It writes records into a buffer of the session, which goes out with one system call for
 * several records; a record is made only where it fits, so that no call of OpenSSL ever has to be repeated with the
 * same bytes. It reads straight into its own buffer, as much as the socket has.
 *
 * The handshake is the smallest one that TLS 1.3 has: always an ephemeral exchange (X25519, or P-256 where FIPS rules),
 * for forward secrecy, with the job's key or with certificates on both sides; no tickets, no resumption, no early data,
 * no older version.
 */
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/tls.h"

#define RECORD ((size_t)SSL3_RT_MAX_PLAIN_LENGTH)
#define RECORD_ROOM (RECORD + 512) /* with its head and tag, and with a change of keys before it */
#define OUTPUT (8 * RECORD_ROOM)
#define INPUT ((size_t)128 << 10)
#define RECORDS_MOST ((uint64_t)1 << 23) /* AES-GCM bears 2^24.5 records under one key (RFC 8446, 5.5) */
#define IDENTITY "pith"                  /* of the pre-shared key; there is only one */
#define BINDING_LABEL "EXPORTER-Pith-link"

static const pith_tls_host *host;

typedef struct context {
  pith_tls base;
  SSL_CTX *ssl;
  pith_tls_mode mode;
  uint64_t records_most;
  uint8_t key[PITH_TLS_KEY_SIZE];
  uint8_t gathered[RECORD]; /* small pieces become one record here */
} context;

typedef struct session {
  pith_tls_session base;
  context *shared;
  SSL *ssl;
  int fd;
  int is_over;         /* reading has failed: trouble says why */
  int is_refused;      /* by TLS, not by the network */
  int is_drained;      /* OpenSSL has no whole record: only the socket can bring more */
  int is_dry, is_eof;  /* the socket gave less than it was asked for, or its end */
  int error;           /* errno of the socket */
  uint64_t records;    /* written under the present key */
  size_t sent, filled; /* of the output */
  char trouble[160];
  uint8_t output[OUTPUT];
} session;

static session *session_of(pith_tls_session *s) { return (session *)s; }
static const session *session_in(const pith_tls_session *s) { return (const session *)s; }

/* ---- Between OpenSSL and the socket ------------------------------------------------------------------------------ */

static int take_output(BIO *bio, const char *data, size_t size, size_t *taken) {
  session *s = BIO_get_data(bio);
  BIO_clear_retry_flags(bio);
  if (size > OUTPUT - s->filled) { /* a handshake with many certificates; then flush() makes room */
    BIO_set_retry_write(bio);
    return 0;
  }
  memcpy(s->output + s->filled, data, size);
  s->filled += size;
  *taken = size;
  return 1;
}

/* After a short read the socket is not asked again in the same call: it is most likely empty. */
static int give_input(BIO *bio, char *buffer, size_t size, size_t *got) {
  session *s = BIO_get_data(bio);
  BIO_clear_retry_flags(bio);
  ssize_t moved = s->is_dry ? 0 : host->read(s->fd, buffer, size);
  s->is_dry = moved < (ssize_t)size;
  if (moved > 0) {
    *got = (size_t)moved;
    return 1;
  }
  if (moved == 0) {
    BIO_set_retry_read(bio);
  } else {
    s->error = errno;
    s->is_eof = errno == 0;
  }
  return 0;
}

static long control(BIO *bio, int command, long number, void *pointer) {
  const session *s = BIO_get_data(bio);
  (void)number;
  (void)pointer;
  return command == BIO_CTRL_FLUSH ? 1 : command == BIO_CTRL_EOF ? s->is_eof : 0;
}

static BIO_METHOD *socket_method;

/* Nothing is torn down when the process exits: a thread of a comm that was never destroyed may still be at work. */
static void make_method(void) {
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
  socket_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "pith");
  if (socket_method) {
    BIO_meth_set_write_ex(socket_method, take_output);
    BIO_meth_set_read_ex(socket_method, give_input);
    BIO_meth_set_ctrl(socket_method, control);
  }
}

/* Room for one more record, moving what waits to the front if need be. */
static int has_room(session *s) {
  if (OUTPUT - s->filled < RECORD_ROOM && s->sent > 0) {
    memmove(s->output, s->output + s->sent, s->filled - s->sent);
    s->filled -= s->sent;
    s->sent = 0;
  }
  return OUTPUT - s->filled >= RECORD_ROOM;
}

static int tls_flush(pith_tls_session *base) {
  session *s = session_of(base);
  while (s->sent < s->filled) {
    struct iovec piece = {s->output + s->sent, s->filled - s->sent};
    ssize_t moved = host->write(s->fd, &piece, 1);
    if (moved <= 0) {
      s->error = moved < 0 ? errno : s->error;
      return moved < 0 ? -1 : 1;
    }
    s->sent += (size_t)moved;
  }
  s->sent = s->filled = 0;
  return 0;
}

static int tls_has_output(const pith_tls_session *base) { return session_in(base)->sent < session_in(base)->filled; }

/* ---- What went wrong --------------------------------------------------------------------------------------------- */

static void explain(session *s, const char *text) { snprintf(s->trouble, sizeof s->trouble, "%s", text); }

/* The words for the last error of OpenSSL. */
static void explain_ssl(session *s) {
  unsigned long code = ERR_peek_last_error();
  const char *reason = ERR_reason_error_string(code);
  long verified = SSL_get_verify_result(s->ssl);
  s->is_refused = ERR_GET_REASON(code) != SSL_R_UNEXPECTED_EOF_WHILE_READING;
  if (ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    explain(s, "its connection ended without TLS's closing message");
  } else if (ERR_GET_REASON(code) == SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC) {
    explain(s, "a TLS record was damaged or changed on the way");
  } else if (ERR_GET_REASON(code) == SSL_R_CERTIFICATE_VERIFY_FAILED && verified != X509_V_OK) {
    snprintf(s->trouble, sizeof s->trouble, "its certificate is refused: %s", X509_verify_cert_error_string(verified));
  } else if (ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) >= SSL_AD_REASON_OFFSET) {
    snprintf(s->trouble, sizeof s->trouble, "it broke off TLS with the alert \"%s\"",
             SSL_alert_desc_string_long(ERR_GET_REASON(code) - SSL_AD_REASON_OFFSET));
  } else {
    snprintf(s->trouble, sizeof s->trouble, "TLS failed: %s", reason ? reason : "unknown reason");
  }
}

/* What OpenSSL means by a call that did not succeed: 1 if it only waits for bytes or room. */
static int is_waiting(session *s, int result) {
  int what = SSL_get_error(s->ssl, result);
  if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) {
    return 1;
  }
  s->is_over = 1;
  if (what == SSL_ERROR_ZERO_RETURN) {
    explain(s, "it closed its connection");
  } else if (what == SSL_ERROR_SYSCALL) {
    explain(s, s->error ? strerror(s->error) : "its connection ended without TLS's closing message");
  } else {
    explain_ssl(s);
  }
  ERR_clear_error();
  return 0;
}

static const char *tls_trouble(const pith_tls_session *base) {
  const session *s = session_in(base);
  return *s->trouble ? s->trouble : s->error ? strerror(s->error) : "it closed its connection";
}

static int tls_is_refused(const pith_tls_session *base) { return session_in(base)->is_refused; }

/* ---- Moving bytes ------------------------------------------------------------------------------------------------ */

static ssize_t tls_read(pith_tls_session *base, void *buffer, size_t size) {
  session *s = session_of(base);
  size_t done = 0, got;
  s->is_dry = 0;
  ERR_clear_error(); /* other users of OpenSSL in this thread may have left something */
  while (done < size && !s->is_over) {
    if (SSL_read_ex(s->ssl, (char *)buffer + done, size - done, &got)) {
      done += got;
      s->is_drained = 0;
    } else if (is_waiting(s, 0)) {
      s->is_drained = 1;
      break;
    } else {
      tls_flush(base); /* the alert that says why */
    }
  }
  return done > 0 || size == 0 || !s->is_over ? (ssize_t)done : -1;
}

/* A record may have been read in part only, and OpenSSL counts that too: hence is_drained. */
static int tls_has_input(const pith_tls_session *base) {
  const session *s = session_in(base);
  return !s->is_over && !s->is_drained && SSL_has_pending(s->ssl);
}

typedef struct cursor {
  const struct iovec *pieces;
  int count, piece;
  size_t at; /* in the piece */
} cursor;

/* The next record's bytes: of a long piece where they are, of short ones gathered. */
static const void *next_record(cursor *c, uint8_t *gathered, size_t *size) {
  *size = 0;
  for (; c->piece < c->count && *size < RECORD; c->piece++, c->at = 0) {
    const uint8_t *from = (const uint8_t *)c->pieces[c->piece].iov_base + c->at;
    size_t left = c->pieces[c->piece].iov_len - c->at;
    size_t part = left < RECORD - *size ? left : RECORD - *size;
    if (part == RECORD) {
      c->at += part;
      *size = part;
      return from;
    }
    if (part > 0) {
      memcpy(gathered + *size, from, part);
      *size += part;
    }
    if (part < left) {
      c->at += part;
      break;
    }
  }
  return gathered;
}

/* The next key follows long before this one has encrypted too much; the other direction has keys of its own. */
static int may_write_record(session *s) {
  if (s->records++ < s->shared->records_most) {
    return 1;
  }
  s->records = 1;
  return SSL_key_update(s->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
}

static ssize_t fail_write(session *s, size_t done) {
  if (done == 0 && !*s->trouble) {
    explain_ssl(s);
  }
  ERR_clear_error();
  return done > 0 ? (ssize_t)done : -1;
}

static ssize_t tls_write(pith_tls_session *base, const struct iovec *pieces, int count) {
  session *s = session_of(base);
  cursor c = {.pieces = pieces, .count = count};
  size_t done = 0, size, put;
  ERR_clear_error();
  for (;;) {
    if (!has_room(s)) {
      int left = tls_flush(base);
      if (left < 0) {
        return done > 0 ? (ssize_t)done : -1;
      }
      if (left) {
        break; /* the socket is full: what is not taken yet waits with the caller */
      }
    }
    const void *from = next_record(&c, s->shared->gathered, &size);
    if (size == 0) {
      break;
    }
    if (!may_write_record(s) || !SSL_write_ex(s->ssl, from, size, &put)) {
      return fail_write(s, done);
    }
    done += size; /* records fit: all of it was taken */
  }
  return tls_flush(base) < 0 && done == 0 ? -1 : (ssize_t)done;
}

static void tls_say_goodbye(pith_tls_session *base) {
  session *s = session_of(base);
  ERR_clear_error();
  if (SSL_is_init_finished(s->ssl) && !*s->trouble) {
    SSL_shutdown(s->ssl);
  }
  ERR_clear_error();
}

/* ---- Sessions ---------------------------------------------------------------------------------------------------- */

static int tls_shake_hands(pith_tls_session *base) {
  session *s = session_of(base);
  s->is_dry = 0;
  ERR_clear_error();
  int result = SSL_do_handshake(s->ssl);
  int is_done = result == 1, is_over = !is_done && !is_waiting(s, result);
  tls_flush(base); /* also the alert that says why */
  if (is_done && s->shared->mode == PITH_TLS_PSK && !SSL_session_reused(s->ssl)) {
    explain(s, "it does not have the job's key");
    is_over = s->is_refused = 1;
  }
  return is_over ? -1 : is_done;
}

static int tls_binding(pith_tls_session *base, uint8_t value[PITH_TLS_BINDING_SIZE]) {
  int is_made = SSL_export_keying_material(session_of(base)->ssl, value, PITH_TLS_BINDING_SIZE, BINDING_LABEL,
                                           sizeof BINDING_LABEL - 1, NULL, 0, 0) == 1;
  ERR_clear_error();
  return is_made;
}

static void tls_end(pith_tls_session *base) {
  session *s = session_of(base);
  if (s) {
    SSL_free(s->ssl);
    free(s);
  }
}

static pith_tls_session *tls_start(pith_tls *tls, int fd, int is_caller) {
  session *s = malloc(sizeof *s);
  BIO *bio = s ? BIO_new(socket_method) : NULL;
  if (!bio) {
    free(s);
    return NULL;
  }
  memset(s, 0, offsetof(session, output));
  s->base.ops = tls->ops;
  s->shared = (context *)tls;
  s->fd = fd;
  s->ssl = SSL_new(s->shared->ssl);
  if (!s->ssl) {
    BIO_free(bio);
    free(s);
    return NULL;
  }
  BIO_set_data(bio, s);
  BIO_set_init(bio, 1);
  SSL_set_bio(s->ssl, bio, bio);
  SSL_set_app_data(s->ssl, s);
  is_caller ? SSL_set_connect_state(s->ssl) : SSL_set_accept_state(s->ssl);
  return &s->base;
}

/* ---- The pre-shared key ------------------------------------------------------------------------------------------ */

/* OpenSSL wants the key as a session to be resumed; a new one for every connection, which it then owns. */
static SSL_SESSION *key_as_session(SSL *ssl) {
  static const unsigned char cipher[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256: for its hash */
  const session *s = SSL_get_app_data(ssl);
  SSL_SESSION *made = SSL_SESSION_new();
  if (made && SSL_SESSION_set1_master_key(made, s->shared->key, sizeof s->shared->key) &&
      SSL_SESSION_set_cipher(made, SSL_CIPHER_find(ssl, cipher)) &&
      SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) &&
      SSL_SESSION_set1_id_context(made, (const unsigned char *)IDENTITY, sizeof IDENTITY - 1)) {
    return made;
  }
  SSL_SESSION_free(made);
  return NULL;
}

static int use_key(SSL *ssl, const EVP_MD *hash, const unsigned char **identity, size_t *size, SSL_SESSION **made) {
  (void)hash;
  *identity = (const unsigned char *)IDENTITY;
  *size = sizeof IDENTITY - 1;
  *made = key_as_session(ssl);
  return *made != NULL;
}

static int find_key(SSL *ssl, const unsigned char *identity, size_t size, SSL_SESSION **made) {
  int is_ours = size == sizeof IDENTITY - 1 && memcmp(identity, IDENTITY, size) == 0;
  *made = is_ours ? key_as_session(ssl) : NULL;
  return !is_ours || *made;
}

static void tls_set_key(pith_tls *tls, const uint8_t key[PITH_TLS_KEY_SIZE]) {
  memcpy(((context *)tls)->key, key, PITH_TLS_KEY_SIZE);
}

/* ---- Certificates ------------------------------------------------------------------------------------------------ */

/* A key with a passphrase is an error: nobody is at the terminal of a rank. */
static int no_passphrase(char *buffer, int size, int is_writing, void *data) {
  (void)buffer;
  (void)size;
  (void)is_writing;
  (void)data;
  return 0;
}

static pith_status fail_file(const char *variable, const char *path) {
  unsigned long code = ERR_peek_last_error();
  const char *reason = ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code)) : ERR_reason_error_string(code);
  pith_status status =
      host->fail(PITH_ERR_ARGUMENT, "%s=%s cannot be used: %s", variable, path, reason ? reason : "unknown reason");
  ERR_clear_error();
  return status;
}

/* OpenSSL would name its own trouble with a file that is missing, and not the system's. */
static pith_status check_readable(const char *variable, const char *path) {
  FILE *file = fopen(path, "re");
  if (!file) {
    return host->fail(PITH_ERR_ARGUMENT, "%s=%s cannot be read: %s", variable, path, strerror(errno));
  }
  fclose(file);
  return PITH_OK;
}

static pith_status load_certificates(SSL_CTX *ssl, const pith_tls_config *config) {
  const char *const paths[] = {config->certificate, config->key, config->authority};
  static const char *const variables[] = {"PITH_TLS_CERT", "PITH_TLS_KEY", "PITH_TLS_CA"};
  for (int i = 0; i < 3; i++) {
    pith_status status = check_readable(variables[i], paths[i]);
    if (status != PITH_OK) {
      return status;
    }
  }
  SSL_CTX_set_default_passwd_cb(ssl, no_passphrase);
  if (SSL_CTX_use_certificate_chain_file(ssl, config->certificate) != 1) {
    return fail_file(variables[0], config->certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(ssl, config->key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(ssl) != 1) {
    return fail_file(variables[1], config->key);
  }
  if (SSL_CTX_load_verify_file(ssl, config->authority) != 1) {
    return fail_file(variables[2], config->authority);
  }
  SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
  return PITH_OK;
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/* AES-128-GCM first: with the instructions of today's CPUs it is the fastest. */
static int set_rules(SSL_CTX *ssl) {
  SSL_CTX_set_options(ssl, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_session_id_context(ssl, (const unsigned char *)IDENTITY, sizeof IDENTITY - 1); /* OpenSSL insists */
  SSL_CTX_set_read_ahead(ssl, 1);
  SSL_CTX_set_default_read_buffer_len(ssl, INPUT);
  return SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_max_proto_version(ssl, TLS1_3_VERSION) == 1 && SSL_CTX_set_num_tickets(ssl, 0) == 1 &&
         SSL_CTX_set_max_early_data(ssl, 0) == 1 &&
         SSL_CTX_set_ciphersuites(ssl, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") == 1 &&
         (SSL_CTX_set1_groups_list(ssl, "X25519:P-256") == 1 || SSL_CTX_set1_groups_list(ssl, "P-256") == 1);
}

static void tls_close(pith_tls *tls) {
  context *made = (context *)tls;
  if (made) {
    SSL_CTX_free(made->ssl);
    OPENSSL_cleanse(made, sizeof *made);
    free(made);
  }
}

static pith_status fill_context(context *made, const pith_tls_config *config) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_method);
  made->mode = config->mode;
  made->records_most = config->records_most ? config->records_most : RECORDS_MOST;
  made->ssl = SSL_CTX_new(TLS_method());
  if (!socket_method || !made->ssl || !set_rules(made->ssl)) {
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return host->fail(PITH_ERR_UNSUPPORTED, "%s cannot do TLS 1.3: %s", OpenSSL_version(OPENSSL_VERSION),
                      reason ? reason : "no memory");
  }
  if (config->mode == PITH_TLS_CERT) {
    return load_certificates(made->ssl, config);
  }
  SSL_CTX_set_psk_use_session_callback(made->ssl, use_key);
  SSL_CTX_set_psk_find_session_callback(made->ssl, find_key);
  SSL_CTX_set_verify(made->ssl, SSL_VERIFY_PEER, NULL); /* no certificate will do */
  return PITH_OK;
}

static const pith_tls_ops ops;

static pith_status tls_open(const pith_tls_config *config, pith_tls **tls) {
  context *made = calloc(1, sizeof *made);
  if (!made) {
    return host->fail(PITH_ERR_MEMORY, "no memory for TLS");
  }
  made->base.ops = &ops;
  ERR_clear_error();
  pith_status status = fill_context(made, config);
  if (status != PITH_OK) {
    tls_close(&made->base);
    return status;
  }
  *tls = &made->base;
  return PITH_OK;
}

static const char *tls_version(void) { return OpenSSL_version(OPENSSL_VERSION); }

static const pith_tls_ops ops = {
    .version = tls_version,
    .open = tls_open,
    .set_key = tls_set_key,
    .close = tls_close,
    .start = tls_start,
    .end = tls_end,
    .shake_hands = tls_shake_hands,
    .binding = tls_binding,
    .read = tls_read,
    .write = tls_write,
    .flush = tls_flush,
    .has_output = tls_has_output,
    .has_input = tls_has_input,
    .say_goodbye = tls_say_goodbye,
    .trouble = tls_trouble,
    .is_refused = tls_is_refused,
};

__attribute__((visibility("default"))) const pith_tls_module *pith_tls_module_entry(const pith_tls_host *from);

const pith_tls_module *pith_tls_module_entry(const pith_tls_host *from) {
  static const pith_tls_module module = {PITH_TLS_ABI, sizeof(pith_tls_ops), &ops};
  host = from;
  return &module;
}
