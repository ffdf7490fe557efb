/* The other ways to a plan, beside lgreco.h. Each fills choice[layer] with a candidate of the profile. */
#ifndef PITH_SOLVE_METHODS_H
#define PITH_SOLVE_METHODS_H

#include "profile/profile.h"

/* CGX: clusters of layers by size and norm; the more sensitive a cluster, the less it loses; the smallest such plan
 * within the budget. PITH_ERR_RANGE if there is none. */
pith_status pith__kmeans_choose(const pith_profile *p, const size_t *option, size_t options, double budget,
                                size_t *choice);

/* Accordion: `critical` where the norm has changed by `threshold` of itself since the window before, else `otherwise`.
 */
pith_status pith__accordion_choose(const pith_profile *p, const pith_profile *before, double threshold, size_t critical,
                                   size_t otherwise, size_t *choice);

#endif
