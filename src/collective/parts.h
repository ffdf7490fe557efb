/* SPDX-License-Identifier: Apache-2.0 */
/* Who owns which values of an operation's tensor: see parts.c. */
#ifndef PITH_COLLECTIVE_PARTS_H
#define PITH_COLLECTIVE_PARTS_H

#include "base/split.h"
#include "codec/codec.h"
#include "collective/job.h"

typedef struct pith_parts {
  size_t granule;
  int leaders, hosts;   /* one owner for each pair */
  int groups;           /* of hosts, equally large: those of a group own what lies together */
  const size_t *bounds; /* of a joined tensor: where the values of each owner begin, and the end; else NULL */
} pith_parts;

/* Values are cut where both codecs can start; `inside` may be NULL. */
size_t pith__parts_granule(const pith_codec *codec, const pith_codec *inside);

/* How many values layers have once they are joined, those between them included. */
size_t pith__parts_joined(const pith_member *members, size_t count, size_t granule);

/* Cuts the job's tensor. That of joined layers is arranged by owners: job->members become its pieces. */
pith_parts pith__parts_make(pith_job *job, size_t granule, int leaders, int hosts);
pith_parts pith__parts_make_grouped(pith_job *job, size_t granule, int leaders, int hosts, int groups);

/* The values that leader `leader` of all hosts of a group owns; PITH_ALL_GROUPS: of all hosts. They lie together. */
#define PITH_ALL_GROUPS (-1)
pith_range pith__parts_under(const pith_job *job, const pith_parts *parts, int leader, int group);

/* The values that leader `leader` of host `host` owns. */
pith_range pith__parts_of(const pith_job *job, const pith_parts *parts, int leader, int host);

/* How many values the largest of them has. */
size_t pith__parts_largest(const pith_job *job, const pith_parts *parts);

#endif
