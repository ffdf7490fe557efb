/* SPDX-License-Identifier: Apache-2.0 */
/* pith run and pith lab. */
#ifndef PITH_CLI_RUN_H
#define PITH_CLI_RUN_H

int cli_run(int argc, char **argv);
int cli_lab(int argc, char **argv);

#endif
