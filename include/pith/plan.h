/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pith's planner: chooses a spec for every layer within a budget of error. Part of the public API; pith.h includes it.
 * docs/planner.md has the algorithms and the file formats.
 *
 *   pith_profile_create(layers, count, "q:2;q:3;q:4;q:5;q:6", &profile);   // once
 *   pith_profile_update(profile, layer, gradient, &ctx);                    // in some steps: errors of all candidates
 *     … ranks add up pith_profile_values() …
 *   pith_plan_make(profile, &request, &plan);                               // every few hundred steps
 *   pith_rules_create(pith_plan_rules(plan), &rules);
 *
 * These functions do not communicate, measure time or draw random numbers of their own, so the same profile and request
 * give the same plan on every rank. A profile belongs to one thread at a time. Only pith_plan_price() changes a plan.
 */
#ifndef PITH_PLAN_H
#define PITH_PLAN_H

#include <pith/codec.h>
#include <pith/sim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Profiles: statistics of a model's gradients ----------------------------------------------------------------- */

/* The bytes and the error of each candidate on each layer, summed over samples. One thread uses it at a time. */
typedef struct pith_profile pith_profile;

/* Creates an empty profile. Candidates are specs separated by ';', the same for all layers. Layers with one dimension
 * or with fewer than pith_minimal_size() values are never measured, since rules leave them uncompressed. Texts and
 * shapes are copied. */
PITH_API pith_status pith_profile_create(const pith_layer *layers, size_t count, const char *candidates,
                                         pith_profile **profile);
PITH_API void pith_profile_destroy(pith_profile *profile);

/* Measures a gradient with every candidate and adds the result to the layer's statistics. Of ctx (may be NULL) seed,
 * step and rank are used. A gradient with NaN or Inf is not measured, but counted as skipped. With error feedback, pass
 * the values that are sent: gradient plus residual. */
PITH_API pith_status pith_profile_update(pith_profile *profile, size_t layer, pith_cspan gradient, const pith_ctx *ctx);

/* Removes all samples and begins a new window. The states of low-rank candidates are kept. */
PITH_API void pith_profile_reset(pith_profile *profile);

/* All sums as one array of *count numbers, which belongs to the profile. For each layer it holds the samples, skipped
 * gradients, squared norm, and squared norm of the largest hundredth, then the bytes of each candidate, then the error
 * of each. If the ranks sum their arrays element by element, planning uses means over all ranks. */
PITH_API double *pith_profile_values(pith_profile *profile, size_t *count);

/* The numbers of layers and of candidates. */
PITH_API size_t pith_profile_layers(const pith_profile *profile);
PITH_API size_t pith_profile_candidates(const pith_profile *profile);
/* Candidate `index` in canonical form; NULL beyond the last. */
PITH_API const char *pith_profile_candidate(const pith_profile *profile, size_t index);

/* What a profile knows about a layer. Name and shape live as long as the profile. */
typedef struct pith_profile_layer {
  size_t size; /* sizeof(pith_profile_layer) */
  const char *name;
  const size_t *shape;
  size_t dimensions, n;
  int fixed;        /* never compressed, whatever the plan */
  uint64_t samples; /* gradients measured */
  uint64_t skipped; /* gradients with NaN or Inf */
  double norm;      /* mean of the squared norm */
  double top;       /* mean of the squared norm of its largest hundredth */
} pith_profile_layer;

#define PITH_PROFILE_LAYER_INIT {.size = sizeof(pith_profile_layer)}

/* Describes layer `index`. PITH_ERR_ARGUMENT beyond the last. */
PITH_API pith_status pith_profile_layer_get(const pith_profile *profile, size_t index, pith_profile_layer *layer);

/* The means of the payload bytes and of the squared error ‖x − D(C(x))‖² of one layer and candidate. */
PITH_API pith_status pith_profile_get(const pith_profile *profile, size_t layer, size_t candidate, double *bytes,
                                      double *error);

/* Statistics files. Any bytes are safe to load; the error for a damaged file names the line. Saving replaces an old
 * file atomically. */
PITH_API pith_status pith_profile_save(const pith_profile *profile, const char *path);
PITH_API pith_status pith_profile_load(const char *path, pith_profile **profile);
PITH_API pith_status pith_profile_parse(pith_bytes text, pith_profile **profile);

/* Writes a list of candidates around a spec: from a quarter to twice its bits, from a tenth to ten times its ratio,
 * from a quarter to four times its rank. "mix" gives the candidates of all families. `size` is the capacity of `text`,
 * the final zero included. */
PITH_API pith_status pith_plan_candidates(const char *spec, char *text, size_t size);

/* ---- What a step costs ------------------------------------------------------------------------------------------- */

/* Times in seconds and rates in bytes per second, measured by the caller; the same numbers on every rank. A field that
 * is zero or NULL gets its default. */
typedef struct pith_plan_cost {
  size_t size;      /* sizeof(pith_plan_cost) */
  uint32_t ranks;   /* default: 2 */
  double latency;   /* of one exchange, whatever its size: 60e-6 */
  double bandwidth; /* of one rank's link: 1.25e8 (1 Gbit/s) */
  double compute;   /* of the backward pass: 0. Layers become ready from the last to the first, in proportion to their
                       sizes */
  const double *ready; /* instead of compute: the time at which each layer is ready, in the order of layers */
  const double *codec; /* to encode and decode one value, for each candidate of the profile: 1e-9; 0 for none */
  const pith_sim_topology *topology; /* instead of ranks, latency and bandwidth: an exchange takes the time of the
                                        algorithm that the library would choose on this network (pith_sim_estimate) */
} pith_plan_cost;

#define PITH_PLAN_COST_INIT {.size = sizeof(pith_plan_cost)}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* A spec for each layer, and what it was chosen for. */
typedef struct pith_plan pith_plan;

/* Files have these as words: "lgreco", "kmeans", …; "bytes", "time"; "l2sq", "l2". */
typedef enum pith_plan_method {
  PITH_PLAN_LGRECO = 0,    /* the fewest bytes or the least time within the budget */
  PITH_PLAN_KMEANS = 1,    /* layers in clusters by size and norm; more sensitive clusters lose less */
  PITH_PLAN_ACCORDION = 2, /* `critical` where the norm changes fast, `otherwise` elsewhere */
  PITH_PLAN_UNIFORM = 3,
  PITH_PLAN_CGX = 4,    /* the clusters of CGX: by the norm alone, with one level of strength for each */
  PITH_PLAN_LINEAR = 5, /* strength follows the logarithm of the layer's norm */
  PITH_PLAN_BEST = 6,   /* each layer separately: bits against the logarithm of the error */
  PITH_PLAN_BAYES = 7,  /* Bayesian optimization over strengths of all layers */
  PITH_PLAN_GLOBAL = 8, /* for methods that send the largest values: one threshold for all layers */
} pith_plan_method;

/* What lgreco minimizes: the bytes of a step, or its predicted time. */
typedef enum pith_plan_objective { PITH_PLAN_BYTES = 0, PITH_PLAN_TIME = 1 } pith_plan_objective;

/* The error that is summed over layers and kept within the budget. */
typedef enum pith_plan_metric {
  PITH_PLAN_L2SQ = 0, /* squared errors ‖e‖²: the squared error of the whole gradient */
  PITH_PLAN_L2 = 1,   /* errors ‖e‖, as in the authors' L-GreCo */
} pith_plan_metric;

/* What to plan. Fields that are zero or NULL get their defaults. */
typedef struct pith_plan_request {
  size_t size; /* sizeof(pith_plan_request) */
  pith_plan_method method;
  pith_plan_objective objective; /* of lgreco */
  const char *uniform;           /* the budget is this candidate's error on all layers … */
  double budget;                 /* … or, if uniform is NULL, this sum of errors by the metric */
  double alpha;                  /* factor on the uniform error; 0 counts as 1 */
  const char *families;          /* names of methods, "q,topk"; "mix": all candidates; NULL: the family of the specs
                                    given, else all */
  const pith_plan_cost *cost;    /* for the objective time */
  /* The next four are for accordion. lgreco takes its budget from them if `critical` is given. */
  const pith_profile *before; /* of the window before; NULL: every layer is in a critical phase */
  double threshold;           /* relative change of the norm that makes a phase critical; 0 counts as 0.5 */
  const char *critical, *otherwise;
  double floor; /* of lgreco: each layer gets at least this share of its bytes under the uniform spec; 0: no floor */
  pith_plan_metric metric;
  /* No layer gets a strength (bits, levels, ratio, rank) of more than `cap` times the uniform spec's. No layer stays
   * uncompressed either, unless the budget cannot be kept otherwise. At least 1; 0: no cap. */
  double cap;
  /* Instead of alpha: the budget is the error at which a step of gradient descent still makes at least 1 − tolerance of
   * its progress, Σ‖e‖² ≤ tolerance·Σ‖g‖² (for the metric l2: Σ‖e‖ ≤ √tolerance·‖g‖, which implies it). 0: alpha is
   * used. */
  double tolerance;
} pith_plan_request;

#define PITH_PLAN_REQUEST_INIT {.size = sizeof(pith_plan_request)}

/* Make a plan: by the request, or with one spec for all layers. PITH_ERR_RANGE: the budget is below the least possible
 * error. PITH_ERR_STATE: a layer has no statistics. */
PITH_API pith_status pith_plan_make(const pith_profile *profile, const pith_plan_request *request, pith_plan **plan);
PITH_API pith_status pith_plan_uniform(const pith_profile *profile, const char *spec, pith_plan **plan);
PITH_API void pith_plan_destroy(pith_plan *plan);

/* What a plan says about a layer. Texts and shape live as long as the plan. */
typedef struct pith_plan_layer {
  size_t size; /* sizeof(pith_plan_layer) */
  const char *name, *spec;
  const size_t *shape;
  size_t dimensions, n; /* 0: the file does not say */
  double bytes, error;  /* error by the plan's metric; negative: not known */
} pith_plan_layer;

#define PITH_PLAN_LAYER_INIT {.size = sizeof(pith_plan_layer)}

/* What a plan says about itself. Texts that a plan does not have are "". All live as long as the plan. */
typedef struct pith_plan_info {
  size_t size; /* sizeof(pith_plan_info) */
  const char *method, *objective, *reference, *note;
  const char *fallback; /* spec of all other layers */
  double budget;        /* by the metric; negative: none */
  double bytes, error;  /* sums; negative: not known for every layer */
  size_t layers;
  const char *metric; /* "l2sq" or "l2" */
} pith_plan_info;

#define PITH_PLAN_INFO_INIT {.size = sizeof(pith_plan_info)}

/* Describe the plan, and layer `index` of it. PITH_ERR_ARGUMENT beyond the last. */
PITH_API pith_status pith_plan_info_get(const pith_plan *plan, pith_plan_info *info);
PITH_API pith_status pith_plan_layer_get(const pith_plan *plan, size_t index, pith_plan_layer *layer);

/* The plan as rules, "name=spec;…;*=default", for pith_rules_create(). Lives as long as the plan. */
PITH_API const char *pith_plan_rules(const pith_plan *plan);

/* Sets the bytes and errors of all layers to the profile's present values. */
PITH_API pith_status pith_plan_price(pith_plan *plan, const pith_profile *profile);

/* Predicts the time of a step's exchange, from the start of the backward pass to the last mean. cost may be NULL. */
PITH_API pith_status pith_plan_seconds(const pith_plan *plan, const pith_profile *profile, const pith_plan_cost *cost,
                                       double *seconds);

/* Hysteresis: 1 if `fresh` should replace `old`, both priced by the same profile. It should if it saves more than
 * `share` (such as 0.05) of the bytes, or of the seconds if a cost is given, or if `old` exceeds the budget of `fresh`
 * by more than that share. */
PITH_API int pith_plan_gains(const pith_plan *old, const pith_plan *fresh, const pith_profile *profile,
                             const pith_plan_cost *cost, double share);

/* Plan files: JSON with one line for each layer, for people to read, edit and compare. Any bytes are safe to load. */
PITH_API pith_status pith_plan_save(const pith_plan *plan, const char *path);
PITH_API pith_status pith_plan_load(const char *path, pith_plan **plan);
PITH_API pith_status pith_plan_parse(pith_bytes text, pith_plan **plan);
/* The text of the plan file. Valid until the plan is priced or destroyed. */
PITH_API const char *pith_plan_text(const pith_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
