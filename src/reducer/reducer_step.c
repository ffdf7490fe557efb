/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of the reducer over a comm.
 *
 * Large layers become an operation each, at once, so that they are sent while the next gradients are computed. Small
 * ones, and all that are sent in rounds, are joined: uncompressed layers of one type, or layers of one codec. An open
 * operation starts when it has enough bytes, when it is flushed, or at the end of the step.
 *
 * Joined layers with a codec stay where they are. Block codecs join what ranks send each other; each layer keeps its
 * own memory, random numbers and owners (src/collective/parts.c), so that it makes no difference to the result whether
 * it was joined. Methods of several rounds join what they exchange. Uncompressed layers are copied together. In each
 * case the ranks compare which layers are joined, in which order: a sum of different layers is an error, compressed or
 * not.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "codec/codec.h"
#include "reducer/reducer.h"

#define JOIN_MOST ((size_t)64 << 10)          /* layers up to this many bytes are joined … */
#define JOINED_BYTES ((size_t)1 << 20)        /* … until they are this many */
#define ROUNDS_JOINED_BYTES ((size_t)8 << 20) /* of gradients whose factors are sent together */

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void release_operation(pith_reducer_operation *op) {
  free(op->layer);
  free(op->gradient);
  free(op->member);
  free(op->buffer);
  *op = (pith_reducer_operation){0};
}

void pith__reducer_drop_operations(pith_reducer *r) {
  for (size_t i = 0; i < r->operation_count; i++) {
    if (r->operations[i].request) {
      pith_wait(r->operations[i].request); /* tensors are lent until then, whatever comes of it */
    }
    release_operation(&r->operations[i]);
  }
  for (size_t i = 0; i < r->open_count; i++) {
    release_operation(&r->open[i]);
  }
  free(r->operations);
}

static const pith_codec *codec_of(const pith_reducer_layer *l) {
  return strcmp(l->match.codec->spec, "none") == 0 ? NULL : l->match.codec;
}

static int takes_rounds(const pith_codec *codec) { return codec && (codec->caps & PITH_CAP_ROUNDS); }

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

/* Whether a layer's last block, however short, fits into the bytes of a full one. */
static int fits_granules(const pith_codec *codec) {
  const uint32_t fixed_blocks = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  return (codec->caps & fixed_blocks) == fixed_blocks &&
         pith_codec_bound(codec, codec->granule - 1) <= pith_codec_bound(codec, codec->granule);
}

/* Joined where a message would cost more than the layer, and where all that is joined can be told apart again. */
static int is_joined(const pith_reducer *r, const pith_reducer_layer *l) {
  const pith_codec *codec = codec_of(l);
  /* Codecs for the inside of hosts see what is joined as one: bits would depend on it. */
  int joinable = !codec || takes_rounds(codec) || (fits_granules(codec) && !r->comm->inside);
  return joinable && r->ranks > 1 && (takes_rounds(codec) || pith__layer_bytes(l) <= JOIN_MOST);
}

/* Where the next layer starts, in values. */
static size_t next_start(const pith_reducer_operation *op) {
  size_t granule = op->codec && op->codec->granule ? op->codec->granule : 1;
  return (op->n + granule - 1) / granule * granule;
}

static pith_status make_room(pith_reducer_operation *op) {
  size_t room = op->room;
  if (op->count < room) {
    return PITH_OK;
  }
  PITH_TRY(pith__reducer_grow((void **)&op->layer, &room, op->count, sizeof *op->layer));
  room = op->room;
  PITH_TRY(pith__reducer_grow((void **)&op->gradient, &room, op->count, sizeof *op->gradient));
  room = op->room;
  PITH_TRY(pith__reducer_grow((void **)&op->member, &room, op->count, sizeof *op->member));
  op->room = room;
  return PITH_OK;
}

static pith_status add_layer(const pith_reducer *r, pith_reducer_operation *op, size_t index, void *gradient) {
  const pith_reducer_layer *l = &r->layers[index];
  size_t start = next_start(op), width = pith_dtype_size(l->dtype);
  PITH_TRY(make_room(op));
  op->buffer = op->buffer || op->codec ? op->buffer : malloc(JOINED_BYTES);
  PITH_REQUIRE(op->buffer || op->codec, PITH_ERR_MEMORY, "no memory to join layers");
  op->layer[op->count] = index;
  op->gradient[op->count] = gradient;
  op->member[op->count++] = (pith_member){start, l->n, l->number, l->state, gradient, 0};
  if (op->buffer) {
    memcpy(op->buffer + start * width, gradient, l->n * width);
  }
  op->n = start + l->n;
  op->bytes += l->n * width;
  return PITH_OK;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static pith_call call_for(const pith_reducer *r, const pith_codec *codec) {
  pith_call call = PITH_CALL_INIT;
  call.codec = codec;
  call.gamma = codec ? pith__codec_gamma(codec) : 1.0f;
  call.seed = r->seed;
  call.step = r->step;
  return call;
}

/* Ranks compare a number of all members instead of one layer's. Without a codec the buffer has their values; else only
 * their number and type matter. */
static pith_status start_joined(const pith_reducer *r, pith_reducer_operation *op) {
  pith_operation *made;
  pith_call call = call_for(r, op->codec);
  call.layer = op->count;
  for (size_t i = 0; i < op->count; i++) {
    uint64_t facts[2] = {op->member[i].layer, op->member[i].n};
    call.layer = pith__hash64(facts, sizeof facts, call.layer);
  }
  pith_span dst = {op->buffer, op->n, op->dtype};
  pith_cspan src = {op->buffer, op->n, op->dtype};
  PITH_TRY(pith__operation_make_joined(r->comm, PITH_OP_ALLREDUCE, src, dst, PITH_MEAN, &call, op->member, op->count,
                                       &made));
  return pith__operation_submit(made, pith__schedule_allreduce(made, NULL), &op->request);
}

/* Keeps an operation, if it was started. */
static pith_status add_operation(pith_reducer *r, pith_reducer_operation *op, pith_status started) {
  pith_status status = started;
  if (status == PITH_OK) {
    status = pith__reducer_grow((void **)&r->operations, &r->operation_room, r->operation_count, sizeof *r->operations);
  }
  if (status == PITH_OK) {
    r->operations[r->operation_count++] = *op;
    return PITH_OK;
  }
  if (op->request) {
    pith_wait(op->request);
  }
  release_operation(op);
  return status;
}

/* Starts an open operation; the others close up. */
static pith_status start_open(pith_reducer *r, size_t index) {
  pith_reducer_operation op = r->open[index];
  memmove(&r->open[index], &r->open[index + 1], (--r->open_count - index) * sizeof *r->open);
  return add_operation(r, &op, start_joined(r, &op));
}

pith_status pith__reducer_send_joined(pith_reducer *r) {
  pith_status first = PITH_OK;
  while (r->open_count) {
    pith_status status = start_open(r, 0);
    first = first == PITH_OK ? status : first;
  }
  return first;
}

/* The open operation for a layer: one of its kind with room, or a new one. */
static pith_status find_open(pith_reducer *r, const pith_reducer_layer *l, size_t *index) {
  const pith_codec *codec = codec_of(l);
  size_t width = pith_dtype_size(l->dtype);
  for (*index = 0; *index < r->open_count; ++*index) {
    pith_reducer_operation *op = &r->open[*index];
    int same_codec = op->codec && codec ? op->codec->fingerprint == codec->fingerprint : op->codec == codec;
    if (same_codec && op->dtype == l->dtype) {
      if (takes_rounds(codec) || (next_start(op) + l->n) * width <= JOINED_BYTES) {
        return PITH_OK;
      }
      PITH_TRY(start_open(r, *index));
      break;
    }
  }
  if (r->open_count == PITH_OPEN_MOST) {
    PITH_TRY(start_open(r, 0));
  }
  *index = r->open_count++;
  r->open[*index] = (pith_reducer_operation){.codec = codec, .dtype = l->dtype};
  return PITH_OK;
}

static pith_status join(pith_reducer *r, size_t index, void *gradient) {
  size_t at;
  PITH_TRY(find_open(r, &r->layers[index], &at));
  PITH_TRY(add_layer(r, &r->open[at], index, gradient));
  return takes_rounds(r->open[at].codec) && r->open[at].bytes >= ROUNDS_JOINED_BYTES ? start_open(r, at) : PITH_OK;
}

static pith_status send_alone(pith_reducer *r, size_t index, void *gradient) {
  pith_reducer_layer *l = &r->layers[index];
  pith_reducer_operation op = {.codec = codec_of(l), .dtype = l->dtype};
  pith_call call = call_for(r, op.codec);
  call.state = op.codec ? l->state : NULL;
  call.layer = l->number;
  pith_span span = {gradient, l->n, l->dtype};
  pith_status status = make_room(&op);
  if (status == PITH_OK) {
    op.layer[0] = index;
    op.gradient[0] = gradient;
    op.count = 1;
    op.bytes = pith__layer_bytes(l);
    status = pith_allreduce(r->comm, (pith_cspan){gradient, l->n, l->dtype}, span, PITH_MEAN, &call, &op.request);
  }
  return add_operation(r, &op, status);
}

pith_status pith__reducer_send(pith_reducer *r, size_t index, void *gradient) {
  return is_joined(r, &r->layers[index]) ? join(r, index, gradient) : send_alone(r, index, gradient);
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* Values that were copied together go back to their gradients; every layer has its share of what was moved for all. */
static void hand_out(pith_reducer *r, const pith_reducer_operation *op, const pith_traffic *traffic) {
  for (size_t i = 0; i < op->count; i++) {
    pith_reducer_layer *l = &r->layers[op->layer[i]];
    pith__traffic_add(&l->traffic, traffic, op->bytes ? (double)pith__layer_bytes(l) / (double)op->bytes : 0);
    if (op->buffer) {
      memcpy(op->gradient[i], op->buffer + op->member[i].first * pith_dtype_size(l->dtype), pith__layer_bytes(l));
    }
  }
}

pith_status pith__reducer_wait(pith_reducer *r) {
  pith_status first = PITH_OK;
  for (size_t i = 0; i < r->operation_count; i++) {
    pith_reducer_operation *op = &r->operations[i];
    pith_traffic traffic = {0};
    pith_status status = pith__wait(op->request, &traffic, NULL);
    if (status == PITH_OK) {
      hand_out(r, op, &traffic);
    }
    first = first == PITH_OK ? status : first;
    release_operation(op);
  }
  r->operation_count = 0;
  return first;
}
