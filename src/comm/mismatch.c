/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that disagree: in what, in words, and with both specs. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"

#define SPEC_SHOWN 128      /* characters of a spec in a message about disagreement */
#define DIFFERENCE_SIZE 560 /* so that the whole message fits a notice */

int pith__frame_agrees(const pith_frame *a, const pith_frame *b) {
  return a->operation == b->operation && a->flags == b->flags && a->layer == b->layer &&
         a->fingerprint == b->fingerprint && a->count == b->count && a->codec == b->codec && a->step == b->step &&
         a->seed == b->seed;
}

/* The text of a spec: our own, what its user told, or at least its fingerprint. */
static void name_spec(const pith_comm *comm, const pith_codec *own, uint64_t fingerprint, char text[SPEC_SHOWN]) {
  snprintf(text, SPEC_SHOWN, "a spec with fingerprint %#" PRIx64, fingerprint);
  if (!fingerprint) {
    snprintf(text, SPEC_SHOWN, "uncompressed values");
  } else if (own && own->fingerprint == fingerprint) {
    snprintf(text, SPEC_SHOWN, "%.*s", SPEC_SHOWN - 1, own->spec);
  }
  for (int i = 0; i < comm->spec_count; i++) {
    if (comm->specs[i].fingerprint == fingerprint) {
      snprintf(text, SPEC_SHOWN, "%s", comm->specs[i].text);
    }
  }
}

static const char *reduce_name(unsigned reduce) {
  static const char *const names[] = {"sum", "max", "min", "prod", "mean", "band", "bor", "bxor"};
  return reduce < sizeof names / sizeof *names ? names[reduce] : "?";
}

/* What the upper half of the flags is about: all but allreduce have a root there. */
static void name_upper_flags(const pith_frame *f, char text[SPEC_SHOWN]) {
  if (f->operation == PITH_OP_ALLREDUCE) {
    snprintf(text, SPEC_SHOWN, "algorithm %s",
             f->flags >> 16 < PITH_ALGORITHMS ? pith__algorithm_name((pith_algorithm)(f->flags >> 16)) : "?");
  } else {
    snprintf(text, SPEC_SHOWN, "root %u", f->flags >> 16);
  }
}

typedef struct difference {
  char text[DIFFERENCE_SIZE];
  int theirs, ours; /* ranks */
} difference;

/* "; rank 1 has A, rank 0 has B" */
static void differ(difference *d, const char *has, const char *theirs, const char *ours) {
  size_t used = strlen(d->text);
  snprintf(d->text + used, sizeof d->text - used, "%srank %d %s %s, rank %d %s", used ? "; " : "", d->theirs, has,
           theirs, d->ours, ours);
}

static void differ_count(difference *d, const char *has, uint64_t theirs, uint64_t ours) {
  char there[24], here[24];
  snprintf(there, sizeof there, "%" PRIu64, theirs);
  snprintf(here, sizeof here, "%" PRIu64, ours);
  if (theirs != ours) {
    differ(d, has, there, here);
  }
}

/* All that two headers of one place in the sequence differ in, the most telling first. */
static void find_differences(const pith_comm *comm, const pith_frame *theirs, const pith_operation *op, difference *d) {
  const pith_frame *ours = &op->frame;
  char there[SPEC_SHOWN], here[SPEC_SHOWN];
  if (theirs->operation != ours->operation) {
    differ(d, "is in", pith__operation_name(theirs->operation), pith__operation_name(ours->operation));
  }
  if (theirs->fingerprint != ours->fingerprint || theirs->codec != ours->codec) {
    name_spec(comm, op->job.codec, theirs->fingerprint, there);
    name_spec(comm, op->job.codec, ours->fingerprint, here);
    differ(d, "sends", there, here);
  }
  differ_count(d, "is at step", theirs->step, ours->step);
  differ_count(d, "has seed", theirs->seed, ours->seed);
  differ_count(d, "has a count of", theirs->count, ours->count);
  differ_count(d, "has layer", theirs->layer, ours->layer);
  if ((theirs->flags ^ ours->flags) & 0xff00) {
    differ(d, "has type", pith_dtype_name((pith_dtype)(theirs->flags >> 8 & 0xff)),
           pith_dtype_name((pith_dtype)(ours->flags >> 8 & 0xff)));
  }
  if ((theirs->flags ^ ours->flags) & 0xff) {
    differ(d, "reduces by", reduce_name(theirs->flags & 0xff), reduce_name(ours->flags & 0xff));
  }
  if ((theirs->flags ^ ours->flags) >> 16) {
    name_upper_flags(theirs, there);
    name_upper_flags(ours, here);
    differ(d, "has", there, here);
  }
}

int pith__link_disagree(pith_link *link, const pith_frame *theirs, const pith_operation *op) {
  difference d = {.theirs = link->peer, .ours = link->comm->rank};
  find_differences(link->comm, theirs, op, &d);
  if (!*d.text) {
    snprintf(d.text, sizeof d.text, "rank %d sent %" PRIu64 " bytes, which are not what rank %d expects", d.theirs,
             theirs->length, d.ours);
  }
  return pith__comm_fail(link->comm, PITH_ERR_MISMATCH,
                         "ranks disagree in %s number %" PRIu64 ", layer %" PRIu64
                         ": %s. All ranks must make the same calls in the same order, with "
                         "the same specs",
                         pith__operation_name(op->frame.operation), op->frame.sequence, op->frame.layer, d.text);
}

void pith__spec_learn(pith_comm *comm, uint64_t fingerprint, const char *text) {
  for (int i = 0; i < comm->spec_count; i++) {
    if (comm->specs[i].fingerprint == fingerprint) {
      return;
    }
  }
  char *copy = comm->spec_count < PITH_SPECS_MOST ? strdup(text) : NULL;
  if (!copy) {
    return; /* it is for messages only */
  }
  for (char *c = copy; *c; c++) {
    *c = (unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f ? '?' : *c;
  }
  comm->specs[comm->spec_count++] = (pith_spec_text){fingerprint, copy};
}
