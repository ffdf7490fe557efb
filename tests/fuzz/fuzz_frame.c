/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as what a peer sends on an established link, over a transport in memory, into the comm's own link code while
 * an operation waits for them. Whatever comes, the operation ends: with a result, or with an error that has a message.
 *
 * Head of an input: the operation, how many bytes the transport gives at a time, and flags. The rest is the stream.
 * FLAG_SEALED makes magic, version and checksums of each header right, so that what they protect is reached too;
 * lengths stay below 1 MiB then, so that memory is no matter.
 */
#include <pthread.h>
#include <unistd.h>

#include "comm/comm.h"
#include "fuzz/frame_operations.h"
#include "fuzz/fuzz.h"
#include "transport/transport.h"

enum {
  FLAG_SEALED = FUZZ_FRAME_SEALED,
  FLAG_CHECKED = FUZZ_FRAME_CHECKED,
  FLAG_TWICE = 4,
  LENGTH_MASK = (1 << 20) - 1
};

/* ---- A transport whose peer is the input ------------------------------------------------------------------------- */

typedef struct stream {
  pith_transport base;
  fuzz_input in;
  size_t step; /* bytes at a time */
  int is_sealed, is_checked;
  uint64_t until_header; /* bytes of the message before */
  uint8_t header[sizeof(pith_frame)];
  size_t header_left; /* of a header that was sealed */
  int patience;       /* calls without bytes until the peer is gone */
} stream;

/* The header that the input has here, made right. The payload is what follows. */
static void seal_header(stream *s) {
  pith_frame frame;
  memcpy(&frame, s->in.data, sizeof frame);
  size_t rest = s->in.size - sizeof frame;
  frame.magic = PITH_FRAME_MAGIC;
  frame.version = PITH_FRAME_VERSION;
  frame.length &= LENGTH_MASK;
  pith__frame_seal(&frame, s->in.data + sizeof frame, s->is_checked && frame.length <= rest);
  memcpy(s->header, &frame, sizeof frame);
  s->header_left = sizeof frame;
  s->until_header = sizeof frame + frame.length;
}

static size_t take(stream *s, uint8_t *to, size_t size) {
  size_t n = size < s->in.size ? size : s->in.size;
  if (n == 0) {
    return 0;
  }
  if (s->is_sealed && s->until_header == 0 && s->in.size >= sizeof(pith_frame)) {
    seal_header(s);
  }
  if (s->is_sealed && n > s->until_header) {
    n = s->until_header ? (size_t)s->until_header : n;
  }
  if (s->header_left) {
    n = n < s->header_left ? n : s->header_left;
    memcpy(to, s->header + sizeof s->header - s->header_left, n);
    s->header_left -= n;
  } else {
    memcpy(to, s->in.data, n);
  }
  s->in.data += n, s->in.size -= n;
  s->until_header -= s->until_header < n ? s->until_header : n;
  return n;
}

/* A while after the end of the input, in which the operation can finish, the peer is gone. */
static pith_status stream_receive(pith_transport *t, int peer, void *buffer, size_t size, size_t *got) {
  stream *s = (stream *)(void *)t;
  (void)peer;
  *got = take(s, buffer, size < s->step ? size : s->step);
  s->patience -= *got == 0;
  return s->patience > 0 ? PITH_OK : pith_fail(PITH_ERR_PEER, "the input is over");
}

static pith_status stream_send(pith_transport *t, int peer, const struct iovec *pieces, int count, size_t *taken) {
  stream *s = (stream *)(void *)t;
  (void)peer;
  *taken = 0;
  for (int i = 0; i < count && *taken < s->step; i++) {
    *taken += pieces[i].iov_len;
  }
  *taken = *taken < s->step ? *taken : s->step;
  return PITH_OK;
}

static int stream_descriptors(pith_transport *t, const uint8_t *sending, struct pollfd *fds, int most) {
  (void)t, (void)sending, (void)fds, (void)most;
  return 0;
}

static int stream_sleep(pith_transport *t, int asleep) {
  (void)t;
  return asleep; /* there always is something to do */
}

static const pith_transport_ops stream_ops = {.name = "stream",
                                              .receive = stream_receive,
                                              .send = stream_send,
                                              .descriptors = stream_descriptors,
                                              .sleep = stream_sleep};

/* Nobody else has to run. */
int __wrap_sched_yield(void);
int __wrap_sched_yield(void) { return 0; }

/* ---- A comm with that transport ---------------------------------------------------------------------------------- */

static void *create(void *argument) {
  pith_config config = PITH_CONFIG_INIT;
  static pith_comm *comms[2];
  int rank = (int)(size_t)argument;
  config.rank = rank, config.ranks = 2, config.transport = "inproc", config.timeout = 60;
  config.port = 21000 + (int)(getpid() % 10000);
  FUZZ_REQUIRE(pith_comm_create(&config, &comms[rank]) == PITH_OK);
  return comms[rank];
}

/* A real one, as it is right after its creation. */
static pith_comm *fresh_comm(stream *s) {
  static pith_comm *comm, first;
  static pith_link saved;
  if (!comm) {
    pthread_t other;
    FUZZ_REQUIRE(pthread_create(&other, NULL, create, (void *)1) == 0);
    comm = create(NULL);
    pthread_join(other, NULL);
    first = *comm;
    saved = *comm->link[1];
  }
  *comm = first;
  *comm->link[1] = saved;
  comm->transports = 1;
  comm->transport[0] = &s->base;
  comm->link[1]->transport = &s->base;
  comm->link[1]->checked = s->is_checked;
  return comm;
}

static void clear(pith_comm *comm) {
  pith__link_clear(comm->link[1]);
  for (int i = 0; i < comm->spec_count; i++) {
    free(comm->specs[i].text);
  }
  comm->spec_count = 0;
  pith__pool_fini(&comm->pool);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input in = {data, size};
  unsigned operation = (unsigned)fuzz_take(&in, 1) % FUZZ_FRAME_OPERATIONS;
  size_t step = (size_t)fuzz_take(&in, 1);
  unsigned flags = (unsigned)fuzz_take(&in, 1);
  stream s = {.base.ops = &stream_ops,
              .in = in,
              .step = step ? step * step : SIZE_MAX / 2,
              .patience = 20,
              .is_sealed = flags & FLAG_SEALED,
              .is_checked = flags & FLAG_CHECKED};
  pith_comm *comm = fresh_comm(&s);
  for (int i = 0; i <= (flags & FLAG_TWICE ? 1 : 0); i++) {
    FUZZ_REQUIRE(fuzz_frame_run(comm, operation) == PITH_OK || pith_error()[0]);
  }
  clear(comm);
  return 0;
}
