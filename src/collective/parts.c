/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who owns which values of a tensor, with block codecs: every value has one owner, who sums it and adds its own share
 * as it is. So results depend on who the owner is, and the owner follows from the layer alone: from its number, its
 * size and the place of the value. It makes no difference whether a layer travels alone, joined with others, or over a
 * carrier (src/device/bucket.h cuts in the same way).
 *
 * A layer is cut into a part for each leader, a part into a slice for each host. Owners take turns, starting with one
 * that follows from the layer's number, so that small layers do not all fall to the first. A joined tensor has the
 * pieces of all layers, owner after owner.
 */
#include "collective/parts.h"

#include "base/size.h"

static pith_range cut(pith_range whole, size_t granule, int parts, int index, uint64_t turn) {
  pith_range part = pith__split_turned(whole.n, granule, (size_t)parts, (size_t)index, turn);
  part.first += whole.first;
  return part;
}

static pith_range part_of(size_t n, uint64_t layer, const pith_parts *p, int leader) {
  return cut((pith_range){0, n}, p->granule, p->leaders, leader, layer / (uint64_t)p->hosts);
}

static pith_range group_of(size_t n, uint64_t layer, const pith_parts *p, int leader, int group) {
  return cut(part_of(n, layer, p, leader), p->granule, p->groups, group, layer / (uint64_t)(p->hosts / p->groups));
}

static pith_range slice_of(size_t n, uint64_t layer, const pith_parts *p, int leader, int host) {
  int members = p->hosts / p->groups;
  return cut(group_of(n, layer, p, leader, host / members), p->granule, members, host % members, layer);
}

size_t pith__parts_granule(const pith_codec *codec, const pith_codec *inside) {
  return pith__least_common_multiple(codec->granule, inside ? inside->granule : 1);
}

static size_t rounded_up(size_t n, size_t granule) { return n / granule * granule + (n % granule ? granule : 0); }

size_t pith__parts_joined(const pith_member *members, size_t count, size_t granule) {
  size_t n = 0;
  for (size_t i = 0; i < count; i++) {
    n += rounded_up(members[i].n, granule);
  }
  return n;
}

/* The pieces that one owner has of the layers of a joined tensor, from value `at` on. Returns where the next begin. */
static size_t add_pieces(const pith_job *job, const pith_parts *p, int leader, int host, size_t at, pith_member *pieces,
                         size_t *count) {
  for (size_t i = 0; i < job->member_count; i++) {
    const pith_member *m = &job->members[i];
    pith_range r = slice_of(m->n, m->layer, p, leader, host);
    if (r.n) {
      uint8_t *values = (uint8_t *)m->values + r.first * pith_dtype_size(job->src.dtype);
      pieces[(*count)++] = (pith_member){at, r.n, m->layer, m->state, values, r.first};
      at += rounded_up(r.n, p->granule);
    }
  }
  return at;
}

/* No layer has more pieces than owners, or than granules. */
static size_t most_pieces(const pith_job *job, size_t granule, size_t owners) {
  size_t count = 0;
  for (size_t i = 0; i < job->member_count; i++) {
    size_t granules = rounded_up(job->members[i].n, granule) / granule;
    count += granules < owners ? granules : owners;
  }
  return count;
}

static void arrange(pith_job *job, pith_parts *p) {
  size_t owners = (size_t)p->leaders * (size_t)p->hosts, count = 0, at = 0;
  size_t most = most_pieces(job, p->granule, owners);
  pith_member *pieces = pith__schedule_take(&job->schedule, most ? most : 1, sizeof *pieces);
  size_t *bounds = pith__schedule_take(&job->schedule, owners + 1, sizeof *bounds);
  p->bounds = bounds;
  if (!pieces || !bounds) {
    return; /* the schedule has failed */
  }
  for (int leader = 0; leader < p->leaders; leader++) {
    for (int host = 0; host < p->hosts; host++) {
      *bounds++ = at;
      at = add_pieces(job, p, leader, host, at, pieces, &count);
    }
  }
  *bounds = at;
  job->members = pieces;
  job->member_count = count;
}

pith_parts pith__parts_make_grouped(pith_job *job, size_t granule, int leaders, int hosts, int groups) {
  pith_parts p = {granule, leaders, hosts, groups, NULL};
  if (job->member_count) {
    arrange(job, &p);
  }
  return p;
}

pith_parts pith__parts_make(pith_job *job, size_t granule, int leaders, int hosts) {
  return pith__parts_make_grouped(job, granule, leaders, hosts, 1);
}

pith_range pith__parts_under(const pith_job *job, const pith_parts *p, int leader, int group) {
  if (p->bounds) {
    int members = p->hosts / p->groups, hosts = group == PITH_ALL_GROUPS ? p->hosts : members;
    const size_t *bound =
        p->bounds + (size_t)leader * (size_t)p->hosts + (group == PITH_ALL_GROUPS ? 0 : (size_t)(group * members));
    return (pith_range){bound[0], bound[hosts] - bound[0]};
  }
  return job->member_count          ? (pith_range){0, 0}
         : group == PITH_ALL_GROUPS ? part_of(job->src.n, job->ctx.layer, p, leader)
                                    : group_of(job->src.n, job->ctx.layer, p, leader, group);
}

pith_range pith__parts_of(const pith_job *job, const pith_parts *p, int leader, int host) {
  if (p->bounds) {
    const size_t *bound = p->bounds + (size_t)leader * (size_t)p->hosts + (size_t)host;
    return (pith_range){bound[0], bound[1] - bound[0]};
  }
  return job->member_count ? (pith_range){0, 0} : slice_of(job->src.n, job->ctx.layer, p, leader, host);
}

size_t pith__parts_largest(const pith_job *job, const pith_parts *p) {
  size_t most = 0;
  for (int leader = 0; leader < p->leaders; leader++) {
    for (int host = 0; host < p->hosts; host++) {
      size_t n = pith__parts_of(job, p, leader, host).n;
      most = n > most ? n : most;
    }
  }
  return most;
}
