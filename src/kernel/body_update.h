/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's step on a moment, a parameter and a residual. Part of body.h. */

/* keep · before + take · gradient, of those that are there. */
INLINE vf new_moment(const pith_update_task *u, size_t i, size_t k) {
  const float *before = u->before, *gradient = u->gradient;
  vf old = before ? v_mul(v_set(u->keep), get(before + i, k)) : v_set(0.0f);
  vf more = gradient ? v_mul(v_set(u->take), get(gradient + i, k)) : v_set(0.0f);
  return before && gradient ? v_add(old, more) : before ? old : more;
}

INLINE vf new_parameter(const pith_update_task *u, size_t i, size_t k, vf moment) {
  const float *base = u->start ? u->start : u->parameter, *variance = u->variance;
  vf step = v_mul(v_set(u->rate), moment);
  if (variance) {
    vf root = v_mul(v_set(u->root), v_sqrt(get(variance + i, k)));
    step = v_div(step, v_add(root, v_set(u->epsilon)));
  }
  return v_sub(v_mul(v_set(u->decay), get(base + i, k)), step);
}

static void k_update(const pith_update_task *u, size_t n) {
  float *moment = u->moment, *parameter = u->parameter, *start = u->start, *residual = u->residual;
  vf pass = v_set(u->pass), fold = v_set(u->fold);
  STEPS(i, k, n) {
    vf m = new_moment(u, i, k);
    if (moment) {
      put(moment + i, m, k);
    }
    if (parameter) {
      vf x = new_parameter(u, i, k, m);
      put(parameter + i, x, k);
      if (start) {
        put(start + i, x, k);
      }
    }
    if (residual) {
      put(residual + i, v_add(v_mul(pass, get(residual + i, k)), v_mul(fold, m)), k);
    }
  }
}
