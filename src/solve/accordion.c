/* SPDX-License-Identifier: Apache-2.0 */
/* Accordion (Agarwal 2021): gradients whose norm changes fast are in a critical phase, when losses do lasting harm. */
#include <math.h>
#include <string.h>

#include "solve/methods.h"

/* Without a past a layer is critical: the first steps of training are. */
static int is_critical(const pith_profile_layer *now, const pith_profile_layer *past, double threshold) {
  if (!past->samples || past->norm <= 0) {
    return 1;
  }
  return fabs(sqrt(past->norm) - sqrt(now->norm)) >= threshold * sqrt(past->norm);
}

pith_status pith__accordion_choose(const pith_profile *p, const pith_profile *before, double threshold, size_t critical,
                                   size_t otherwise, size_t *choice) {
  PITH_REQUIRE(!before || before->layers == p->layers, PITH_ERR_MISMATCH,
               "the statistics of the window before are of another model: %zu layers, not %zu",
               before ? before->layers : 0, p->layers);
  for (size_t l = 0; l < p->layers; l++) {
    pith_profile_layer now = PITH_PROFILE_LAYER_INIT, past = PITH_PROFILE_LAYER_INIT;
    PITH_TRY(pith_profile_layer_get(p, l, &now));
    if (before) {
      PITH_TRY(pith_profile_layer_get(before, l, &past));
      PITH_REQUIRE(!strcmp(past.name, now.name) && past.n == now.n, PITH_ERR_MISMATCH,
                   "the statistics of the window before are of another model: layer %s there, %s here", past.name,
                   now.name);
    }
    choice[l] = is_critical(&now, &past, threshold) ? critical : otherwise;
  }
  return PITH_OK;
}
