/* SPDX-License-Identifier: Apache-2.0 */
/* "did you mean": the known word that is nearest to what was typed. */
#ifndef PITH_CLI_NEAREST_H
#define PITH_CLI_NEAREST_H

/* Replaces *best by `candidate` if that is nearer to `word`, and near enough to be what was meant. */
void cli_nearest(const char *word, const char *candidate, const char **best);

#endif
