/*
 * Pith's adapter: specs that change while a model is trained. Part of the public API; plan.h, and so pith.h, includes
 * it. docs/planner.md, "In training", has the specs and the algorithm. A pith_reducer drives one by itself; this is
 * for engines with an exchange of their own.
 *
 *   pith_adapter_create("lgreco:q:4", layers, count, rank, ranks, seed, &adapter);
 *
 *   every step:
 *     if (pith_adapter_wants(adapter, layer)) pith_adapter_observe(adapter, layer, gradient);   // before it is reduced
 *     …
 *     pith_adapter_finish(adapter, &measured, &numbers, &count);      // all gradients are means now
 *     … if count is not 0: all ranks add up `numbers`, exactly and in place …
 *     pith_adapter_advance(adapter, seconds, &changed);               // of that exchange
 *     if (changed) … pith_adapter_spec(adapter, layer) for every layer, from the next step on …
 *
 * The adapter never communicates. What it does follows from the number of the step and from numbers that the ranks
 * have added up, so that all ranks do the same in the same step. Error tables and plans are made by a thread of its
 * own. An adapter belongs to one thread at a time.
 */
#ifndef PITH_ADAPT_H
#define PITH_ADAPT_H

#include <pith/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pith_adapter pith_adapter;

/* Whether a text is meant as an adaptive spec ("auto…", "lgreco:…", "kmeans:…", "accordion:…"), right or wrong. */
PITH_API int pith_adapter_is(const char *spec);

/* Validates an adaptive spec: PITH_OK, or what is wrong with it. Needs no layers. */
PITH_API pith_status pith_adapter_check(const char *spec);

/* The adaptive specs there are, as pith_method_get() gives the others: name, summary and options. `made_of` is how
 * one is written. When to use it is said by pith_adaptive_use(), NULL beyond the last. */
PITH_API pith_status pith_adaptive_get(size_t index, pith_method *method);
PITH_API const char *pith_adaptive_use(size_t index);

/* The value that an option has in an adaptive spec, as text, whether it was given or is the default; "" where there
 * is none. The key "spec" is the spec that the candidates are around. */
PITH_API pith_status pith_adapter_option(const char *spec, const char *key, char *text, size_t size);

/* All ranks create it alike, their rank aside. Texts are copied. */
PITH_API pith_status pith_adapter_create(const char *spec, const pith_layer_shape *layers, size_t count, int rank,
                                         int ranks, uint64_t seed, pith_adapter **adapter);
PITH_API void pith_adapter_destroy(pith_adapter *adapter);

/* Whether the layer's gradient is to be observed in this step. */
PITH_API int pith_adapter_wants(const pith_adapter *adapter, size_t layer);

/* Copies a gradient that is wanted; others are ignored. */
PITH_API pith_status pith_adapter_observe(pith_adapter *adapter, size_t layer, pith_cspan gradient);

/* What a step took, on this rank, in seconds. Zero: not known; the step then does not count. */
typedef struct pith_adapter_step {
  size_t size;    /* sizeof(pith_adapter_step) */
  double seconds; /* from the end of the step before to the end of this one */
  double span;    /* of that, from the first gradient that was there to the end of the exchange */
  double waiting; /* of that, after the last gradient was there */
} pith_adapter_step;

/* Ends a step. `numbers` are the adapter's own, to be added up over all ranks before pith_adapter_advance(); *count
 * is 0 in most steps. */
PITH_API pith_status pith_adapter_finish(pith_adapter *adapter, const pith_adapter_step *measured, double **numbers,
                                         size_t *count);

/* Begins the next step. `seconds`: what adding up took, 0 if there was nothing. *changed is 1 if layers have other
 * specs now. */
PITH_API pith_status pith_adapter_advance(pith_adapter *adapter, double seconds, int *changed);

/* The spec of a layer in the step that comes, in canonical form, and why it has it. Both live until the next change. */
PITH_API const char *pith_adapter_spec(const pith_adapter *adapter, size_t layer);
PITH_API const char *pith_adapter_reason(const pith_adapter *adapter, size_t layer);

/* Specs that layers may get, in canonical form; NULL beyond the last. */
PITH_API const char *pith_adapter_candidate(const pith_adapter *adapter, size_t index);

/* The number of the step that comes, and of the one from which the next plan is to be in force. */
PITH_API uint64_t pith_adapter_step_number(const pith_adapter *adapter);
PITH_API uint64_t pith_adapter_next_plan(const pith_adapter *adapter);

/* Writes the statistics of the last window, over all ranks, to a file for `pith plan`. PITH_ERR_STATE before the
 * first. With PITH_PROFILE in the environment rank 0 does so at every plan. */
PITH_API pith_status pith_adapter_profile(pith_adapter *adapter, const char *path);

/* Checkpoints, between two steps. Loading checks all of it before anything changes; layers may have other specs then.
 * */
PITH_API size_t pith_adapter_save_size(pith_adapter *adapter);
PITH_API pith_status pith_adapter_save(pith_adapter *adapter, pith_out *out);
PITH_API pith_status pith_adapter_load(pith_adapter *adapter, pith_bytes bytes);

/* ---- Changing a layer's spec --------------------------------------------------------------------------------------
 * */

/* pith_state_adapt() that loses nothing. debt: n values, zero at first. What the new spec has no place for is added
 * to it, and *owed is then 1; what is in it joins the new residual, if there is one, and leaves zeros. */
PITH_API pith_status pith_state_move(pith_state *state, const pith_codec *codec, int ranks, float *debt, int *owed);

/* Adds a part of a debt to a gradient, and takes it off the debt: all of it in `steps` steps, with steps counting
 * down to 1. */
PITH_API pith_status pith_debt_pay(float *debt, size_t steps, pith_span gradient);

#define PITH_DEBT_STEPS 16 /* so many are gentle enough for optimizers that divide by the size of past gradients */

#ifdef __cplusplus
}
#endif
#endif
