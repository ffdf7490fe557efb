/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Public structs that grow (include/pith/types.h): reading one that a program filled, and filling one of a program's,
 * whatever version of the header the program was built with.
 *
 *   pith_config config = PITH_CONFIG_INIT;                     // defaults of fields that the program's header lacks
 *   PITH_TRY(PITH_STRUCT_READ(pith_config, given, &config));
 *
 * A struct of this library's own size costs one comparison.
 */
#ifndef PITH_BASE_STRUCT_SIZE_H
#define PITH_BASE_STRUCT_SIZE_H

#include <pith/pith.h>
#include <pith/plugin.h>
#include <string.h>

#include "base/status.h"

/* The size of a struct whose last field is the one named. */
#define PITH_SIZE_WITH(type, field) \
  ((offsetof(type, field) + sizeof(((type *)0)->field) + _Alignof(type) - 1) / _Alignof(type) * _Alignof(type))

/* The smallest size there is of each struct: of version 0.2, where these fields were the last. */
#define PITH_FIRST_pith_adapter_step PITH_SIZE_WITH(pith_adapter_step, waiting)
#define PITH_FIRST_pith_call PITH_SIZE_WITH(pith_call, algorithm)
#define PITH_FIRST_pith_carrier PITH_SIZE_WITH(pith_carrier, release)
#define PITH_FIRST_pith_codec_ops PITH_SIZE_WITH(pith_codec_ops, use)
#define PITH_FIRST_pith_config PITH_SIZE_WITH(pith_config, threads) /* of 0.1 */
#define PITH_FIRST_pith_ctx PITH_SIZE_WITH(pith_ctx, scratch_size)
#define PITH_FIRST_pith_cuda_item PITH_SIZE_WITH(pith_cuda_item, gamma)
#define PITH_FIRST_pith_launch PITH_SIZE_WITH(pith_launch, port)
#define PITH_FIRST_pith_layer PITH_SIZE_WITH(pith_layer, exact)
#define PITH_FIRST_pith_layer_stats PITH_SIZE_WITH(pith_layer_stats, steps)
#define PITH_FIRST_pith_match PITH_SIZE_WITH(pith_match, reason)
#define PITH_FIRST_pith_method PITH_SIZE_WITH(pith_method, params)
#define PITH_FIRST_pith_moment PITH_SIZE_WITH(pith_moment, warm)
#define PITH_FIRST_pith_param PITH_SIZE_WITH(pith_param, help)
#define PITH_FIRST_pith_plan_cost PITH_SIZE_WITH(pith_plan_cost, codec)
#define PITH_FIRST_pith_plan_info PITH_SIZE_WITH(pith_plan_info, layers)
#define PITH_FIRST_pith_plan_layer PITH_SIZE_WITH(pith_plan_layer, error)
#define PITH_FIRST_pith_plan_request PITH_SIZE_WITH(pith_plan_request, floor)
#define PITH_FIRST_pith_plugin PITH_SIZE_WITH(pith_plugin, codec_count)
#define PITH_FIRST_pith_plugin_memory PITH_SIZE_WITH(pith_plugin_memory, compensate)
#define PITH_FIRST_pith_plugin_transform PITH_SIZE_WITH(pith_plugin_transform, inverse)
#define PITH_FIRST_pith_profile_layer PITH_SIZE_WITH(pith_profile_layer, top)
#define PITH_FIRST_pith_reducer_options PITH_SIZE_WITH(pith_reducer_options, capturable)
#define PITH_FIRST_pith_round PITH_SIZE_WITH(pith_round, count)
#define PITH_FIRST_pith_sim_result PITH_SIZE_WITH(pith_sim_result, events)
#define PITH_FIRST_pith_sim_topology PITH_SIZE_WITH(pith_sim_topology, most_tasks)
#define PITH_FIRST_pith_stats PITH_SIZE_WITH(pith_stats, wait)
#define PITH_FIRST_pith_traffic PITH_SIZE_WITH(pith_traffic, wire)
#define PITH_FIRST_pith_update PITH_SIZE_WITH(pith_update, fold)

/* Copies a program's struct to *full, which has the defaults. PITH_ERR_ARGUMENT: it is smaller than any version's, or a
 * newer one whose additional fields are not zero. */
#define PITH_STRUCT_READ(type, given, full) \
  pith__struct_read(1 ? (full) : (type *)NULL, sizeof(type), 1 ? (given) : (const type *)NULL, PITH_FIRST_##type, #type)

/* The same for element `index` of an array. All elements must have the size of the first. */
#define PITH_STRUCT_READ_AT(type, array, index, full)                                                  \
  pith__element_read(1 ? (full) : (type *)NULL, sizeof(type), 1 ? (array) : (const type *)NULL, index, \
                     PITH_FIRST_##type, #type)

/* Copies *full to a program's struct: as many bytes as its size says. Its size stays as it is. */
#define PITH_STRUCT_WRITE(type, full, to) \
  pith__struct_write(1 ? (to) : (type *)NULL, 1 ? (full) : (const type *)NULL, sizeof(type), PITH_FIRST_##type, #type)

pith_status pith__struct_read_other(void *full, size_t full_size, const void *given, size_t first, const char *type);
pith_status pith__element_read(void *full, size_t full_size, const void *array, size_t index, size_t first,
                               const char *type);
pith_status pith__struct_write(void *to, const void *full, size_t full_size, size_t first, const char *type);

static inline pith_status pith__struct_read(void *full, size_t full_size, const void *given, size_t first,
                                            const char *type) {
  if (*(const size_t *)given == full_size) {
    memcpy(full, given, full_size);
    return PITH_OK;
  }
  return pith__struct_read_other(full, full_size, given, first, type);
}

#endif
