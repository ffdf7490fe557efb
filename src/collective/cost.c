/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost model: stages of each algorithm, as docs/algorithms.md lists them. A stage keeps three things busy, the
 * links between hosts, those within them, and the processor of the busiest rank, and takes as long as the slowest of
 * them. Where chunks follow each other, stages overlap.
 */
#include "collective/cost.h"

#include <math.h>
#include <string.h>

#include "collective/job.h"

/* 10 Gbit/s between hosts, shared memory within them, a codec on one core: as PITH_SIM_TOPOLOGY_INIT has it. */
const pith_cost_model pith__cost_default = {
    .inside = {.latency = 2e-6, .bandwidth = 5e9, .message = 0.5e-6, .byte = 0.1e-9},
    .across = {.latency = 30e-6, .bandwidth = 1.25e9, .message = 2e-6, .byte = 0.15e-9},
    .encode_call = 0.2e-6,
    .encode = 0.5e-9,
    .decode_call = 0.2e-6,
    .decode = 0.4e-9,
    .sum = 0.3e-9,
    .pack = 0.2e-9,
    .pack_entry = 3e-9,
    .unpack_entry = 5e-9,
    .oversubscription = 1,
    .rack_oversubscription = 1,
};

static const char *const names[] = {
#define NAME(constant, name, what) name,
    PITH_ALGORITHM_LIST(NAME)
#undef NAME
};

const char *pith__algorithm_name(pith_algorithm algorithm) { return names[algorithm]; }

pith_algorithm pith__algorithm_find(const char *name) {
  int found = 0;
  while (found < PITH_ALGORITHMS && strcmp(names[found], name) != 0) {
    found++;
  }
  return (pith_algorithm)found;
}

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

#define STAGES_MOST 6
#define ENTRY_BYTES 4.9 /* of a payload, for each entry: a value, and where it is */

typedef struct stage {
  double latency, hidden;      /* of the latency: work that goes on meanwhile */
  double across, inside, work; /* seconds of the link of a host, of that of a rank within it, of a processor */
  double behind;               /* of the work: what can only begin when the link has sent all */
  double pieces;               /* that follow each other in it */
} stage;

typedef struct estimate {
  const pith_cost_question *q;
  const pith_cost_model *m;
  double ranks, hosts, members;
  stage stage[STAGES_MOST];
  int stages;
  double chunks; /* in which the stages follow each other */
} estimate;

static int largest_host(const pith_layout *l) {
  int most = 1;
  for (int h = 0; h < l->hosts; h++) {
    most = pith__layout_members(l, h) > most ? pith__layout_members(l, h) : most;
  }
  return most;
}

static stage *add_stage(estimate *e) {
  e->stage[e->stages] = (stage){.pieces = 1};
  return &e->stage[e->stages++];
}

static double up(double x) { return x < 1 ? 1 : ceil(x); }

/* Where the messages of a step go. */
typedef enum reach {
  INSIDE,  /* ranks of the same host */
  RACK,    /* other hosts of the rack */
  OUTSIDE, /* other racks */
  ANYWHERE /* all ranks alike */
} reach;

/* Every rank sends `bytes` in so many messages, and receives as many. */
static void add_messages(estimate *e, stage *s, reach where, double messages, double bytes) {
  const pith_cost_model *m = e->m;
  double outside = where == INSIDE ? 0 : where == ANYWHERE ? (e->ranks - e->members) / (e->ranks - 1) : 1;
  double all = bytes + messages * 128, across = all * outside * e->members / m->across.bandwidth;
  double racks = e->q->rack_hosts && e->q->rack_hosts < e->hosts ? e->q->rack_hosts : 0;
  double leaving = !racks || where == RACK ? 0 : where == OUTSIDE ? 1 : (e->hosts - racks) / (e->hosts - 1);
  double slower = m->oversubscription > 1 ? m->oversubscription : 1;
  slower = leaving * m->rack_oversubscription > slower ? leaving * m->rack_oversubscription : slower;
  s->across += across * slower;
  s->inside += all * (1 - outside) / m->inside.bandwidth;
  s->work += 2 * outside * (messages * m->across.message + all * m->across.byte) +
             2 * (1 - outside) * (messages * m->inside.message + all * m->inside.byte);
  double latency = outside > 0 ? m->across.latency : m->inside.latency,
         sends = (messages - 1) * (outside * m->across.message + (1 - outside) * m->inside.message);
  s->hidden = fmax(s->hidden, fmin(fmax(sends, 0), latency)); /* while others are sent, the first is on its way */
  s->latency = latency > s->latency ? latency : s->latency;
  s->pieces = messages > s->pieces ? messages : s->pieces;
}

/* A link turns to the next connection after so many bytes: the ends of longer messages come when the beginnings of all
 * have. */
#define TURN_BYTES 32768

/* Messages to many, all at once, of so many bytes each. */
static void await_ends(const estimate *e, stage *s, double messages, double bytes) {
  if (bytes + 128 > TURN_BYTES) {
    s->behind = messages * (e->m->across.message + bytes * e->m->across.byte);
  }
}

/* Work that is done in turns ends with the link; work at the end comes behind it. */
static pith_cost total_of(const estimate *e) {
  pith_cost c = {0};
  double across = 0, inside = 0, work = 0, one_by_one = 0;
  for (int i = 0; i < e->stages; i++) {
    const stage *s = &e->stage[i];
    double spent = s->work - s->hidden, most = fmax(fmax(s->across, s->inside), spent);
    one_by_one +=
        fmax(most, s->across + s->behind) + (s->across + s->inside + spent - most) / up(s->pieces * e->chunks);
    c.latency += s->latency;
    across += s->across;
    inside += s->inside;
    work += spent;
  }
  double together = fmax(fmax(across, inside), work);
  c.wire = fmax(across, inside);
  c.work = work;
  c.seconds = c.latency + together + (one_by_one - together) / up(e->chunks);
  return c;
}

static double encoded(const estimate *e, double values, double calls) {
  return values * e->m->encode + calls * e->m->encode_call;
}

static double decoded(const estimate *e, double values, double calls) {
  return values * e->m->decode + calls * e->m->decode_call;
}

/* ---- Values as they are ------------------------------------------------------------------------------------------ */

static double levels_of(double ranks) { return ranks > 1 ? ceil(log2(ranks)) : 0; }

/* The latency of messages to ranks so far away: of those that are nearer than a host is long, some stay in it. */
static double latency_to(const estimate *e, double distance) {
  double leaving = e->hosts < 2 ? 0 : distance < e->members ? distance / e->members : 1;
  return leaving * e->m->across.latency + (1 - leaving) * e->m->inside.latency;
}

/* Short tensors: src/collective/short.c. */
static void estimate_short(estimate *e, double bytes, double values, double spent) {
  if (pith__is_bruck((size_t)bytes, (int)e->ranks)) {
    double have = 1;
    for (double i = 0; i < levels_of(e->ranks); i++, have *= 2) {
      stage *s = e->stages < STAGES_MOST ? add_stage(e) : &e->stage[STAGES_MOST - 1];
      double before = s->latency;
      s->latency = 0;
      add_messages(e, s, ANYWHERE, 1, bytes * fmin(have, e->ranks - have));
      s->latency = before + latency_to(e, have);
    }
  } else {
    add_messages(e, add_stage(e), ANYWHERE, e->ranks - 1, bytes * (e->ranks - 1));
  }
  e->stage[e->stages - 1].work += spent * values;
}

static void estimate_sra(estimate *e, double bytes, double values) {
  if (pith__is_short((size_t)bytes, (int)e->ranks)) {
    estimate_short(e, bytes, values, e->ranks * e->m->sum);
    return;
  }
  double part = bytes / e->ranks, message = fmin((double)e->q->message, (double)e->q->chunk);
  double owners = fmin(e->ranks, values), messages = up(part / message) * (owners < e->ranks ? owners : e->ranks - 1);
  stage *s = add_stage(e);
  add_messages(e, s, ANYWHERE, messages, bytes * (e->ranks - 1) / e->ranks);
  await_ends(e, s, messages, fmin(part, message));
  s->work += values * e->m->sum;
  s = add_stage(e);
  messages = up(part / message) * (e->ranks - 1);
  add_messages(e, s, ANYWHERE, messages, bytes * (e->ranks - 1) / e->ranks);
  await_ends(e, s, messages, fmin(part, message));
  e->chunks = up(part / message);
}

static void estimate_hosts(estimate *e, double bytes, double values) {
  double leaders = e->q->layout->leaders, hosts = e->hosts, members = e->members;
  double slice = bytes / leaders / hosts, message = fmin((double)e->q->message, (double)e->q->chunk);
  double chunks = up(slice / message), owners = fmin(hosts, up(values / leaders));
  stage *s = add_stage(e);
  add_messages(e, s, INSIDE, (members - 1) * owners * chunks, bytes * (members - 1) / leaders);
  s->work += values * members / leaders * e->m->sum;
  s = add_stage(e);
  double own = e->members;
  e->members = leaders; /* that send at once */
  add_messages(e, s, OUTSIDE, (owners < hosts ? owners : hosts - 1) * chunks, bytes / leaders * (hosts - 1) / hosts);
  s->work += values / leaders * e->m->sum;
  s = add_stage(e);
  add_messages(e, s, OUTSIDE, (hosts - 1) * chunks, bytes / leaders * (hosts - 1) / hosts);
  e->members = own;
  s = add_stage(e);
  add_messages(e, s, INSIDE, (members - 1) * owners * chunks, bytes * (members - 1) / leaders);
  e->chunks = chunks;
}

static reach reach_of(const estimate *e, int level) {
  int racks = e->q->rack_hosts && e->q->rack_hosts < e->hosts;
  return level == 0 ? INSIDE : e->hosts < 2 ? INSIDE : level == 1 && racks ? RACK : OUTSIDE;
}

static double message_at(const estimate *e, int level) {
  return reach_of(e, level) == INSIDE ? e->m->inside.message : e->m->across.message;
}

/* Few ranks own a value. Such a one receives from all its peers and sends to few on the way up. On the way down it
 * sends to all, those of lower levels first. */
static void adjust_to_few(const estimate *e, stage *s, int way, int level, double owners) {
  double each = message_at(e, level);
  s->hidden = fmin(s->hidden, (owners - 1) * each);
  for (int k = 0; way && k < level; k++) {
    s->work += (e->q->grid->size[k] - 1) * message_at(e, k);
  }
}

static void estimate_grid(estimate *e, double bytes, double values) {
  double part = bytes, of = values, message = (double)e->q->message;
  for (int way = 0; way < 2; way++) {
    for (int i = 0; i < PITH_GRID_LEVELS; i++) {
      int level = way ? PITH_GRID_LEVELS - 1 - i : i;
      double size = e->q->grid->size[level];
      if (size > 1) {
        part = way ? part * size : part;
        of = way ? of * size : of;
        double owners = fmin(size - 1, up(of)), messages = (owners + size - 1) / 2;
        stage *s = add_stage(e);
        add_messages(e, s, reach_of(e, level), messages * up(part / size / message), part * (size - 1) / size);
        if (owners < size - 1) {
          adjust_to_few(e, s, way, level, owners);
        }
        s->work += way ? 0 : of * e->m->sum;
        part = way ? part : part / size;
        of = way ? of : of / size;
      }
    }
  }
  e->chunks = sqrt(up(bytes / e->q->grid->size[0] / e->q->grid->size[1] / message)); /* levels overlap in part */
}

/* ---- Block codecs ------------------------------------------------------------------------------------------------ */

static double parts_of(const estimate *e, double most) {
  return fmin(most, up((double)e->q->n / (double)e->q->granule));
}

static void estimate_blocks(estimate *e) {
  double n = (double)e->q->n, c = e->q->coded, owners = parts_of(e, e->ranks), part = n / owners;
  double chunks = up(part * 4 / (double)e->q->chunk), others = owners < e->ranks ? owners : e->ranks - 1;
  stage *s = add_stage(e);
  add_messages(e, s, ANYWHERE, fmax(others, e->ranks - 1) * chunks,
               fmax(c * others / owners, c / owners * (e->ranks - 1)));
  s->work += encoded(e, part * others, others * chunks) + decoded(e, part * (e->ranks - 1), (e->ranks - 1) * chunks) +
             part * e->m->sum;
  s = add_stage(e);
  add_messages(e, s, ANYWHERE, (e->ranks - 1) * chunks, c / owners * (e->ranks - 1));
  s->work += encoded(e, part, chunks) + decoded(e, n, owners * chunks);
  e->chunks = chunks;
}

/* What is summed within the host goes on slice by slice. But where links decide, the results wait for all sums. */
static double overlap_of_slices(const estimate *e, double slices) {
  double across = 0, work = 0;
  for (int i = 0; i < e->stages; i++) {
    across += e->stage[i].across;
    work += e->stage[i].work;
  }
  return across > work ? fmin(slices, 2) : sqrt(slices);
}

static void estimate_block_hosts(estimate *e) {
  double n = (double)e->q->n, c = e->q->coded, raw = e->q->raw, leaders = e->q->layout->leaders, members = e->members;
  double led = parts_of(e, leaders), slices = parts_of(e, leaders * e->hosts) / led, hosts = e->hosts;
  double part = n / led, slice = part / slices, chunks = up(slice * 4 / (double)e->q->chunk);
  stage *s = add_stage(e);
  add_messages(e, s, INSIDE, (members - 1) * slices * chunks, raw / led * (members - 1));
  s->work += part * members * e->m->sum;
  e->members = led;
  s = add_stage(e);
  double to = slices < hosts ? slices : hosts - 1;
  add_messages(e, s, OUTSIDE, fmax(to, hosts - 1) * chunks, c / led / slices * fmax(to, hosts - 1));
  s->work +=
      encoded(e, slice * to, to * chunks) + decoded(e, slice * (hosts - 1), (hosts - 1) * chunks) + slice * e->m->sum;
  s = add_stage(e);
  add_messages(e, s, OUTSIDE, (hosts - 1) * chunks, c / led / slices * (hosts - 1));
  e->members = members;
  s->work += encoded(e, slice, chunks) + decoded(e, part, slices * chunks);
  s = add_stage(e);
  add_messages(e, s, INSIDE, (members - 1) * slices * chunks, c / led * (members - 1));
  s->work += decoded(e, n - part, (led - 1) * slices * chunks);
  e->chunks = chunks * overlap_of_slices(e, slices);
}

static void estimate_block_grid(estimate *e) {
  const int *size = e->q->grid->size;
  double n = (double)e->q->n, c = e->q->coded, raw = e->q->raw, members = size[0], hosts = size[1], racks = size[2];
  double led = parts_of(e, members), rows = parts_of(e, members * hosts) / led,
         slices = parts_of(e, members * hosts * racks) / led / rows;
  double part = n / led, row = part / rows, slice = row / slices, to = rows < hosts ? rows : hosts - 1;
  stage *s;
  if (members > 1) {
    s = add_stage(e);
    double pieces = up(part * 4 / (double)e->q->chunk);
    e->chunks = sqrt(pieces); /* levels overlap in part */
    add_messages(e, s, INSIDE, (members - 1) * pieces, raw / led * (members - 1));
    s->work += part * members * e->m->sum;
  }
  double own = e->members;
  e->members = fmin(own, led);
  s = add_stage(e);
  add_messages(e, s, reach_of(e, 1), fmax(to, hosts - 1), c / led / rows * fmax(to, hosts - 1));
  s->work += encoded(e, row * to, to) + decoded(e, row * (hosts - 1), hosts - 1) + row * e->m->sum;
  s = add_stage(e);
  add_messages(e, s, reach_of(e, 2), racks - 1, 4 * slice * (racks - 1));
  s->work += slice * racks * e->m->sum;
  s = add_stage(e);
  add_messages(e, s, reach_of(e, 2), racks - 1, c / led / rows / slices * (racks - 1));
  s->work += encoded(e, slice, 1);
  s = add_stage(e);
  add_messages(e, s, reach_of(e, 1), hosts - 1, c / led / rows * (hosts - 1));
  s->work += decoded(e, part, rows);
  e->members = own;
  if (members > 1) {
    s = add_stage(e);
    add_messages(e, s, INSIDE, (members - 1) * rows, c / led * (members - 1));
    s->work += decoded(e, n - part, (led - 1) * rows);
  }
}

/* ---- Payloads of the whole tensor -------------------------------------------------------------------------------- */

static double density_of(const estimate *e) {
  double density = e->q->coded / ENTRY_BYTES / fmax((double)e->q->n, 1);
  return density < 1 ? density : 1;
}

/* Entries for each value that so many ranks have together, and the bytes of n values with them. */
static double joint(const estimate *e, double ranks) { return 1 - pow(1 - density_of(e), ranks); }

static double entry_bytes(double density, double n) {
  return n * fmin(density * (4 + (1 + log2(1 / fmax(density, 1e-9))) / 8), 4) + 16;
}

static void estimate_gather(estimate *e) {
  double n = (double)e->q->n, c = e->q->coded;
  int is_sparse = e->q->kind == PITH_COST_WHOLE;
  double chunks = is_sparse ? 1 : up(e->q->raw / (double)e->q->chunk);
  if (e->q->is_fixed && pith__is_bruck((size_t)c, (int)e->ranks)) {
    estimate_short(e, c, 1, encoded(e, n, 1) + decoded(e, n * e->ranks, e->ranks) + n * e->m->sum);
    return;
  }
  stage *s = add_stage(e);
  s->work += encoded(e, n, chunks);
  e->stage[0].pieces = e->ranks;
  s = add_stage(e);
  add_messages(e, s, ANYWHERE, (e->ranks - 1) * chunks, c * (e->ranks - 1));
  s->work += decoded(e, n * e->ranks, e->ranks * chunks) + n * e->m->sum * (is_sparse ? 2 : 1);
  s->pieces = 1; /* the first in rank order may come last */
  e->chunks = chunks;
}

static void estimate_gather_hosts(estimate *e) {
  double n = (double)e->q->n, c = e->q->coded, raw = e->q->raw, members = e->members, hosts = e->hosts;
  int is_sparse = e->q->kind == PITH_COST_WHOLE;
  double chunks = is_sparse ? 1 : up(raw / (double)e->q->chunk);
  stage *s = add_stage(e); /* the leader receives, and the others send one of these */
  add_messages(e, s, INSIDE, (members - 1) * chunks, raw * (members - 1));
  s->work += n * members * e->m->sum;
  s = add_stage(e);
  s->work += encoded(e, n, chunks);
  e->members = 1;
  s = add_stage(e);
  add_messages(e, s, OUTSIDE, (hosts - 1) * chunks, c * (hosts - 1));
  e->members = members;
  s = add_stage(e);
  add_messages(e, s, INSIDE, (members - 1) * hosts * chunks, c * (members - 1) * hosts);
  s->work += decoded(e, n * hosts, hosts * chunks) + n * e->m->sum * (is_sparse ? 2 : 1);
  e->chunks = chunks;
}

static double packed(const estimate *e, double values, double ranks) {
  return values * (e->m->pack + joint(e, ranks) * e->m->pack_entry);
}

static void estimate_ranges(estimate *e) {
  double n = (double)e->q->n, ranks = e->ranks, part = n / ranks;
  stage *s = add_stage(e);
  s->work += encoded(e, n, 1) + decoded(e, n, 1) + n * e->m->sum;
  s = add_stage(e);
  add_messages(e, s, ANYWHERE, ranks - 1, entry_bytes(density_of(e), part) * (ranks - 1));
  s->work += packed(e, n, 1) + n * density_of(e) * e->m->unpack_entry + part * e->m->sum;
  s = add_stage(e);
  add_messages(e, s, ANYWHERE, ranks - 1, entry_bytes(joint(e, ranks), part) * (ranks - 1));
  s->work += packed(e, part, ranks) + n * (joint(e, ranks) * e->m->unpack_entry + e->m->sum);
}

static void estimate_range_grid(estimate *e) {
  double n = (double)e->q->n, part = n, merged = 1;
  stage *s = add_stage(e);
  s->work += encoded(e, n, 1) + decoded(e, n, 1) + n * e->m->sum;
  for (int k = 0; k < PITH_GRID_LEVELS; k++) {
    double size = e->q->grid->size[k];
    if (size > 1) {
      s = add_stage(e);
      add_messages(e, s, reach_of(e, k), size - 1, entry_bytes(joint(e, merged), part / size) * (size - 1));
      s->work += packed(e, part, merged) + part * joint(e, merged) * e->m->unpack_entry + part / size * e->m->sum;
      part /= size;
      merged *= size;
    }
  }
  s = add_stage(e);
  for (int k = PITH_GRID_LEVELS - 1; k >= 0; k--) { /* one after another, all much alike: one stage */
    double size = e->q->grid->size[k];
    if (size > 1) {
      double before = s->latency;
      s->latency = 0;
      add_messages(e, s, reach_of(e, k), size - 1, entry_bytes(joint(e, e->ranks), part) * (size - 1));
      s->latency += before;
      s->work += packed(e, part, e->ranks);
      part *= size;
      s->work += part * (joint(e, e->ranks) * e->m->unpack_entry + e->m->sum);
    }
  }
  s->pieces = 2;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static void estimate_steps(estimate *e, double steps, double bytes, double values) {
  stage *s = add_stage(e);
  add_messages(e, s, e->hosts > 1 ? ANYWHERE : INSIDE, steps, bytes);
  s->latency *= steps;
  s->work += encoded(e, values, steps) + decoded(e, values, steps) + values * e->m->sum;
}

static void estimate_raw(estimate *e, pith_algorithm algorithm) {
  double bytes = e->q->coded / e->q->exchanges, values = e->q->exchanges > 1 ? bytes / sizeof(float) : (double)e->q->n;
  (algorithm == PITH_ALGORITHM_GRID                                  ? estimate_grid
   : algorithm == PITH_ALGORITHM_HIERARCHICAL && e->hosts < e->ranks ? estimate_hosts
                                                                     : estimate_sra)(e, bytes, values);
}

pith_cost pith__cost_of(pith_algorithm algorithm, const pith_cost_question *q, const pith_cost_model *m) {
  const pith_layout *l = q->layout;
  estimate e = {.q = q, .m = m, .ranks = l->ranks, .hosts = l->hosts, .members = largest_host(l), .chunks = 1};
  double share = (e.ranks - 1) / e.ranks;
  switch (algorithm) {
    case PITH_ALGORITHM_RING:
      estimate_steps(&e, 2 * (e.ranks - 1), 2 * q->coded * share, 2 * (double)q->n);
      break;
    case PITH_ALGORITHM_TREE:
      estimate_steps(&e, 2 * levels_of(e.ranks), levels_of(e.ranks) * q->coded, (double)q->n * levels_of(e.ranks));
      break;
    case PITH_ALGORITHM_GATHER:
      estimate_gather(&e);
      break;
    case PITH_ALGORITHM_RANGES:
      estimate_ranges(&e);
      break;
    case PITH_ALGORITHM_LINEAR: {
      stage *s = add_stage(&e);
      s->work += encoded(&e, (double)q->n, 1) + decoded(&e, (double)q->n, 1);
      estimate_sra(&e, q->coded, q->coded / sizeof(float));
      break;
    }
    default:
      if (q->kind == PITH_COST_RAW) {
        estimate_raw(&e, algorithm);
      } else if (algorithm == PITH_ALGORITHM_GRID) {
        (q->kind == PITH_COST_BLOCKS ? estimate_block_grid : estimate_range_grid)(&e);
      } else if (q->kind == PITH_COST_BLOCKS) {
        (algorithm == PITH_ALGORITHM_HIERARCHICAL ? estimate_block_hosts : estimate_blocks)(&e);
      } else {
        (algorithm == PITH_ALGORITHM_HIERARCHICAL ? estimate_gather_hosts : estimate_gather)(&e);
      }
  }
  pith_cost c = total_of(&e);
  double times = q->kind == PITH_COST_RAW && q->exchanges > 1 ? q->exchanges : 1;
  return (pith_cost){c.seconds * times, c.latency * times, c.wire * times, c.work * times};
}
