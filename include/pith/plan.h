/*
 * Pith's planner: which layer may lose how much. Part of the public API; pith.h includes it. docs/planner.md has the
 * algorithms and the files.
 *
 *   pith_profile_create(layers, count, "q:2;q:3;q:4;q:5;q:6", &profile);   // once
 *   pith_profile_update(profile, layer, gradient, &ctx);                    // some steps: errors of all candidates
 *     … ranks add up pith_profile_values() …
 *   pith_plan_make(profile, &request, &plan);                               // every few hundred steps
 *   pith_rules_create(pith_plan_rules(plan), &rules);
 *
 * Nothing here communicates, measures time or draws random numbers of its own: the same profile and request give the
 * same plan on every rank. A profile belongs to one thread at a time; a plan never changes but by pith_plan_price().
 */
#ifndef PITH_PLAN_H
#define PITH_PLAN_H

#include <pith/pith.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Profiles: statistics of a model's gradients ----------------------------------------------------------------- */

typedef struct pith_profile pith_profile;

/* A layer of a model. */
typedef struct pith_layer_shape {
  const char *name;
  const size_t *shape;
  size_t dimensions;
} pith_layer_shape;

/* Candidates are specs with ';' between them; all layers have the same. Layers of one dimension or under 1024 values
 * are never measured: they travel uncompressed, as rules have it. Texts are copied. */
PITH_API pith_status pith_profile_create(const pith_layer_shape *layers, size_t count, const char *candidates,
                                         pith_profile **profile);
PITH_API void pith_profile_destroy(pith_profile *profile);

/* Measures a gradient with every candidate and adds that to the layer's statistics. ctx: seed, step, rank; may be NULL.
 * A gradient with NaN or Inf is left out, and counted as skipped. With error feedback, give what is sent: gradient plus
 * residual. */
PITH_API pith_status pith_profile_update(pith_profile *profile, size_t layer, pith_cspan gradient, const pith_ctx *ctx);

/* Forgets all samples: a new window begins. What low rank keeps between steps stays. */
PITH_API void pith_profile_reset(pith_profile *profile);

/* All sums as one array of `count` numbers, the profile's own: for each layer samples, skipped, squared norm, squared
 * norm of the largest hundredth, then the bytes of each candidate and the errors of each. Ranks add them up element by
 * element: the means that planning uses are then those over all ranks. */
PITH_API double *pith_profile_values(pith_profile *profile, size_t *count);

PITH_API size_t pith_profile_layers(const pith_profile *profile);
PITH_API size_t pith_profile_candidates(const pith_profile *profile);
PITH_API const char *pith_profile_candidate(const pith_profile *profile,
                                            size_t index); /* canonical; NULL beyond the last */

typedef struct pith_profile_layer {
  const char *name;
  const size_t *shape;
  size_t dimensions, n;
  int fixed;        /* travels uncompressed whatever the plan */
  uint64_t samples; /* gradients measured */
  uint64_t skipped; /* gradients with NaN or Inf */
  double norm;      /* mean of the squared norm */
  double top;       /* mean of the squared norm of its largest hundredth */
} pith_profile_layer;

PITH_API pith_status pith_profile_layer_get(const pith_profile *profile, size_t index, pith_profile_layer *layer);

/* Means of payload bytes and of the squared error ‖x − D(C(x))‖² for one layer and candidate. */
PITH_API pith_status pith_profile_get(const pith_profile *profile, size_t layer, size_t candidate, double *bytes,
                                      double *error);

/* Statistics files. Loading trusts nothing; a damaged file is an error that names the line. */
PITH_API pith_status pith_profile_save(const pith_profile *profile, const char *path);
PITH_API pith_status pith_profile_load(const char *path, pith_profile **profile);
PITH_API pith_status pith_profile_parse(pith_bytes text, pith_profile **profile);

/* Candidates around a spec: bits from a quarter to the double, ratios from a tenth to ten times, ranks from a quarter
 * to four times. "mix" gives those of all families. Writes at most `size` characters with the final zero. */
PITH_API pith_status pith_plan_candidates(const char *spec, char *text, size_t size);

/* ---- What a step costs ------------------------------------------------------------------------------------------- */

/* Seconds and bytes per second, measured by the caller; the same numbers on every rank. Zero or NULL: a default. */
typedef struct pith_plan_cost {
  size_t size;      /* sizeof(pith_plan_cost) */
  uint32_t ranks;   /* 2 */
  double latency;   /* of one exchange, whatever its size: 60e-6 */
  double bandwidth; /* of one rank's link: 1.25e8 (1 Gbit/s) */
  double compute; /* of the backward pass, in which layers become ready from the last to the first, as their sizes say:
                     0 */
  const double *ready; /* or when each layer is ready, in the order of layers */
  const double
      *codec; /* encoding and decoding one value, for each candidate of the profile; 1e-9 for each, 0 for none */
} pith_plan_cost;

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

typedef struct pith_plan pith_plan;

/* Values are in files as words: "lgreco", "kmeans", "accordion", "uniform"; "bytes", "time". */
typedef enum pith_plan_method {
  PITH_PLAN_LGRECO = 0,    /* the least bytes or time within the budget */
  PITH_PLAN_KMEANS = 1,    /* layers in clusters by size and norm; the more sensitive a cluster, the less it loses */
  PITH_PLAN_ACCORDION = 2, /* `critical` where the norm changes fast, `otherwise` elsewhere */
  PITH_PLAN_UNIFORM = 3,
} pith_plan_method;

typedef enum pith_plan_objective { PITH_PLAN_BYTES = 0, PITH_PLAN_TIME = 1 } pith_plan_objective;

typedef struct pith_plan_request {
  size_t size; /* sizeof(pith_plan_request) */
  pith_plan_method method;
  pith_plan_objective objective; /* of lgreco */
  const char *uniform;           /* the budget is this candidate's error on all layers … */
  double budget;                 /* … or, where uniform is NULL, this sum of squared errors */
  double alpha;                  /* factor on the uniform error; 0 counts as 1 */
  const char *families; /* names of methods, "q,topk"; "mix": all candidates; NULL: that of the specs given, else all */
  const pith_plan_cost *cost; /* for the objective time */
  /* Accordion, also as the source of lgreco's budget when `critical` is given. */
  const pith_profile *before; /* of the window before; NULL: every layer is in a critical phase */
  double threshold;           /* relative change of the norm that makes a phase critical; 0 counts as 0.5 */
  const char *critical, *otherwise;
  double floor; /* of lgreco: no layer gets fewer bytes than this share of what the uniform spec gives it; 0: none */
} pith_plan_request;

/* A budget below the least error possible is PITH_ERR_RANGE, a layer without statistics PITH_ERR_STATE. */
PITH_API pith_status pith_plan_make(const pith_profile *profile, const pith_plan_request *request, pith_plan **plan);
PITH_API pith_status pith_plan_uniform(const pith_profile *profile, const char *spec, pith_plan **plan);
PITH_API void pith_plan_destroy(pith_plan *plan);

typedef struct pith_plan_layer {
  const char *name, *spec;
  const size_t *shape;
  size_t dimensions, n; /* 0: the file does not say */
  double bytes, error;  /* negative: not known */
} pith_plan_layer;

typedef struct pith_plan_info {
  const char *method, *objective, *reference, *note,
      *fallback;       /* "" where there is none; fallback: spec of other layers */
  double budget;       /* negative: none */
  double bytes, error; /* sums; negative: not known for every layer */
  size_t layers;
} pith_plan_info;

PITH_API pith_status pith_plan_info_get(const pith_plan *plan, pith_plan_info *info);
PITH_API pith_status pith_plan_layer_get(const pith_plan *plan, size_t index, pith_plan_layer *layer);

/* "name=spec;…;*=default" for pith_rules_create(); lives as long as the plan. */
PITH_API const char *pith_plan_rules(const pith_plan *plan);

/* Whether the plan is one for this model: PITH_ERR_MISMATCH names the first layer that is not there, or of another
 * size. */
PITH_API pith_status pith_plan_check(const pith_plan *plan, const pith_layer_shape *layers, size_t count);

/* Sets bytes and errors of all layers to what the profile says now. */
PITH_API pith_status pith_plan_price(pith_plan *plan, const pith_profile *profile);

/* The predicted time of a step's exchange, from the start of the backward pass to the last mean. */
PITH_API pith_status pith_plan_seconds(const pith_plan *plan, const pith_profile *profile, const pith_plan_cost *cost,
                                       double *seconds);

/* Hysteresis: 1 if `fresh` should replace `old`, both priced by the same profile: it gains more than that share (0.05)
 * of the bytes (of the seconds, where a cost is given), or old exceeds fresh's budget by more than that share. */
PITH_API int pith_plan_gains(const pith_plan *old, const pith_plan *fresh, const pith_profile *profile,
                             const pith_plan_cost *cost, double share);

/* Plan files: JSON, one line for each layer, for people to read, edit and compare. */
PITH_API pith_status pith_plan_save(const pith_plan *plan, const char *path);
PITH_API pith_status pith_plan_load(const char *path, pith_plan **plan);
PITH_API pith_status pith_plan_parse(pith_bytes text, pith_plan **plan);
PITH_API const char *pith_plan_text(
    const pith_plan *plan); /* of the file; lives until the plan is priced or destroyed */

#ifdef __cplusplus
}
#endif

#include <pith/adapt.h>

#endif
