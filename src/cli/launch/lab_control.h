/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links and hosts that change while a lab runs: a process beside the ranks follows the schedule of faults, and reads
 * rates and faults from a named pipe. It is no thread and no part of the launcher's loop, so that neither can hold up
 * the other.
 */
#ifndef PITH_CLI_LAB_CONTROL_H
#define PITH_CLI_LAB_CONTROL_H

#include <sys/types.h>

#include "cli/launch/lab_fault.h"
#include "cli/launch/network.h"

/* Makes the pipe, if it is not there (NULL: none is wanted), and starts the process; the times of the schedule count
 * from now. Returns 0 after saying what is wrong. */
pid_t cli_control_start(const cli_network *network, const cli_faults *schedule, const char *path);

/* Ends the process, which removes the pipe; so it does if this process dies before. 0 is no process. */
void cli_control_end(pid_t pid);

#endif
