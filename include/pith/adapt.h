/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pith's adapter: specs that change during training. Part of the public API; pith.h includes it. docs/planner.md, "In
 * training", describes the specs and the algorithm. A pith_reducer drives its adapter itself; this header is for
 * engines that exchange gradients on their own.
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
 * The adapter never communicates. Its decisions depend only on the step number and on numbers summed over all ranks, so
 * all ranks make the same decision in the same step. It measures and plans in its own thread. An adapter belongs to one
 * thread at a time.
 */
#ifndef PITH_ADAPT_H
#define PITH_ADAPT_H

#include <pith/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The statistics, plans and schedule of an adaptive spec. */
typedef struct pith_adapter pith_adapter;

/* 1 if the text has the form of an adaptive spec ("auto…", "lgreco:…", "kmeans:…", "accordion:…"), valid or not. */
PITH_API int pith_adapter_is(const char *spec);

/* Validates an adaptive spec. The error says what is wrong with it. Needs no layers. */
PITH_API pith_status pith_adapter_check(const char *spec);

/* Lists the adaptive specs. pith_adaptive_get() fills in a method's name, summary and options as pith_method_get()
 * does; `made_of` is the syntax. pith_adaptive_use() says when to use the spec, and returns NULL beyond the last. */
PITH_API pith_status pith_adaptive_get(size_t index, pith_method *method);
PITH_API const char *pith_adaptive_use(size_t index);

/* Writes the value of an option of an adaptive spec to `text`, given or default; "" if it has none. The key "spec"
 * gives the spec around which the candidates lie. `size` is the capacity of `text`. */
PITH_API pith_status pith_adapter_option(const char *spec, const char *key, char *text, size_t size);

/* Creates an adapter. All ranks pass the same arguments except `rank`. Texts and shapes are copied. */
PITH_API pith_status pith_adapter_create(const char *spec, const pith_layer *layers, size_t count, int rank, int ranks,
                                         uint64_t seed, pith_adapter **adapter);
PITH_API void pith_adapter_destroy(pith_adapter *adapter);

/* 1 if the adapter needs this layer's gradient in this step. */
PITH_API int pith_adapter_wants(const pith_adapter *adapter, size_t layer);

/* Gives the adapter a gradient, before it is reduced. The adapter copies it if it wants it, and ignores it
 * otherwise. */
PITH_API pith_status pith_adapter_observe(pith_adapter *adapter, size_t layer, pith_cspan gradient);

/* The time of a step on this rank, in seconds. Zero means unknown: the planner then ignores the step. */
typedef struct pith_adapter_step {
  size_t size;    /* sizeof(pith_adapter_step) */
  double seconds; /* from the end of the step before to the end of this one */
  double span;    /* part of it: from the first ready gradient to the end of the exchange */
  double waiting; /* part of it: after the last gradient was ready */
} pith_adapter_step;

#define PITH_ADAPTER_STEP_INIT {.size = sizeof(pith_adapter_step)}

/* Ends a step. Before pith_adapter_advance() the program sums the *count values at *numbers over all ranks, in place.
 * *count is 0 in most steps. The numbers belong to the adapter. */
PITH_API pith_status pith_adapter_finish(pith_adapter *adapter, const pith_adapter_step *measured, double **numbers,
                                         size_t *count);

/* Begins the next step. `seconds` is the time that the sum took, 0 if there was none. *changed becomes 1 if the spec of
 * any layer has changed, else 0. */
PITH_API pith_status pith_adapter_advance(pith_adapter *adapter, double seconds, int *changed);

/* The spec of a layer in the next step, in canonical form, and the reason for it. Both stay valid until the next
 * change. */
PITH_API const char *pith_adapter_spec(const pith_adapter *adapter, size_t layer);
PITH_API const char *pith_adapter_reason(const pith_adapter *adapter, size_t layer);

/* Candidate `index`, a spec that layers may get, in canonical form; NULL beyond the last. */
PITH_API const char *pith_adapter_candidate(const pith_adapter *adapter, size_t index);

/* The number of the next step, and the number of the step at which the next plan takes effect. */
PITH_API uint64_t pith_adapter_step_number(const pith_adapter *adapter);
PITH_API uint64_t pith_adapter_next_plan(const pith_adapter *adapter);

/* Writes the statistics of the last window, over all ranks, to a file for `pith plan`. PITH_ERR_STATE before the first
 * plan. If PITH_PROFILE is set in the environment, rank 0 writes them at every plan. */
PITH_API pith_status pith_adapter_profile(pith_adapter *adapter, const char *path);

/* Checkpoints, between two steps. Loading checks all bytes before anything changes. Afterwards layers may have other
 * specs. */
PITH_API size_t pith_adapter_save_size(pith_adapter *adapter);
PITH_API pith_status pith_adapter_save(pith_adapter *adapter, pith_out *out);
PITH_API pith_status pith_adapter_load(pith_adapter *adapter, pith_bytes bytes);

#ifdef __cplusplus
}
#endif
#endif
