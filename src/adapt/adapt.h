/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The adapter, inside. docs/planner.md, "In training", has the algorithm.
 *
 *   adapt_spec.c        adaptive specs: what a user may write
 *   adapt_candidates.c  the specs that are measured for one
 *   adapt.c             the object, and what can be asked of it
 *   adapt_step.c        a step: sampling, what is added up when, the switch to a plan
 *   adapt_worker.c      the thread that makes error tables and plans
 *   adapt_plan.c        from sums to plans: one, or all candidates of auto with their predicted times
 *   adapt_trial.c       auto: which candidates are tried, and which one stays
 *   adapt_save.c        checkpoints
 */
#ifndef PITH_ADAPT_ADAPT_H
#define PITH_ADAPT_ADAPT_H

#include <pith/adapt.h>
#include <pthread.h>

#include "codec/shortlist.h"
#include "profile/profile.h"

/* ---- Specs ------------------------------------------------------------------------------------------------------- */

typedef enum pith_adapt_kind {
  PITH_ADAPT_AUTO,
  PITH_ADAPT_LGRECO,
  PITH_ADAPT_KMEANS,
  PITH_ADAPT_ACCORDION,
  PITH_ADAPT_CGX,
  PITH_ADAPT_LINEAR,
  PITH_ADAPT_BEST,
  PITH_ADAPT_BAYES,
  PITH_ADAPT_GLOBAL
} pith_adapt_kind;

typedef struct pith_adapt_options {
  pith_adapt_kind kind;
  char text[PITH_SPEC_MAX];                            /* as the user wrote it */
  char spec[PITH_SPEC_MAX];                            /* candidates are around it; PITH_MIX: all */
  char budget[PITH_SPEC_MAX], critical[PITH_SPEC_MAX]; /* "": none */
  size_t period, warmup, start;
  size_t accumulate; /* steps whose mean gradient is measured */
  int delayed;       /* whether specs whose gradients arrive late are candidates */
  double alpha, threshold, floor, cap, tolerance;
  pith_plan_metric metric;
} pith_adapt_options;

pith_status pith__adapt_parse(const char *text, pith_adapt_options *options);

/* Whether these options leave a spec out: delayed=0 one whose gradients arrive late. */
pith_status pith__adapt_leaves_out(const pith_adapt_options *options, const char *spec, int *left_out);

/* Specs that a profile measures for these options, with ';' between them; none that cannot serve so many ranks. */
pith_status pith__adapt_candidates(const pith_adapt_options *options, int ranks, char *text, size_t size);

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* The candidates of auto, in pith__shortlist_plans. The other kinds have one plan, in the first place. */
enum { PITH_PLANS = PITH_SHORTLIST_PLANS, PITH_TRIED_MOST = 8, PITH_TRIALS_MOST = 5 };

/* Times that ranks have added up, as means: seconds. 0: not known. */
typedef struct pith_measures {
  double seconds, span, waiting;      /* of a step, with the specs in force */
  double probe, latency;              /* of the exchange of the sums, and of a few numbers */
  double codec[PITH_SHORTLIST_TIMED]; /* for a value, by pith__shortlist_timed */
} pith_measures;

enum { PITH_MEASURES = sizeof(pith_measures) / sizeof(double) };

#define PITH_EXCLUDED 1e300 /* the error of what the options of auto do not allow */

/* What planning gives. */
typedef struct pith_planned {
  double predicted[PITH_PLANS],
      error[PITH_PLANS]; /* auto: seconds of a step; sum of squared errors, or PITH_EXCLUDED */
  uint8_t *choice;       /* PITH_PLANS × layers: candidates of the profile */
} pith_planned;

/* ---- The adapter ------------------------------------------------------------------------------------------------- */

enum {
  PITH_ADAPT_RING = 32,    /* step times that are remembered, and steps between two looks at them */
  PITH_ADAPT_SAMPLED = 12, /* sampling begins that many steps before the plan … */
  PITH_ADAPT_SPARE = 4,    /* … and ends that many before it */
  PITH_TRIAL_STEPS = 8,
  PITH_TRIAL_LOOK = 4,    /* after so many steps a slow trial ends, … */
  PITH_TRIAL_SKIPPED = 2, /* … and one that is much slower after these, which do not count: they have a change's cost */
};

typedef enum pith_due { PITH_DUE_NOTHING, PITH_DUE_SUMS, PITH_DUE_MEASURES, PITH_DUE_TRIAL, PITH_DUE_WATCH } pith_due;

/* The plain part: all of it is in checkpoints. The same on all ranks but for `own`. */
typedef struct pith_adapt_state {
  uint64_t step;    /* that comes, or is under way */
  uint64_t target;  /* from which step the next plan is in force; 0: trials decide first */
  uint64_t begun;   /* when the target was set: nothing is sampled before */
  uint64_t changed; /* from which step the specs in force are */
  uint64_t planned; /* the step of the last plan; 0: none yet */
  uint32_t slot;    /* of the plan in force … */
  uint32_t base;    /* … when the last trials began */
  uint32_t wide;    /* the next trials are as at first */
  uint32_t empty;   /* the window had no gradient that could be measured */
  uint32_t moved;   /* looks in a row at which step times had moved … */
  uint32_t upward;  /* … in this direction */
  uint32_t alarmed; /* trials are under way because of that */
  uint32_t alarms;  /* such trials in a row in which nothing better was found */
  double reference; /* the step time that looks are compared with; 0: the next one sets it */
  pith_measures measures;
  /* Trials. */
  uint32_t trying, tried, tries, finals; /* under way; which of `tries`; how often the best were tried again */
  uint32_t order[PITH_TRIED_MOST];
  double time[PITH_PLANS]; /* measured in these trials, the median of … */
  double trial[PITH_PLANS][PITH_TRIALS_MOST];
  uint32_t trials[PITH_PLANS];  /* … so many of them; 0: not tried */
  double predicted[PITH_PLANS]; /* for them, not yet corrected */
  double bias[PITH_PLANS];      /* how wrong the prediction was; 0 counts as 1 */
  double error[PITH_PLANS];
  struct {
    double seconds[PITH_ADAPT_RING], span[PITH_ADAPT_RING], waiting[PITH_ADAPT_RING];
    uint64_t count; /* since the last change */
    double probe, latency, codec[PITH_SHORTLIST_TIMED];
  } own;
} pith_adapt_state;

typedef struct pith_adapt_job pith_adapt_job;

typedef struct pith_adapt_worker {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  unsigned made_in; /* which process: base/forked.h */
  int started, closing, busy, plan_wanted;
  pith_adapt_job *first, **last;
  pith_status status; /* of the first failure, and its message */
  char message[512];
} pith_adapt_worker;

struct pith_adapter {
  pith_adapt_options options;
  size_t layers, none; /* none: that candidate */
  int rank, ranks;
  int idle; /* one rank, or nothing to decide: every step is the same */
  int of_shards;
  uint64_t seed;
  pith_profile *window, *last, *before; /* being measured; added up for the last plan; for the one before it */
  pith_adapt_state s;
  float **sum;             /* with `accumulate`: gradients added up so far, of each layer; NULL: none */
  uint64_t *summed;        /* … and how many */
  double *place;           /* of each layer among all values that can be sampled, from 0 to 1 */
  size_t largest;          /* the layer on which codecs are timed, with … */
  pith_measurer *measurer; /* … where gradients are not in main memory; NULL: they are */
  uint8_t *in_force;       /* candidates, for each layer */
  uint8_t *plans;          /* PITH_PLANS × layers: of the last plan */
  pith_planned made;       /* of the plan that is being made */
  double *numbers;         /* to be added up */
  size_t room;
  pith_due due;
  char reason[PITH_SPEC_MAX + 64], *profile_path;
  pith_adapt_worker worker;
};

/* ---- adapt.c ---- */

/* Before the first step: layers are parts of others, which are not small; none is exact for its size. `of_shards`:
 * every rank encodes one for each owner, and what a layer costs follows from that. */
pith_status pith__adapter_of_parts(pith_adapter *a, int of_shards);

/* Gradients are in the measurer's space, not in main memory. Before the first step; the adapter destroys it. */
void pith__adapter_measure_by(pith_adapter *a, pith_measurer *measurer);

/* ---- adapt_worker.c ---- */

pith_status pith__worker_init(pith_adapt_worker *w);
void pith__worker_fini(pith_adapter *a);
/* Hands over a copy of a gradient, to be measured; or has the measurer begin, and hands over its ticket. */
pith_status pith__worker_measure(pith_adapter *a, size_t layer, pith_cspan gradient);
/* Asks for a plan from what is in `last`. */
pith_status pith__worker_plan(pith_adapter *a);
/* Waits until there is nothing to do; gives what went wrong. */
pith_status pith__worker_wait(pith_adapter *a);

/* ---- adapt_plan.c ---- */

/* Fills a->made from a->last, a->before and a->s. */
pith_status pith__adapt_make_plans(pith_adapter *a);

/* ---- adapt_trial.c ---- */

/* A plan is there: what is tried, or what is in force at once. Sets the plan of the step that comes. */
void pith__trial_begin(pith_adapter *a);
/* The mean of a trial is known, so far or at its end; whether that is enough. */
int pith__trial_look(pith_adapter *a, double seconds);
/* The next trial begins with the step that comes, or the choice is made. */
void pith__trial_next(pith_adapter *a);

/* ---- adapt_step.c ---- */

/* The specs of a slot are in force from the step that comes. */
void pith__adapt_switch(pith_adapter *a, size_t slot);
void pith__adapt_describe(pith_adapter *a);

#endif
