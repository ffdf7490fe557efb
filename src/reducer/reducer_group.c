/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which layers of a reducer are sent together, and when. Groups follow from the layers and their specs alone:
 * from the last layer to the first, the order of a backward pass, layers of one kind are grouped until they have enough
 * bytes. So they are the same on all ranks and in every step, in whatever order gradients become ready, and what the
 * owner of a part keeps between steps stays with it. Who knows the order of the backward pass can say it before the
 * first step; the ranks then take that of rank 0.
 */
#include <stdlib.h>
#include <string.h>

#include "base/split.h"
#include "codec/codec.h"
#include "device/hosts_carrier.h"
#include "reducer/reducer.h"
#include "reducer/stages.h"

/* Of methods that send little, more: what they cost is the time of a message. GPUs, and links between them, like larger
 * messages than CPUs. */
enum { BLOCK_BYTES = 8 << 20, WHOLE_BYTES = 16 << 20, CUDA_BLOCK_BYTES = 32 << 20, CUDA_WHOLE_BYTES = 64 << 20 };
enum { CUDA_ROUND_BYTES = 128 << 20, CHUNK_BYTES = 32 << 20 };

/* ---- Their order ------------------------------------------------------------------------------------------------- */

/* Layers that come from a caller or from the network are an order if each is there once. */
static pith_status take_order(pith_reducer *r, const uint32_t *layers) {
  PITH_FREED uint32_t *order = calloc(r->count + 1, sizeof *order);
  PITH_FREED uint8_t *seen = calloc(r->count + 1, 1);
  PITH_REQUIRE(order && seen, PITH_ERR_MEMORY, "no memory for a reducer");
  for (size_t k = 0; k < r->count; k++) {
    PITH_REQUIRE(layers[k] < r->count && !seen[layers[k]], PITH_ERR_ARGUMENT,
                 "the order of layers has number %u, which is twice in it or no layer", layers[k]);
    seen[layers[k]] = 1;
    order[k] = layers[k];
  }
  free(r->order);
  r->order = order;
  order = NULL;
  return PITH_OK;
}

pith_status pith__reducer_set_order(pith_reducer *r, const uint32_t *layers) {
  PITH_REQUIRE(!r->checked, PITH_ERR_STATE, "the order of layers is set before the first step");
  return take_order(r, layers);
}

pith_status pith__reducer_agree_order(pith_reducer *r) {
  PITH_FREED uint32_t *all = calloc((r->count + 1) * (size_t)r->ranks, sizeof *all);
  PITH_FREED uint32_t *mine = calloc(r->count + 1, sizeof *mine);
  PITH_REQUIRE(all && mine, PITH_ERR_MEMORY, "no memory for a reducer");
  for (size_t k = 0; k < r->count; k++) {
    mine[k] = r->order ? r->order[k] : (uint32_t)(r->count - 1 - k);
  }
  PITH_TRY(pith__reducer_gather(r, mine, (r->count + 1) * sizeof *mine, all));
  return take_order(r, all);
}

/* ---- Forming them ------------------------------------------------------------------------------------------------ */

static pith_group_kind kind_of(const pith_reducer *r, const pith_reducer_layer *l) {
  const uint32_t fixed_blocks = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  const pith_codec *codec = l->match.codec;
  if (l->dtype == PITH_F64) {
    return PITH_GROUP_PLAIN;
  }
  if (codec->caps & PITH_CAP_ROUNDS) {
    return PITH_GROUP_ROUNDS;
  }
  int in_blocks = (codec->caps & fixed_blocks) == fixed_blocks && !(codec->caps & PITH_CAP_ONCE);
  int in_levels = in_blocks && !(codec->caps & PITH_CAP_VOTE) && pith__hosts_of(&r->carrier);
  return in_levels ? PITH_GROUP_HOSTS : in_blocks ? PITH_GROUP_BLOCKS : PITH_GROUP_WHOLE;
}

static size_t limit_of(const pith_reducer *r, pith_group_kind kind) {
  if (r->options.group_bytes) {
    return r->options.group_bytes;
  }
  int in_blocks = kind == PITH_GROUP_BLOCKS || kind == PITH_GROUP_HOSTS || kind == PITH_GROUP_PLAIN;
  if (!r->space) {
    return in_blocks ? BLOCK_BYTES : WHOLE_BYTES;
  }
  return in_blocks ? CUDA_BLOCK_BYTES : kind == PITH_GROUP_ROUNDS ? CUDA_ROUND_BYTES : CUDA_WHOLE_BYTES;
}

/* A layer's bytes as limits count them. On devices these are meant for messages of about 4 bits a value: layers that
 * send less count less, so that they do not travel in messages that cost more to begin than to send. */
static size_t counted_bytes(const pith_reducer *r, const pith_reducer_layer *l) {
  enum { SAMPLE = 1 << 20, FEWEST = 4 };
  size_t bytes = pith__layer_bytes(l), usual = SAMPLE / 2;
  if (!r->space || kind_of(r, l) != PITH_GROUP_BLOCKS) {
    return bytes;
  }
  size_t payload = pith_codec_bound(l->match.codec, SAMPLE);
  payload = payload > usual ? usual : payload < usual / FEWEST ? usual / FEWEST : payload;
  return (size_t)((double)bytes * (double)payload / (double)usual);
}

/* Values of a chunk of each part of a large layer; 0: it is sent in one. */
static size_t chunk_of(const pith_reducer *r, const pith_reducer_layer *l) {
  size_t asked = r->options.chunk_bytes, limit = asked ? asked : CHUNK_BYTES, granule = l->match.codec->granule;
  size_t counted = asked ? pith__layer_bytes(l) : counted_bytes(r, l);
  if (!r->space || kind_of(r, l) != PITH_GROUP_BLOCKS || counted <= 2 * limit) {
    return 0;
  }
  double share = (double)limit / (double)counted;
  size_t values = (size_t)(share * (double)l->n) / (size_t)r->ranks / granule * granule;
  return values ? values : granule;
}

static pith_status new_group(pith_reducer *r, const pith_reducer_layer *l, size_t *made) {
  PITH_TRY(pith__reducer_grow((void **)&r->groups, &r->group_room, r->group_count, sizeof *r->groups));
  *made = r->group_count++;
  r->groups[*made] = (pith_group){.kind = kind_of(r, l), .codec = l->match.codec};
  return PITH_OK;
}

/* The last group of the layer's kind, if it is not full; else a new one. Over a comm a group has layers of all kinds:
 * each is an allreduce by its own codec. */
static pith_status find_group(pith_reducer *r, const pith_reducer_layer *l, size_t *found) {
  for (size_t g = r->group_count; g-- > 0;) {
    const pith_group *group = &r->groups[g];
    int is_same = group->kind == kind_of(r, l) &&
                  (group->kind != PITH_GROUP_ROUNDS || group->codec->fingerprint == l->match.codec->fingerprint);
    if (!group->chunk && (!r->stages || is_same)) {
      *found = g;
      return group->bytes < limit_of(r, group->kind) ? PITH_OK : new_group(r, l, found);
    }
  }
  return new_group(r, l, found);
}

static pith_status add_layer(pith_group *g, size_t index, size_t bytes) {
  PITH_TRY(pith__reducer_grow((void **)&g->layer, &g->room, g->count, sizeof *g->layer));
  g->layer[g->count++] = index;
  g->bytes += bytes;
  g->missing = g->count;
  return PITH_OK;
}

/* A group for each chunk, one after another. */
static pith_status add_chunks(pith_reducer *r, size_t index, size_t chunk) {
  const pith_reducer_layer *l = &r->layers[index];
  size_t chunks = pith__split_chunks(l->n, l->match.codec->granule, (size_t)r->ranks, chunk);
  r->group_of[index] = r->group_count;
  for (size_t number = 0, at; number < chunks; number++) {
    PITH_TRY(new_group(r, l, &at));
    r->groups[at].chunk = chunk;
    r->groups[at].number = number;
    PITH_TRY(add_layer(&r->groups[at], index, counted_bytes(r, l) / chunks));
  }
  return PITH_OK;
}

pith_status pith__reducer_form_groups(pith_reducer *r) {
  pith__reducer_drop_groups(r);
  r->group_of = calloc(r->count + 1, sizeof *r->group_of);
  PITH_REQUIRE(r->group_of, PITH_ERR_MEMORY, "no memory for a reducer");
  for (size_t k = 0; k < r->count; k++) {
    size_t i = r->order ? r->order[k] : r->count - 1 - k, chunk = chunk_of(r, &r->layers[i]);
    if (chunk) {
      PITH_TRY(add_chunks(r, i, chunk));
    } else {
      PITH_TRY(find_group(r, &r->layers[i], &r->group_of[i]));
      PITH_TRY(add_layer(&r->groups[r->group_of[i]], i, counted_bytes(r, &r->layers[i])));
    }
  }
  return PITH_OK;
}

void pith__reducer_drop_groups(pith_reducer *r) {
  for (size_t g = 0; g < r->group_count; g++) {
    pith__bucket_destroy(r->groups[g].bucket);
    pith__bucket_destroy(r->groups[g].across);
    free(r->groups[g].layer);
  }
  free(r->groups);
  free(r->group_of);
  r->groups = NULL, r->group_of = NULL;
  r->group_count = r->group_room = 0;
  r->next_group = 0;
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

/* Layers whose gradients are not ready are left out, on all ranks alike. */
static pith_status send_group(pith_reducer *r, pith_group *g) {
  if (g->is_sent || g->missing == g->count) {
    return PITH_OK;
  }
  g->is_sent = 1;
  if (r->stages) {
    return pith__stages_put(r->stages, g);
  }
  for (size_t i = 0; i < g->count; i++) {
    const pith_reducer_layer *l = &r->layers[g->layer[i]];
    PITH_TRY(l->started == r->step + 1 ? pith__reducer_send(r, g->layer[i], l->gradient) : PITH_OK);
  }
  return pith__reducer_send_joined(r);
}

pith_status pith__reducer_put(pith_reducer *r, size_t index, void *gradient) {
  size_t first = r->group_of[index], last = first;
  while (r->groups[first].chunk && last + 1 < r->group_count && r->groups[last + 1].number > r->groups[last].number) {
    last++; /* all chunks of the layer */
  }
  r->layers[index].gradient = gradient;
  for (size_t g = first; g <= last; g++) {
    PITH_REQUIRE(!r->groups[g].is_sent, PITH_ERR_STATE, "layer %s comes after the reducer was flushed",
                 r->layers[index].name);
    r->groups[g].missing--;
  }
  for (size_t g = first; g <= last && !r->options.in_order; g++) {
    PITH_TRY(r->groups[g].missing ? PITH_OK : send_group(r, &r->groups[g]));
  }
  while (r->options.in_order && r->next_group < r->group_count && r->groups[r->next_group].missing == 0) {
    PITH_TRY(send_group(r, &r->groups[r->next_group++]));
  }
  return PITH_OK;
}

pith_status pith__reducer_send_groups(pith_reducer *r) {
  for (size_t g = 0; g < r->group_count; g++) {
    PITH_TRY(send_group(r, &r->groups[g]));
  }
  return PITH_OK;
}
