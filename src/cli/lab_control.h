/*
 * Links that change while a lab runs: a process beside the ranks reads rates from a named pipe and gives them to all
 * links. It is no thread and no part of the launcher's loop, so that neither can hold up the other.
 */
#ifndef PITH_CLI_LAB_CONTROL_H
#define PITH_CLI_LAB_CONTROL_H

#include <sys/types.h>

#include "cli/network.h"

/* Makes the pipe, if it is not there, and starts the process. Returns 0 after saying what is wrong. */
pid_t cli_control_start(const cli_network *network, const char *path);

/* Ends the process, which removes the pipe; so it does if this process dies before. 0 is no process. */
void cli_control_end(pid_t pid);

#endif
