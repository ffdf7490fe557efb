/* SPDX-License-Identifier: Apache-2.0 */
/* "rank 3", "ranks 2, 5 and 7": the ranks of a sentence. */
#ifndef PITH_TRANSPORT_RANK_LIST_H
#define PITH_TRANSPORT_RANK_LIST_H

#include <stddef.h>
#include <stdint.h>

#define PITH_RANK_LIST_TEXT 128

/* The ranks whose flag is set, in words; a long list ends with how many more there are. Returns `text`. */
const char *pith__rank_list(const uint8_t *flags, int ranks, char text[PITH_RANK_LIST_TEXT]);

#endif
