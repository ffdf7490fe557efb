/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing the algorithm of an allreduce: the cheapest of those that suit the codec and do not lose more than the
 * others.
 *
 * Ring and tree encode sums again at every step, which a user may want but which nothing should choose for them: they
 * run only where they are asked for. With PITH_DEBUG=INFO a line for each new kind of operation gives the costs.
 */
#include "collective/choose.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"

pith_status pith__algorithm_parse(const char *name, pith_algorithm *algorithm) {
  char list[256] = "";
  *algorithm = pith__algorithm_find(name);
  for (int a = 0; a < PITH_ALGORITHMS; a++) {
    size_t used = strlen(list);
    snprintf(list + used, sizeof list - used, "%s%s", a ? ", " : "", pith__algorithm_name((pith_algorithm)a));
  }
  PITH_REQUIRE(*algorithm != PITH_ALGORITHMS, PITH_ERR_ARGUMENT, "there is no algorithm \"%s\": %s", name, list);
  return PITH_OK;
}

static int is_crowded(const pith_layout *hosts) { return hosts->hosts > 1 && hosts->hosts < hosts->ranks; }

static int takes_rounds(const pith_job *job) {
  return job->codec && (job->codec->caps & PITH_CAP_ROUNDS) && (job->state || job->member_count);
}

#define GRID_RANKS 16 /* on fewer it gains nothing */
#define WIDE 4 /* of block codecs: sums between groups travel uncompressed, and are fewer where groups are large */

/* The grid of these ranks, or why there is none. */
static const char *grid_of(const pith_chooser *c, const pith_codec *codec, int rounds, pith_grid *grid) {
  int is_coded = codec && !rounds && (codec->caps & PITH_CAP_CHUNKED);
  return pith__grid_make(c->hosts, c->rack_hosts, is_coded ? WIDE : 1, grid);
}

/* Why an algorithm cannot run with this codec (NULL: uncompressed values); NULL if it can. `rounds`: the codec's
 * exchanges are the operation's. `crowded`: several hosts, some of them with several ranks. `c` is NULL where the ranks
 * are not known. */
static const char *objection(const pith_chooser *c, const pith_codec *codec, int rounds, int crowded,
                             pith_algorithm algorithm) {
  uint32_t caps = codec ? codec->caps : 0;
  pith_grid grid;
  int raw = !codec || rounds, once = (caps & PITH_CAP_ONCE) != 0;
  int whole = codec && !rounds && !(caps & PITH_CAP_CHUNKED),
      linear = whole && (caps & PITH_CAP_LINEAR) && codec->ops->linear;
  switch (algorithm) {
    case PITH_ALGORITHM_SRA:
      return once ? "it encodes results again" : raw || !whole ? NULL : "its payload is one piece";
    case PITH_ALGORITHM_HIERARCHICAL:
      return !crowded               ? "it needs several hosts, one of them with several ranks"
             : caps & PITH_CAP_VOTE ? "a vote of hosts is not one of ranks"
                                    : NULL;
    case PITH_ALGORITHM_RING:
    case PITH_ALGORITHM_TREE:
      return raw || whole           ? "it needs a codec that encodes pieces of a tensor"
             : once                 ? "it encodes sums again"
             : caps & PITH_CAP_VOTE ? "a vote needs the signs of all ranks"
             : codec->memory && codec->memory->after != PITH_AFTER_SUBTRACT
                 ? "its memory would see sums instead of gradients"
                 : NULL;
    case PITH_ALGORITHM_GATHER:
      return !raw ? NULL : codec ? "its exchanges are sums" : "values that are not encoded need no single encoding";
    case PITH_ALGORITHM_RANGES:
      return whole && (caps & PITH_CAP_SPARSE) ? NULL : "it is for sparse payloads";
    case PITH_ALGORITHM_LINEAR:
      return linear ? NULL : "its payloads do not add up";
    case PITH_ALGORITHM_GRID:
      return !raw && !(caps & PITH_CAP_SPARSE) && !(!whole && (caps & PITH_CAP_FIXED))
                 ? "it needs sparse payloads, or pieces of known size"
             : once && !whole                    ? "it encodes results again"
             : crowded && (caps & PITH_CAP_VOTE) ? "a vote of hosts is not one of ranks"
             : c                                 ? grid_of(c, codec, rounds, &grid)
                                                 : NULL;
    default:
      return NULL;
  }
}

static const char *objection_here(const pith_chooser *c, const pith_job *job, pith_algorithm algorithm) {
  return objection(c, job->codec, takes_rounds(job), is_crowded(c->hosts), algorithm);
}

const char *pith_algorithm_get(size_t index) {
  return index < PITH_ALGORITHMS ? pith__algorithm_name((pith_algorithm)index) : NULL;
}

pith_status pith_algorithm_suits(const char *name, const pith_codec *codec) {
  pith_algorithm algorithm;
  PITH_REQUIRE(name, PITH_ERR_ARGUMENT, "pith_algorithm_suits: the name is NULL");
  PITH_TRY(pith__algorithm_parse(name, &algorithm));
  const char *why_not = objection(NULL, codec, codec && (codec->caps & PITH_CAP_ROUNDS) != 0, 1, algorithm);
  PITH_REQUIRE(!why_not, PITH_ERR_UNSUPPORTED, "%s does not suit %s: %s", name,
               codec ? codec->spec : "uncompressed values", why_not);
  return PITH_OK;
}

/* The layers of a reducer are not gathered for their size: their bits should not depend on which of them travel
 * together, and what owners keep of results must find its next result. */
static int is_steady(const pith_chooser *c, const pith_job *job) {
  uint32_t caps = job->codec ? job->codec->caps : 0;
  int has_other = !(caps & PITH_CAP_ONCE) || !objection_here(c, job, PITH_ALGORITHM_HIERARCHICAL);
  return (job->state || job->member_count) && (caps & PITH_CAP_CHUNKED) && has_other;
}

int pith__allreduce_may_take(const pith_chooser *c, const pith_job *job, pith_algorithm a) {
  return a != PITH_ALGORITHM_AUTO && a != PITH_ALGORITHM_RING && a != PITH_ALGORITHM_TREE &&
         !(a == PITH_ALGORITHM_GRID && job->ranks < GRID_RANKS) && !(a == PITH_ALGORITHM_GATHER && is_steady(c, job)) &&
         !objection_here(c, job, a);
}

static double bytes_of_rounds(const pith_job *job) {
  double bytes = 0;
  size_t layers = job->member_count ? job->member_count : 1;
  for (size_t i = 0; i < layers * pith_codec_rounds(job->codec); i++) {
    pith_round round = PITH_ROUND_INIT;
    const pith_state *state = job->member_count ? job->members[i % layers].state : job->state;
    if (pith_round_describe(job->codec, state, i / layers, &round) == PITH_OK) {
      bytes += (double)round.count * (double)pith_dtype_size(round.dtype);
    }
  }
  return bytes;
}

/* `grid` is filled. */
static pith_cost_question question_of(const pith_chooser *c, const pith_job *job, pith_grid *grid) {
  double raw = (double)job->src.n * (double)pith_dtype_size(job->src.dtype);
  int rounds = takes_rounds(job), is_raw = !job->codec || rounds;
  uint32_t caps = job->codec ? job->codec->caps : 0;
  return (pith_cost_question){
      .layout = c->hosts,
      .grid = grid_of(c, job->codec, rounds, grid) ? NULL : grid,
      .kind = is_raw                                                 ? PITH_COST_RAW
              : (caps & PITH_CAP_CHUNKED) && !(caps & PITH_CAP_ONCE) ? PITH_COST_BLOCKS
                                                                     : PITH_COST_WHOLE,
      .is_fixed = (caps & PITH_CAP_FIXED) && !job->member_count,
      .n = job->src.n,
      .raw = raw,
      .coded = !job->codec ? raw
               : rounds    ? bytes_of_rounds(job)
                           : (double)pith_codec_bound(job->codec, job->src.n),
      .exchanges = rounds ? (double)pith_codec_rounds(job->codec) : 1,
      .granule = job->codec ? job->codec->granule : 1,
      .chunk = job->chunk,
      .message = job->message,
      .rack_hosts = c->rack_hosts,
  };
}

/* Whether the log has no line for this kind of operation yet. */
static int is_new_kind(pith_chooser *c, const pith_job *job) {
  uint64_t facts[4] = {job->src.n, (uint64_t)job->src.dtype, job->codec ? job->codec->fingerprint : 0,
                       (uint64_t)job->reduce};
  uint64_t key = pith__hash64(facts, sizeof facts, 1) | 1;
  return atomic_exchange(&c->explained[key % PITH_EXPLAINED_MOST], key) != key;
}

static void explain(pith_chooser *c, const pith_job *job, pith_algorithm chosen) {
  pith_grid grid;
  pith_cost_question q = question_of(c, job, &grid);
  char line[512];
  int used = snprintf(line, sizeof line, "allreduce of %zu %s, %s, %d ranks on %d hosts:", job->src.n,
                      pith_dtype_name(job->src.dtype), job->codec ? job->codec->spec : "uncompressed", job->ranks,
                      c->hosts->hosts);
  for (int a = 1; a < PITH_ALGORITHMS && used > 0 && (size_t)used < sizeof line; a++) {
    if (!objection_here(c, job, (pith_algorithm)a)) {
      pith_cost cost = pith__cost_of((pith_algorithm)a, &q, &c->cost);
      used += snprintf(line + used, sizeof line - (size_t)used, " %s %.0f us (%.0f steps, %.0f wire, %.0f work);",
                       pith__algorithm_name((pith_algorithm)a), cost.seconds * 1e6, cost.latency * 1e6, cost.wire * 1e6,
                       cost.work * 1e6);
    }
  }
  PITH_LOG_INFO("%s taken: %s", line, pith__algorithm_name(chosen));
}

/* Where there is no choice, nothing is compared. */
static pith_algorithm cheapest(const pith_chooser *c, const pith_job *job) {
  pith_algorithm found[PITH_ALGORITHMS], best = PITH_ALGORITHM_SRA;
  pith_grid grid;
  int count = 0;
  double least = -1;
  for (int a = 1; a < PITH_ALGORITHMS; a++) {
    if (pith__allreduce_may_take(c, job, (pith_algorithm)a)) {
      found[count++] = (pith_algorithm)a;
    }
  }
  if (count < 2) {
    return count ? found[0] : best;
  }
  pith_cost_question q = question_of(c, job, &grid);
  for (int i = 0; i < count; i++) {
    double cost = pith__cost_of(found[i], &q, &c->cost).seconds;
    if (least < 0 || cost < least) {
      least = cost;
      best = found[i];
    }
  }
  return best;
}

pith_algorithm pith__allreduce_estimate(const pith_chooser *c, const pith_job *job, double *seconds) {
  pith_grid grid;
  pith_cost_question q = question_of(c, job, &grid);
  pith_algorithm taken = cheapest(c, job);
  *seconds = job->ranks > 1 ? pith__cost_of(taken, &q, &c->cost).seconds : 0;
  return taken;
}

/* `asked` must suit the codec unless it is the wish for all operations, which yields where it does not suit. */
static pith_status choose(pith_chooser *c, const pith_job *job, pith_algorithm asked, int is_wish,
                          pith_algorithm *chosen) {
  const char *why_not = asked == PITH_ALGORITHM_AUTO ? NULL : objection_here(c, job, asked);
  PITH_REQUIRE(!why_not || is_wish, PITH_ERR_UNSUPPORTED, "%s does not suit %s: %s", pith__algorithm_name(asked),
               job->codec ? job->codec->spec : "uncompressed values", why_not);
  *chosen = asked == PITH_ALGORITHM_AUTO || why_not ? cheapest(c, job) : asked;
  if (pith__log_level() >= PITH_LOG_INFO_ && is_new_kind(c, job)) {
    if (why_not) {
      PITH_LOG_INFO("%s was asked for, but does not suit %s: %s", pith__algorithm_name(asked),
                    job->codec ? job->codec->spec : "uncompressed values", why_not);
    }
    explain(c, job, *chosen);
  }
  return PITH_OK;
}

/* ---- What an algorithm means for a codec ------------------------------------------------------------------------- */

/* One rank: nothing travels and nothing is lost. But momentum that a method keeps is part of what it means, on one rank
 * too. */
static int is_copied(const pith_job *job) {
  const pith_memory_ops *memory = job->codec ? job->codec->memory : NULL;
  return job->ranks == 1 && !(memory && (memory->keeps & PITH_KEEPS_MOMENTUM));
}

static pith_status schedule_rounds(pith_job *job) {
  pith_ctx ctx = job->ctx;
  ctx.ranks = (uint32_t)job->ranks;
  PITH_TRY(job->codec->ops->admit ? job->codec->ops->admit(job->codec->args, &ctx) : PITH_OK);
  return pith__allreduce_rounds(job);
}

static pith_status schedule_by(pith_job *job, pith_algorithm algorithm) {
  if (!job->codec) {
    return pith__allreduce_plain(job);
  }
  if (takes_rounds(job)) {
    return schedule_rounds(job);
  }
  switch (algorithm) {
    case PITH_ALGORITHM_RING:
      return pith__allreduce_ring(job);
    case PITH_ALGORITHM_TREE:
      return pith__allreduce_tree(job);
    case PITH_ALGORITHM_RANGES:
      return pith__allreduce_ranges(job);
    case PITH_ALGORITHM_LINEAR:
      return pith__allreduce_linear(job);
    case PITH_ALGORITHM_GATHER:
      return pith__allreduce_gather(job);
    case PITH_ALGORITHM_GRID:
      return job->codec->caps & PITH_CAP_CHUNKED ? pith__allreduce_grid_blocks(job) : pith__allreduce_grid_ranges(job);
    default:
      return (job->codec->caps & PITH_CAP_CHUNKED) && !(job->codec->caps & PITH_CAP_ONCE) ? pith__allreduce_blocks(job)
                                                                                          : pith__allreduce_gather(job);
  }
}

pith_status pith__allreduce(pith_job *job, pith_chooser *c, const char *asked, pith_algorithm *chosen) {
  pith_algorithm algorithm = c->wish;
  if (asked) {
    PITH_TRY(pith__algorithm_parse(asked, &algorithm));
  }
  *chosen = PITH_ALGORITHM_AUTO;
  if (is_copied(job)) {
    return pith__schedule_copy(job);
  }
  PITH_TRY(choose(c, job, algorithm, !asked, chosen));
  job->layout = *chosen == PITH_ALGORITHM_HIERARCHICAL || *chosen == PITH_ALGORITHM_GRID ? c->hosts : job->layout;
  pith_grid grid;
  job->grid = *chosen == PITH_ALGORITHM_GRID && !grid_of(c, job->codec, takes_rounds(job), &grid) ? &grid : NULL;
  pith_status status = schedule_by(job, *chosen);
  job->grid = NULL; /* the schedule is written */
  return status;
}
