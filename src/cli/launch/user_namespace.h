/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rights without root: a user namespace of this process's own, in which it may make and configure network namespaces.
 * Users and groups stay what they are: ranks that are started in it see themselves as the user who started the lab.
 */
#ifndef PITH_CLI_USER_NAMESPACE_H
#define PITH_CLI_USER_NAMESPACE_H

#include <stddef.h>

/* Moves this process, which must have one thread, into a user namespace of its own. Returns 0 if the system does not
 * allow that, with the exact reason and what to do about it in `reason`. */
int cli_user_namespace_enter(char *reason, size_t size);

/* In a child that is about to become a program: lets the program keep the rights that this process has. */
void cli_user_namespace_keep_rights(void);

/* What is known to forbid namespaces to users on this system, as a sentence with what to do; number is the errno. */
void cli_user_namespace_explain(int number, char *reason, size_t size);

#endif
